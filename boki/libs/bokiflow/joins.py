"""What a transaction gives to a child that joins it, and what the child gives back. Values."""

from __future__ import annotations

import msgspec

from boki.extending import Payload
from boki.libs.bokistore.updates import Update


class Base(msgspec.Struct, frozen=True, array_like=True):
    """What a child begins with: the moment as of which it reads, and what its parents have written so far."""

    snapshot: int
    written: list[tuple[str, list[Update]]]


class JoinRecord(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    """The first record in the inbox of a child that joins the transaction of its parent."""

    base: Base


class Came(msgspec.Struct, frozen=True, array_like=True):
    """What a child has come to: its result, the objects that it has used, and what it wants to write."""

    result: Payload
    used: list[str]
    written: list[tuple[str, list[Update]]]
    extra: list[tuple[bytes, tuple[str, ...]]]
