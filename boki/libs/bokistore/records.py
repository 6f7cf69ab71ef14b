"""What a store writes into its LogBook: records, their tags, and how both are spelled.

Tags of an object `x` (they begin with "!", so trims of the whole book spare them):

==========  ==========================================================================================
`!o:x`      the **row** of the object: every record that changes it. Its fold is the object
`!oc:x`     its checkpoints
==========  ==========================================================================================

Tags of the store:

==========  ==========================================================================================
`!os`       settings; the last record counts
`!of`       forks of this book, which need the past that they were made of
`!oo`       what this book is a fork of: its first record
==========  ==========================================================================================

A `Write` may change several objects: it stands under the tag of each. The writes of one transaction are one record, or
several neighbours if they are too many for one; `more` says how many records of the transaction follow, and all of them
count from the last one on. So no seqnum lies between two writes of one transaction. A transaction under a key that
changes no object, and commits records of the application, has an empty `Write` without tags before them.

A transaction is appended on the condition that the rows of all objects that it has read or written still end with the
records that it has seen. So the index of the log decides, in the order of the log, and what is aborted never appears in
any row: whoever reads a row needs to know nothing of other objects.

Anyone who may append to the book may append under these tags. What is not a record of the store is skipped, by every
reader alike; what does not fit the object changes nothing (`boki.libs.bokistore.views`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from boki import InvalidArgument, NewRecord
from boki.libs.bokistore.updates import Update
from boki.libs.fold.codec import RecordCodec
from boki.libs.fold.current_step import CURRENT_STEP

VERSION: Final = 1
ROW: Final = "!o:"
CHECKPOINTS: Final = "!oc:"
SETTINGS: Final = "!os"
FORKS: Final = "!of"
ORIGIN: Final = "!oo"
_NAME: Final = re.compile(r"[A-Za-z0-9._:@+=,~-]{1,128}")
_TAGS: Final = 16
"""Maximum number of tags of a record."""
_RECORD_BYTES: Final = 1_020_000
"""Of the updates in one record; the rest of its MiB is for names and envelopes."""


class Author(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Who wrote a version; "" where it is not known."""

    function: str = ""
    invocation: str = ""
    step: str = ""
    """The step of a workflow: its place, and its name."""


UNKNOWN_AUTHOR: Final = Author()


def signed(author: Author) -> Author:
    """The author as of now: with the step of a workflow, if one runs."""
    step = CURRENT_STEP.get()
    return msgspec.structs.replace(author, step=step) if step else author


class Write(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """Updates of objects, by name. All of them apply in the order of the list."""

    updates: list[tuple[str, list[Update]]]
    nonce: bytes = b""
    """What tells this write from any other with the same updates."""
    more: int = 0
    """Number of records of the same transaction that follow."""
    author: Author = UNKNOWN_AUTHOR
    is_transaction: bool = False


class Checkpoint(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """An object as the records of its row up to `last` have made it."""

    object: str
    last: int
    """The seqnum of the last record of the row that is in it."""
    since: int
    """From this seqnum on it holds."""
    version: int
    """From which seqnum on it has this value."""
    value: bytes | None
    """JSON; None: the object does not exist."""
    is_listed: bool = False
    """Whether the object is known to be in the list of names."""


class Settings(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=3):
    """What holds for a store."""

    history_us: int | None = None
    """This long the past of objects stays readable, by the log's time; None: forever."""


class Forked(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=4):
    """A fork was made of this book, or is no more: what it needs is kept until then."""

    book: str
    at: int
    """The seqnum as of which it is a copy; 0: as of this record."""
    is_over: bool = False


class Origin(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=5):
    """This book is a copy of the objects of another one, as they were."""

    book: str
    at: int


Record = Write | Checkpoint | Settings | Forked | Origin

codec: Final = RecordCodec[Record]("a store", VERSION, Record)


def row_tag(name: str) -> str:
    """The tag of the object's row."""
    return ROW + name


def checkpoints_tag(name: str) -> str:
    """The tag of the object's checkpoints."""
    return CHECKPOINTS + name


def check_object_name(name: object) -> str:
    """`name`, if it may name an object."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in {".", ".."}:
        raise InvalidArgument(
            f"an object's name must be 1 to 128 characters of A-Z a-z 0-9 . _ : @ + = , ~ -, not {name!r:.140}",
            field="object",
        )
    return name


def write_records(
    updates: Iterable[tuple[str, list[Update]]], nonce: bytes, author: Author, *, is_transaction: bool
) -> list[NewRecord]:
    """The updates as records: one, if they fit."""
    parts: list[list[tuple[str, list[Update]]]] = []
    size_bytes, names = 0, set[str]()
    for name, some in updates:
        for update in some:
            update_bytes = len(msgspec.msgpack.encode(update)) + len(name) + 16
            is_full = size_bytes + update_bytes > _RECORD_BYTES or len(names | {name}) > _TAGS
            if not parts or is_full:
                parts.append([])
                size_bytes, names = 0, set()
            if parts[-1] and parts[-1][-1][0] == name:
                parts[-1][-1][1].append(update)
            else:
                parts[-1].append((name, [update]))
            size_bytes += update_bytes
            names.add(name)
    return [
        NewRecord(
            codec.encode(Write(part, nonce, len(parts) - 1 - number, author, is_transaction)),
            tuple(dict.fromkeys(row_tag(name) for name, _ in part)),
        )
        for number, part in enumerate(parts)
    ]
