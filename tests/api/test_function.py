"""`@function`: checked where it stands, handed back unchanged, collected with its module."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import boki
from boki import Context, blocking, function
from boki.api.failures import failure_of
from boki.api.function import Function
from boki.api.payloads.values import NO_PAYLOAD
from boki.api.registry import Registry
from boki.errors import ConditionFailed, ConfigError, FunctionFailed, InvalidArgument
from boki.protocol.calls import Payload

if TYPE_CHECKING:
    from boki import Context as OnlyForTheTypeChecker


class Order(msgspec.Struct):
    id: int
    items: list[str] = []


@function
async def plain(ctx: Context, order: Order) -> list[str]:
    """What it does."""
    return [*order.items, ctx.invocation_id]


@function(
    name="other-name", timeout_s=5, book="shop", concurrency=8, min_workers=1, max_workers=2, memory_bytes=1 << 28
)
async def with_options(ctx: Context, name: str = "you") -> str:
    return name


@function
def computing(ctx: blocking.Context, data: bytes) -> bytes:
    return data * 2


@function
async def no_payload(ctx: Context) -> None: ...


@function
def unannotated(ctx, payload):  # type: ignore[no-untyped-def]
    return payload


@function
async def annotated_for_the_type_checker(ctx: OnlyForTheTypeChecker) -> None: ...


def test_the_function_stays_as_it_is() -> None:
    """Callable as plain Python, with its own name and signature."""
    assert inspect.isfunction(plain)
    assert plain.__name__ == "plain"
    assert list(inspect.signature(plain).parameters) == ["ctx", "order"]
    assert computing(None, b"ab") == b"abab"  # type: ignore[arg-type]


def test_what_others_may_know_of_it() -> None:
    """Name, kind, options, documentation and schemas."""
    info = Function.of(plain).info
    assert (info.name, info.module, info.is_async, info.doc) == ("plain", __name__, True, "What it does.")
    assert (info.book, info.timeout_s, info.concurrency) == ("", 60.0, 256)
    assert info.payload_schema is not None
    assert info.payload_schema["$defs"]["Order"]["required"] == ["id"]
    assert info.result_schema == {"type": "array", "items": {"type": "string"}}
    assert (info.payload_encoding, info.result_encoding) == ("json", "json")
    info = Function.of(with_options).info
    assert (info.name, info.timeout_s, info.book, info.concurrency) == ("other-name", 5, "shop", 8)
    assert (info.min_workers, info.max_workers, info.memory_bytes) == (1, 2, 1 << 28)
    assert (info.payload_encoding, info.payload_schema) == ("text", None)
    info = Function.of(computing).info
    assert (info.is_async, info.concurrency, info.payload_encoding, info.result_encoding) == (
        False,
        1,
        "bytes",
        "bytes",
    )
    info = Function.of(no_payload).info
    assert (info.payload_schema, info.result_schema) == ({"type": "null"}, {"type": "null"})
    info = Function.of(unannotated).info
    assert (info.payload_schema, info.result_schema) == ({}, {})
    assert Function.of(annotated_for_the_type_checker).info.is_async


def test_arguments() -> None:
    """The payload as the annotation wants it; nothing if there is none and the function can do without."""
    assert Function.of(plain).arguments(Payload("json", b'{"id": 1}')) == (Order(1),)
    with pytest.raises(InvalidArgument, match=r"payload of plain: Object missing required field `id`"):
        Function.of(plain).arguments(Payload("json", b"{}"))
    with pytest.raises(InvalidArgument, match=r"plain needs a payload \(an object like"):
        Function.of(plain).arguments(NO_PAYLOAD)
    assert Function.of(with_options).arguments(NO_PAYLOAD) == ()
    assert Function.of(with_options).arguments(Payload("text", b"Ada")) == ("Ada",)
    assert Function.of(computing).arguments(NO_PAYLOAD) == (b"",)
    for empty in (NO_PAYLOAD, Payload("json", b"null"), Payload("text", b"")):
        assert Function.of(no_payload).arguments(empty) == ()
    with pytest.raises(InvalidArgument, match="takes no payload"):
        Function.of(no_payload).arguments(Payload("json", b"1"))
    assert Function.of(unannotated).arguments(NO_PAYLOAD) == (None,)


def test_results() -> None:
    """What does not fit its annotation is the function's own failure, and says so."""
    assert Function.of(plain).encode_result(["a"]) == Payload("json", b'["a"]')
    assert Function.of(plain).decode_result(Payload("json", b'["a"]')) == ["a"]
    assert Function.of(no_payload).encode_result(None) == Payload("json", b"null")
    for known, value in ((plain, ["a", 1]), (plain, None), (no_payload, 1), (computing, "x"), (plain, object())):
        with pytest.raises(FunctionFailed) as caught:
            Function.of(known).encode_result(value)
        assert caught.value.outcome == "failed"
        assert caught.value.error_type == "TypeError"
        assert f"result of {Function.of(known).info.name}" in caught.value.message
        assert "test_function.py:" in caught.value.message


