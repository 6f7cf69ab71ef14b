"""Wrong functions, payloads and results, and every word of what their users are told."""

from __future__ import annotations

import asyncio
import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pydantic
import pytest

from boki import Context, function
from boki.api.function import Function
from boki.api.payloads.values import NO_PAYLOAD, codec_for, encode_any
from boki.dispatch.server.describing import Description
from boki.dispatch.server.module_news import announce
from boki.errors import FunctionFailed, InvalidArgument
from boki.libs.bokiqueue import consume
from boki.protocol.calls import FunctionInfo, ModuleInfo, Payload
from boki.worker.frames import Described
from boki.worker.loading import Sources

HEAD = "import boki\nfrom boki import Context, function\nfrom boki.libs.bokiqueue import consume\n"
OPTIONS = "name, timeout_s, book, concurrency, min_workers, max_workers, memory_bytes, unknown_fields, retry, http"
MODULES = [
    ("B17", "def ok1(ctx)\n    return 1\n", "w.py:4: SyntaxError: expected ':'"),
    ("B18", "import nonexistent_pkg\n", "w.py:4: ModuleNotFoundError: No module named 'nonexistent_pkg'"),
    (
        "B19-function",
        "@function(timeout=5)\nasync def f(ctx): ...\n",
        "w.py:4: ConfigError: @function has no option timeout; did you mean timeout_s? Its options: " + OPTIONS,
    ),
    (
        "B19-strange",
        "@function(colour='red')\nasync def f(ctx): ...\n",
        "w.py:4: ConfigError: @function has no option colour. Its options: " + OPTIONS,
    ),
    (
        "B19-consume",
        "@consume('q', max_deliveries=3)\nasync def f(ctx, one): ...\n",
        (
            "w.py:4: ConfigError: @consume has no option max_deliveries, because it is the queue's: set it with "
            "Queue.configure(max_deliveries=...)"
        ),
    ),
    (
        "B19-consume-typo",
        "@consume('q', retries=3)\nasync def f(ctx, one): ...\n",
        (
            "w.py:4: ConfigError: @consume has no option retries; did you mean retry_s? Its options: queue, group, "
            "batch, concurrency, retry_s, name, timeout_s, book, min_workers, max_workers, memory_bytes, "
            "unknown_fields, retry, http"
        ),
    ),
    (
        "H5-min_workers",
        "@function(min_workers=100000, max_workers=10**9)\nasync def f(ctx): ...\n",
        "w.py:4: ConfigError: min_workers must be an int from 0 to 256, not 100000",
    ),
    (
        "H5-max_workers",
        "@function(max_workers=10**9)\nasync def f(ctx): ...\n",
        "w.py:4: ConfigError: max_workers must be an int from 1 to 256, not 1000000000",
    ),
    (
        "H5-concurrency",
        "@function(concurrency=10**9)\nasync def f(ctx): ...\n",
        "w.py:4: ConfigError: concurrency must be an int from 1 to 10,000, not 1000000000",
    ),
    (
        "decorated twice",
        "@function\n@function\nasync def f(ctx): ...\n",
        "w.py:4: ConfigError: f (w.py:6) is decorated twice: leave one @function",
    ),
    (
        "decorated for both",
        "@function\n@consume('q')\nasync def f(ctx, one): ...\n",
        "w.py:4: ConfigError: f (w.py:6) is decorated twice: leave one @function or @consume",
    ),
    (
        "consume without a queue",
        "@consume\nasync def f(ctx, one): ...\n",
        'w.py:4: ConfigError: @consume needs the name of a queue: write @consume("orders")',
    ),
    (
        "consumer without a message",
        "@consume('q')\nasync def f(ctx): ...\n",
        "w.py:4: ConfigError: f (w.py:5) consumes a queue, and takes no message: add a parameter for it",
    ),
    *(
        (
            f"batches of {annotation}",
            f"@consume('q', batch=10)\nasync def f(ctx, one: {annotation}): ...\n",
            (
                "w.py:4: ConfigError: f (w.py:5) consumes in batches, so it takes a list of messages: annotate it "
                "with list[...]"
            ),
        )
        for annotation in ("str", "bytes", "int", "dict[str, str]")
    ),
    (
        "method",
        "class A:\n    @function\n    async def f(self, ctx): ...\n",
        "w.py:5: ConfigError: f (w.py:6) is a method, which no caller reaches: make it a function of the module",
    ),
    (
        "stream without a yield",
        "from collections.abc import AsyncIterator\n@function\nasync def f(ctx) -> AsyncIterator[str]: return 'x'\n",
        (
            "w.py:5: ConfigError: f (w.py:6) is annotated as a stream and yields nothing: yield its parts, or annotate "
            "the result"
        ),
    ),
]


