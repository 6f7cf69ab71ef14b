"""Unfinished calls as the ledger holds them, and those that are suspended in little memory.

A hundred thousand calls may sleep, so a suspended one is kept **packed**: what it shares with others of its function
once for all of them (`_Shape`), its numbers side by side, and the rest as one encoded value. A lookup returns it as a
`Waiting`. Lists and filters look at packed calls as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, ValuesView
from functools import lru_cache
from struct import Struct, pack, unpack_from
from typing import Final, Literal, NamedTuple

import msgspec

from boki.protocol.calls import PINNED, Attribute, Suspension, WakeOn, version_of


class Owner(NamedTuple):
    """An engine incarnation."""

    node: str
    incarnation: int


NOBODY: Final = Owner("", 0)

Unfinished = Literal["accepted", "running", "retrying", "suspended"]


class Waiting(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An unfinished call: the seqnum of its last record, when it may start (again), and who runs it."""

    id: str
    seqnum: int
    due_us: int
    owner: Owner = NOBODY
    starts: int = 0
    accepted: int = 0
    """The seqnum of its last `Accepted`, if that is not its last record."""
    state: Unfinished = "accepted"
    function: str = ""
    """With the fields below for lists; empty, if a version that had no lists has written it."""
    book: str = ""
    changed_us: int = 0
    accepted_us: int = 0
    attempts: int = 0
    started_us: int = 0
    last_started_us: int = 0
    suspension: Suspension | None = None
    """What it waits for, if `state` is "suspended"."""
    name: str = ""
    """See `ChosenId`."""
    attributes: dict[str, Attribute] | None = None

    @property
    def accepted_seqnum(self) -> int:
        """Where its payload is."""
        return self.accepted or self.seqnum


class _Shape(msgspec.Struct, frozen=True, array_like=True):
    """What suspended calls have in common that wait for the same kind of thing."""

    owner: Owner
    starts: int
    function: str
    book: str
    version: int | None
    """The call has this attribute and no other; None: its attributes are its own."""
    wakes: tuple[tuple[str, str], ...]
    """Books and tags, in which `_ID` stands for the id of the call."""


_Own = tuple[str, str, dict[str, Attribute] | None]
"""What one call has for itself: its name, the note of its suspension, and its attributes."""

_ID: Final = "\x00"
"""No tag contains it."""
_NUMBERS: Final = Struct("<8q")
_SEQNUM: Final = Struct("<q")
_DUE_AT: Final = 8
_ACCEPTED_AT: Final = 16
_CHANGED_AT: Final = 24
_MOST_SHAPES: Final = 1_024
_encode: Final = msgspec.msgpack.Encoder().encode
_shape_decoder: Final = msgspec.msgpack.Decoder(_Shape)
_own_decoder: Final = msgspec.msgpack.Decoder(_Own)


@lru_cache(maxsize=_MOST_SHAPES)
def _shared_shape(encoded: bytes) -> _Shape:
    return _shape_decoder.decode(encoded)


class PackedCall(msgspec.Struct, eq=False, gc=False):
    """A suspended call. It stays the same object until the call runs again."""

    id: str
    _shape: _Shape
    _data: bytes
    """`_NUMBERS`, the least seqnum of each record that wakes it, and `_Own`."""

    @staticmethod
    def of(waiting: Waiting) -> PackedCall:
        """The call in little memory."""
        return PackedCall(waiting.id, *_packed(waiting))

    def take(self, waiting: Waiting) -> None:
        """More is known of the same suspension."""
        self._shape, self._data = _packed(waiting)

    @property
    def state(self) -> Unfinished:
        """See `Waiting`, as for the properties below."""
        return "suspended"

    @property
    def seqnum(self) -> int:
        """Of its last record."""
        return int(_SEQNUM.unpack_from(self._data)[0])

    @property
    def due_us(self) -> int:
        """When it wakes, if no record comes; 0: at no time."""
        return int(_SEQNUM.unpack_from(self._data, _DUE_AT)[0])

    @property
    def accepted_seqnum(self) -> int:
        """Where its payload is."""
        return int(_SEQNUM.unpack_from(self._data, _ACCEPTED_AT)[0]) or self.seqnum

    @property
    def changed_us(self) -> int:
        """When it was suspended."""
        return int(_SEQNUM.unpack_from(self._data, _CHANGED_AT)[0])

    @property
    def owner(self) -> Owner:
        """Who runs it."""
        return self._shape.owner

    @property
    def function(self) -> str:
        """Of the call."""
        return self._shape.function

    @property
    def name(self) -> str:
        """See `ChosenId`."""
        return self._own[0]

    @property
    def attributes(self) -> dict[str, Attribute] | None:
        """See `ChosenId`."""
        version = self._shape.version
        return self._own[2] if version is None else only_version(version)

    @property
    def _own(self) -> _Own:
        own: _Own = _own_decoder.decode(memoryview(self._data)[_NUMBERS.size + 8 * len(self._shape.wakes) :])
        return own

    @property
    def wakes(self) -> tuple[WakeOn, ...]:
        """The records that wake it."""
        shape = self._shape
        least = unpack_from(f"<{len(shape.wakes)}q", self._data, _NUMBERS.size)
        return tuple(
            [
                WakeOn(book, tag.replace(_ID, self.id), seqnum)
                for (book, tag), seqnum in zip(shape.wakes, least, strict=True)
            ]
        )

    def unpacked(self) -> Waiting:
        """The call as everybody else knows it."""
        shape = self._shape
        seqnum, due_us, accepted, changed_us, accepted_us, started_us, last_started_us, attempts = _NUMBERS.unpack_from(
            self._data
        )
        name, note, attributes = self._own
        return Waiting(
            self.id,
            seqnum,
            due_us,
            shape.owner,
            shape.starts,
            accepted,
            "suspended",
            shape.function,
            shape.book,
            changed_us,
            accepted_us,
            attempts,
            started_us,
            last_started_us,
            Suspension(due_us, self.wakes, note),
            name,
            attributes if shape.version is None else only_version(shape.version),
        )