def test_what_is_not_decorated_cannot_be_called() -> None:
    """The error says to decorate it."""
    with pytest.raises(InvalidArgument, match="decorate it with @function"):
        Function.of(len)


def test_how_a_failure_is_told() -> None:
    """Type and message; the traceback only if it is wanted."""
    try:
        raise ConditionFailed("no", actual_seqnum=5)
    except ConditionFailed as error:
        failure, full = failure_of("f", error), failure_of("f", error, with_traceback=True)
    assert (failure.code, failure.message, failure.outcome) == ("function_failed", "f: ConditionFailed: no", "failed")
    assert failure.details == {"error_type": "ConditionFailed", "function": "f", "error_code": "condition_failed"}
    assert "test_how_a_failure_is_told" in full.details["traceback"]
    assert isinstance(failure.error(), FunctionFailed)


async def takes_nothing() -> None: ...
async def takes_three(ctx: Context, a: int, b: int) -> None: ...
async def takes_any(ctx: Context, *payloads: int) -> None: ...
async def takes_keyword(ctx: Context, *, payload: int) -> None: ...
async def takes_keywords(ctx: Context, **payload: int) -> None: ...
async def yields(ctx: Context) -> int:  # type: ignore[misc]
    yield 1


def yields_plainly(ctx: blocking.Context) -> list[bytes]:  # type: ignore[misc]
    yield 1


async def wrong_context(ctx: blocking.Context) -> None: ...
def wrong_blocking_context(ctx: Context) -> None: ...
async def no_context(order: Order) -> None: ...
async def strange_payload(ctx: Context, payload: Callable[[], int]) -> None: ...
async def strange_result(ctx: Context) -> Iterator[int]: ...
async def größe(ctx: Context) -> None: ...


REFUSED: list[tuple[Any, str]] = [
    (takes_nothing, r"must take the context: write takes_nothing\(ctx\)"),
    (takes_three, r"at most one payload: write takes_three\(ctx, payload\).*dataclass"),
    (takes_any, "at most one payload"),
    (takes_keyword, "at most one payload"),
    (takes_keywords, "at most one payload"),
    (yields, "annotate it with AsyncIterator"),
    (yields_plainly, "annotate it with AsyncIterator"),
    (wrong_context, "async def wrong_context .*annotate it with boki.Context, or make the function 'def'"),
    (wrong_blocking_context, "annotate it with boki.blocking.Context, or make the function 'async def'"),
    (no_context, "the first parameter is the context: annotate it with boki.Context"),
    (strange_payload, "payload of strange_payload .* cannot travel"),
    (strange_result, "strange_result .* is annotated as a stream and yields nothing"),
    (größe, "function name must be"),
    (Order, "@function goes on a def or async def"),
    (len, "@function goes on a def or async def"),
]