@pytest.mark.parametrize(("source", "told"), [row[1:] for row in MODULES], ids=[row[0] for row in MODULES])
def test_what_a_module_is_told(source: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is imported: the line of its own code, what is wrong there, and what to write instead."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    Path("w.py").write_text(HEAD + source)
    said = Sources(str(tmp_path), pinned={}).registry("w", str(tmp_path / "w.py"))
    assert str(said).replace(f"{tmp_path}/", "") == told


@pytest.mark.parametrize("row", ["B17", "B18"])
def test_the_console_says_which_functions_a_broken_edit_leaves_running(
    row: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Behind what is wrong with the edit: calls continue with the version before it."""
    error = next(told for name, _, told in MODULES if name == row)
    ok = FunctionInfo(name="ok1", module="w", is_async=True)
    announce(ModuleInfo(module="w", path="w.py", functions=(ok,), error=error))
    assert caplog.messages == [f"{error}; its last good version keeps running: ok1"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"min_workers": 100_000}, "min_workers must be an int from 0 to 256, not 100000"),
        ({"max_workers": 10**9}, "max_workers must be an int from 1 to 256, not 1000000000"),
        (
            {"consumes": {"queue": "q", "concurrency": 10**6}},
            "concurrency must be 1 to 1,000, not 1,000,000",
        ),
        (
            {"consumes": {"queue": 7}},
            "settings of a consumer that cannot be read: Expected `str`, got `int` - at `$.queue`",
        ),
        ({"name": "../x"}, "function name must be 1 to 128 characters of A-Z a-z 0-9 . _ : -, not '../x'"),
    ],
    ids=["H5-min_workers", "H5-max_workers", "H5-consumers", "consumers", "name"],
)
def test_a_worker_cannot_describe_what_no_decorator_registers(options: dict[str, object], told: str) -> None:
    """Code of a user's runs in the process that describes a module: the engine checks what it says."""
    info = FunctionInfo(**{"name": "f", "module": "m", "is_async": True, **options})  # type: ignore[arg-type]
    ending: Any = SimpleNamespace(tally=SimpleNamespace(close=lambda: None), ending="ended")

    async def described() -> Described:
        description = Description("m", "m.py", lambda _lines, _dropped: None, lambda: None)
        description.from_worker(ending, Described(ModuleInfo(module="m", path="m.py", functions=(info,)), {}, True))
        description.gone(ending)
        return await description.done

    assert asyncio.run(described()).module.error == f"m.py: {told}"


class Decoy:
    """Nothing that JSON can say."""


@dataclass
class Order:
    item: str
    count: int = 1


class Parcel(msgspec.Struct):
    orders: list[Order]
    note: str | None = None


class Move(pydantic.BaseModel):
    delta: int


@function
async def place_order(ctx: Context, order: Order) -> int:
    return order.count


@function
async def send_parcel(ctx: Context, parcel: Parcel) -> None: ...


@function(unknown_fields="ignore")
async def lenient(ctx: Context, order: Order) -> None: ...


@function
async def chatty(ctx: Context) -> None: ...


@function
async def square(ctx: Context, number: int) -> int:
    return number * number


@function
async def move(ctx: Context, move: Move) -> None: ...


@function
async def shout(ctx: Context, text: str) -> str:
    return text.upper()


@function
async def anything(ctx, value):  # type: ignore[no-untyped-def]
    return value


@function
async def nan_child(ctx: Context) -> float:
    return float("nan")


@function(timeout_s=5)
async def returns_list(ctx: Context) -> list[int]:
    return []


ORDER = 'an object like {"item": str, "count": int = 1}'
PAYLOADS: list[tuple[str, Any, Payload, str]] = [
    ("B23", place_order, Payload("text", b"tea"), f"place_order takes {ORDER}, and 'tea' is text"),
    ("B23-int", square, Payload("text", b"four"), "square takes int, and 'four' is text"),
    ("B24", chatty, Payload("text", b"extra"), "chatty takes no payload: leave it out"),
    ("B24-json", chatty, Payload("json", b'"extra"'), "chatty takes no payload: leave it out"),
    ("B25", square, NO_PAYLOAD, "square needs a payload (int)"),
    ("B25-object", place_order, NO_PAYLOAD, f"place_order needs a payload ({ORDER})"),
    (
        "B28",
        place_order,
        Payload("json", b'{"item": "tea", "cuont": 2}'),
        "payload of place_order: unknown field 'cuont'; did you mean count?",
    ),
    (
        "B28-text",
        place_order,
        Payload("text", b'{"item": "tea", "cuont": 2}'),
        "payload of place_order: unknown field 'cuont'; did you mean count?",
    ),
    (
        "B28-nested",
        send_parcel,
        Payload("json", b'{"orders": [{"item": "tea"}, {"item": "milk", "colour": 1}]}'),
        "payload of send_parcel: unknown field 'colour'",
    ),
    (
        "B38",
        place_order,
        Payload("json", b'{"item": "tea",\n count: 2}'),
        "payload of place_order is not JSON: expecting property name enclosed in double quotes at line 2, column 2",
    ),
    (
        "B38-cut",
        place_order,
        Payload("json", b'{"item": "te'),
        "payload of place_order is not JSON: it ends at line 1, column 13 before it is complete",
    ),
    (
        "B38-pydantic",
        move,
        Payload("json", b"{delta: 1}"),
        "payload of move is not JSON: expecting property name enclosed in double quotes at line 1, column 2",
    ),
    (
        "B38-typed",
        place_order,
        Payload("text", b'{"item": tea}'),
        (f"place_order takes {ORDER}, and '{{\"item\": tea}}' is not JSON: expecting value at line 1, column 10"),
    ),
    *(
        (
            f"B39-{fn.__name__}",
            fn,
            Payload("json", b'"\\ud800"'),
            (
                f"payload of {fn.__name__} is not JSON: \\ud800 at line 1, column 2 is half of a surrogate pair, "
                "which is not text"
            ),
        )
        for fn in (shout, anything, square)
    ),
    (
        "A5-payload",
        square,
        Payload("json", b"NaN"),
        "payload of square is not JSON: NaN is not a value of JSON: send null or a string",
    ),
]


@pytest.mark.parametrize(("fn", "payload", "told"), [row[1:] for row in PAYLOADS], ids=[row[0] for row in PAYLOADS])
def test_what_the_sender_of_a_payload_is_told(fn: Any, payload: Payload, told: str) -> None:
    """What the function takes, what came, and where it is wrong."""
    with pytest.raises(InvalidArgument) as caught:
        Function.of(fn).arguments(payload)
    assert caught.value.message == told
    assert caught.value.field.startswith("payload")


def test_fields_that_are_unknown_may_be_ignored() -> None:
    """Where the function says so, and in messages, which outlive the version that pushed them."""

    @consume("orders", book="shop")
    async def ship(ctx: Context, order: Order) -> None: ...

    @consume("orders", book="shop", unknown_fields="refuse")
    async def strict(ctx: Context, order: Order) -> None: ...

    payload = Payload("json", b'{"item": "tea", "colour": "red"}')
    for fn in (lenient, ship):
        assert Function.of(fn).arguments(payload) == (Order("tea"),)
    with pytest.raises(InvalidArgument, match="unknown field 'colour'"):
        Function.of(strict).arguments(payload)


LAMBDA = lambda: 1  # noqa: E731 - it is what a function returns
PENDING = asyncio.sleep(0)
PENDING.close()  # else Python warns that nobody has awaited it
CYCLE: list[Any] = []
CYCLE.append(CYCLE)
NO_FORM = "make it text, a number, a list, a dict or a dataclass"
RESULTS: list[tuple[str, Any, Any, str]] = [
    ("A5", nan_child, float("nan"), "the result of nan_child is NaN, which JSON cannot say: return None or a string"),
    ("A5-any", anything, float("nan"), "the result of anything is NaN, which JSON cannot say: return None or a string"),
    (
        "A5-deep",
        anything,
        {"a": [1.0, None, float("-inf")]},
        "the result of anything has -infinity at $.a[2], which JSON cannot say: return None or a string",
    ),
    (
        "B40-object",
        anything,
        Decoy(),
        f"the result of anything cannot be written as JSON: it holds an object of type Decoy: {NO_FORM}",
    ),
    (
        "no await",
        anything,
        PENDING,
        "the result of anything cannot be written as JSON: it holds an object of type coroutine: an await is missing",
    ),
    (
        "B40-lambda",
        anything,
        [LAMBDA],
        f"the result of anything cannot be written as JSON: it holds an object of type function: {NO_FORM}",
    ),
    (
        "B40-annotated",
        square,
        Decoy(),
        f"the result of square cannot be written as JSON: it holds an object of type Decoy: {NO_FORM}",
    ),
    (
        "B40-cycle",
        anything,
        CYCLE,
        "the result of anything cannot be written as JSON: it is nested too deeply, or holds itself",
    ),
    (
        "B40-surrogate",
        shout,
        "\ud800",
        (
            "result of shout must be text that UTF-8 can hold: 'utf-8' codec can't encode character '\\ud800' in "
            "position 0: surrogates not allowed"
        ),
    ),
    (
        "misfit",
        returns_list,
        ["a"],
        "result of returns_list: Expected `int`, got `str` - at `$[0]`",
    ),
]


@pytest.mark.parametrize(("fn", "value", "told"), [row[1:] for row in RESULTS], ids=[row[0] for row in RESULTS])
def test_what_the_caller_of_a_function_is_told_of_its_result(fn: Any, value: Any, told: str) -> None:
    """Why it cannot travel, and where the function is; its annotation is named only if that is what it missed."""
    with pytest.raises(FunctionFailed) as caught:
        Function.of(fn).encode_result(value)
    place = f"{__file__}:{inspect.getsourcelines(fn)[1] + 1}"
    is_misfit = told.startswith("result of")
    what = f": the function at {place} does not return what it is annotated with" if is_misfit else f" ({place})"
    assert caught.value.message == told + what


def test_a_payload_that_json_cannot_say_is_not_sent() -> None:
    """By name as from a client, and by object, as between functions: the same words."""
    told = "the payload of square is NaN, which JSON cannot say: pass None or a string"
    for encode in (lambda: encode_any(float("nan"), "payload of square"), lambda: SQUARE.encode_payload(float("nan"))):
        with pytest.raises(InvalidArgument) as caught:
            encode()
        assert caught.value.message == told


SQUARE = Function.of(square)


def test_the_models_of_pydantic_say_it_too() -> None:
    """They write null for what JSON cannot say, as msgspec does."""

    class Reading(pydantic.BaseModel):
        value: float | None

    for value in (Reading(value=float("inf")), {"reading": Reading(value=float("inf"))}):
        with pytest.raises(InvalidArgument, match=r"has infinity at \$\.(reading\.)?value, which JSON cannot say"):
            encode_any(value, "payload of f")
    codec = codec_for(Reading, "result of f")
    with pytest.raises(InvalidArgument, match=r"the result of f has infinity at \$.value, which JSON cannot say"):
        codec.encode(Reading(value=float("inf")), "result of f")
    assert codec.encode(Reading(value=None), "result of f") == Payload("json", b'{"value":null}')