def _packed(waiting: Waiting) -> tuple[_Shape, bytes]:
    suspension = waiting.suspension
    assert suspension is not None, "it is suspended"
    attributes, version = waiting.attributes, None
    if attributes is not None and attributes == only_version(version_of(attributes)):
        attributes, version = None, version_of(attributes)
    wakes = tuple([(wake.book, wake.tag.replace(waiting.id, _ID)) for wake in suspension.wakes])
    shape = _Shape(waiting.owner, waiting.starts, waiting.function, waiting.book, version, wakes)
    own: _Own = waiting.name, suspension.note, attributes
    numbers = _NUMBERS.pack(
        waiting.seqnum,
        suspension.wake_us,
        waiting.accepted,
        waiting.changed_us,
        waiting.accepted_us,
        waiting.started_us,
        waiting.last_started_us,
        waiting.attempts,
    )
    least = pack(f"<{len(wakes)}q", *[wake.min_seqnum for wake in suspension.wakes])
    return _shared_shape(_encode(shape)), b"".join((numbers, least, _encode(own)))


@lru_cache(maxsize=64)
def only_version(version: int) -> dict[str, Attribute]:
    """The attributes of all calls that have nothing but a version."""
    return {PINNED: version}


class WaitingCalls(Mapping[str, Waiting]):
    """Unfinished calls by id, in the order in which they were put."""

    def __init__(self) -> None:
        self._calls: dict[str, Waiting | PackedCall] = {}

    def __getitem__(self, invocation_id: str) -> Waiting:
        found = self._calls[invocation_id]
        return found.unpacked() if isinstance(found, PackedCall) else found

    def __contains__(self, invocation_id: object) -> bool:
        return invocation_id in self._calls

    def __iter__(self) -> Iterator[str]:
        return iter(self._calls)

    def __len__(self) -> int:
        return len(self._calls)

    def kept(self, invocation_id: str) -> Waiting | PackedCall | None:
        """The call as it is held."""
        return self._calls.get(invocation_id)

    def all_kept(self) -> ValuesView[Waiting | PackedCall]:
        """All calls as they are held."""
        return self._calls.values()

    def put(self, waiting: Waiting) -> None:
        """Add the call, or replace what was known of it."""
        suspension = waiting.suspension
        known = self._calls.pop(waiting.id, None)
        if waiting.state != "suspended" or suspension is None or waiting.due_us != suspension.wake_us:
            self._calls[waiting.id] = waiting
        elif isinstance(known, PackedCall) and known.seqnum == waiting.seqnum:
            known.take(waiting)
            self._calls[known.id] = known
        else:
            self._calls[waiting.id] = PackedCall.of(waiting)

    def pop(self, invocation_id: str) -> None:
        """Remove the call, if it is there."""
        self._calls.pop(invocation_id, None)


def as_waiting(call: Waiting | PackedCall) -> Waiting:
    """The call as everybody but the ledger knows it."""
    return call.unpacked() if isinstance(call, PackedCall) else call