@pytest.mark.parametrize(("fn", "words"), REFUSED, ids=lambda value: getattr(value, "__name__", "")[:40])
def test_what_cannot_be_called_is_refused(fn: Any, words: str) -> None:
    """When it is decorated; the message says what to write."""
    with pytest.raises(InvalidArgument, match=words):
        function(fn)


OPTIONS: list[dict[str, Any]] = [
    {"name": "a b"},
    {"name": ""},
    {"book": "a/b"},
    {"timeout_s": 0},
    {"timeout_s": "5"},
    {"concurrency": 0},
    {"concurrency": 1.5},
    {"min_workers": -1},
    {"max_workers": 0},
    {"min_workers": 3, "max_workers": 2},
    {"memory_bytes": 1},
]


@pytest.mark.parametrize("options", OPTIONS, ids=repr)
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    """Each names itself."""
    with pytest.raises(InvalidArgument) as caught:
        function(**options)
    assert next(iter(options)) in caught.value.message or "function name" in caught.value.message


def test_local_types_are_found() -> None:
    """A function inside a function may be annotated with what only that one knows."""

    class Local(msgspec.Struct):
        x: int

    @function
    async def local(ctx: Context, payload: Local) -> Local:
        return payload

    assert Function.of(local).arguments(Payload("json", b'{"x":1}')) == (Local(1),)


# modules

LATER = """
from __future__ import annotations
from dataclasses import dataclass
from boki import Context, function, blocking

@function
async def early(ctx: Context, order: Order) -> Order:
    return order

@function(name="second")
def two(ctx: blocking.Context) -> int:
    return 2

@dataclass
class Order:
    id: int
"""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Write a module and load it, again if it was loaded before."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load_source(source: str, name: str = "shop_functions") -> ModuleType:
        (tmp_path / f"{name}.py").write_text(source)
        importlib.invalidate_caches()
        if name in sys.modules:
            return importlib.reload(sys.modules[name])
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.delitem(sys.modules, name)
        return importlib.import_module(name)

    return load_source


def test_a_module_registers_its_functions(load: Callable[[str], ModuleType]) -> None:
    """By their names, in order; an annotation may name what comes further down."""
    registry = Registry.of(load(LATER))
    assert list(registry.functions) == ["early", "second"]
    assert [info.module for info in registry.infos] == ["shop_functions", "shop_functions"]
    assert registry.functions["second"].run(None) == 2
    assert registry.functions["early"].place.endswith("shop_functions.py:7")


def test_a_module_loaded_anew_leaves_nothing_behind(load: Callable[[str], ModuleType]) -> None:
    """Also in the very same module object."""
    first = load(LATER)
    again = load(LATER.replace("early", "late"))
    assert first is again
    assert list(Registry.of(again).functions) == ["late", "second"]


def test_imported_functions_belong_to_their_own_module(load: Any) -> None:
    """Importing a function in order to call it does not register it twice."""
    load(LATER)
    other = load(
        "from boki import Context, function\nfrom shop_functions import early\n"
        "@function\nasync def mine(ctx: Context) -> None: ...\n",
        "other_functions",
    )
    assert list(Registry.of(other).functions) == ["mine"]


def test_two_functions_of_one_name_are_refused(load: Callable[[str], ModuleType]) -> None:
    """Both places are told, also if the second has taken the first one's place in the module."""
    for source in (LATER.replace('name="second"', 'name="early"'), LATER.replace("def two", "def early")[:-1]):
        source = source.replace('(name="second")', "")
        with pytest.raises(ConfigError, match=r"named 'early': at .*:7 and at .*:11"):
            Registry.of(load(source))


def test_an_annotation_that_is_never_defined_is_refused(load: Callable[[str], ModuleType]) -> None:
    """When the module has been loaded, with the place."""
    with pytest.raises(ConfigError, match=r"early \(.*:7\): name 'Order' is not defined.*import it at run time"):
        Registry.of(load(LATER.partition("@dataclass")[0]))


def test_a_module_without_functions_registers_none() -> None:
    """It may help others."""
    assert Registry.of(boki).functions == {}
