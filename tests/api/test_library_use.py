"""Functions that libraries call: what a decorator was told reaches the library, and older versions still read it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from boki import ConfigError, function
from boki.api.function import Function
from boki.faces import Signature, Use
from boki.libs.bokiqueue import consume
from boki.libs.bokiqueue.consuming import Consumption, consumption_of
from boki.protocol.calls import FunctionInfo

# The description of `ship` below by the version before `uses`.
BEFORE = (
    b'{"name":"ship","module":"M","is_async":true,"doc":"","book":"shop","timeout_s":60.0,"concurrency":256,'
    b'"min_workers":0,"max_workers":null,"memory_bytes":null,"payload_schema":{"type":"array","items":{"type":'
    b'"integer"}},"payload_encoding":"json","needs_text":false,"result_schema":{"type":"null"},"result_encoding":'
    b'"json","consumes":{"queue":"orders","group":"g","batch":5,"concurrency":1,"retry_s":1.0},"http":[],'
    b'"streams":false,"retry":null}'
)


class Schedule(msgspec.Struct, frozen=True):
    every_s: float
    zone: str = "UTC"


def _refuse_payload(signature: Signature) -> None:
    if signature.takes_payload:
        raise ConfigError(f"{signature.where} is scheduled, and nothing passes it {signature.payload}")


def schedule(every_s: float, **options: Any) -> Callable[[Any], Any]:
    use = Use(library="schedules", decorator="@schedule", settings=Schedule(every_s), check=_refuse_payload)
    return function(use=use, **options)


def test_a_consumer_is_described_as_before() -> None:
    """Byte for byte: older gateways and clients find the queue where they look for it."""

    @consume("orders", book="shop", batch=5, group="g")
    async def ship(ctx, orders: list[int]) -> None: ...  # type: ignore[no-untyped-def]

    info = msgspec.structs.replace(Function.of(ship).info, module="M")
    assert msgspec.json.encode(info) == BEFORE


def test_a_consumer_that_an_older_version_describes_is_one() -> None:
    """Its settings are found by the library's name."""
    info = msgspec.json.decode(BEFORE, type=FunctionInfo)
    settings = info.settings_of("bokiqueue")
    assert settings is not None
    assert consumption_of(settings) == Consumption(queue="orders", group="g", batch=5)
    assert info.libraries == ("bokiqueue",)


def test_settings_of_a_library_travel_with_the_function() -> None:
    """Over every codec, next to those of another library, and without a trace in functions that none uses."""

    @schedule(5.0)
    async def tick(ctx) -> None: ...  # type: ignore[no-untyped-def]

    @function
    async def plain(ctx) -> None: ...  # type: ignore[no-untyped-def]

    info = Function.of(tick).info.used_by("bokiqueue", {"queue": "q"})
    for copy in (
        msgspec.json.decode(msgspec.json.encode(info), type=FunctionInfo),
        msgspec.msgpack.decode(msgspec.msgpack.encode(info), type=FunctionInfo),
    ):
        assert copy == info
        assert copy.settings_of("schedules") == {"every_s": 5.0, "zone": "UTC"}
        assert copy.settings_of("bokiqueue") == {"queue": "q"}
        assert copy.settings_of("others") is None
        assert copy.libraries == ("bokiqueue", "schedules")
    assert Function.of(plain).info.libraries == ()
    assert b"uses" not in msgspec.json.encode(Function.of(plain).info)


def test_a_library_refuses_functions_that_it_cannot_call() -> None:
    """Where they are decorated, with name and line."""
    with pytest.raises(ConfigError, match=r"^tick \(.*:\d+\) is scheduled, and nothing passes it int$"):

        @schedule(5.0)
        async def tick(ctx, count: int) -> None: ...  # type: ignore[no-untyped-def]


def test_a_library_sees_the_payload_as_it_is_annotated() -> None:
    """Text and bytes, which have no JSON schema, are not taken for anything."""
    seen: dict[str, Signature] = {}

    def noted(**options: Any) -> Callable[[Any], Any]:
        use = Use(library="l", decorator="@noted", settings=Schedule(1), check=lambda one: seen.update({"it": one}))
        return function(use=use, **options)

    for kind, shape in ((str, "str"), (bytes, "bytes"), (int, "int"), (list[str], "[str, ...]"), (Any, "anything")):

        async def f(ctx, value) -> None: ...  # type: ignore[no-untyped-def]

        f.__annotations__["value"] = kind
        noted()(f)
        assert (seen["it"].payload, seen["it"].takes_payload) == (shape, True)

    @noted()
    async def none(ctx) -> None: ...  # type: ignore[no-untyped-def]

    assert (seen["it"].payload, seen["it"].takes_payload, seen["it"].streams) == ("", False, False)


def test_errors_name_the_librarys_decorator_and_its_options() -> None:
    """A user of the library has never written `@function`."""
    with pytest.raises(ConfigError, match=r"^@schedule has no option zon; did you mean zone\? Its options: every_s, "):
        schedule(5.0, zon="CET")
    with pytest.raises(
        ConfigError, match=r"^@schedule has no option zone; did you mean name\? Its options: every_s, name, "
    ):
        schedule(5.0, zone="CET")  # a setting that the decorator does not take
    with pytest.raises(ConfigError, match=r"is decorated twice: leave one @function or @schedule$"):

        @schedule(5.0)
        @function
        async def tick(ctx) -> None: ...  # type: ignore[no-untyped-def]
