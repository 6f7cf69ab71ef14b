"""Errors of the store, and what to do next. All of them are `BokiError`s and certain: nothing changed.

BokiError
├── NotFound
│   └── NoSuchObject  there is no object, map or value of that name: over HTTP and in a shell
├── Trimmed
│   └── KeyExpired  something was committed under the key, so long ago that its result is not kept
├── WrongState
│   └── WrongVersion  the object has another version than a request over HTTP names
├── ConflictError   other transactions changed what this one has read: run it again
└── WrongShape      the object does not have the shape that an update or a path needs
"""

from __future__ import annotations

from collections.abc import Iterable

from boki import BokiError, NotFound, Trimmed, WrongState
from boki.libs.fold.arguments import few_of, of_append


class NoSuchObject(NotFound):
    """There is no object, map or value of that name."""

    code = "no_such_object"


class KeyExpired(Trimmed):
    """An update or a transaction was committed under the key, at `seqnum`, and its result can no longer be told.

    The past that it needs was trimmed: keep more of it by `store.configure(history_s=...)`. This repetition changed
    nothing, and the first one counts.
    """

    code = "key_expired"


class WrongVersion(WrongState):
    """The object does not have the version that `If-Match` or `If-None-Match` names, so nothing was changed."""

    code = "wrong_version"
    http_status = 412


class ConflictError(BokiError):
    """Other transactions changed what this one has read, so it was not committed. `objects` names them.

    Run it again: `@store.transactional` does.
    """

    code = "conflict"
    http_status = 409
    default_retryable = True


class UsedBefore(ConflictError):
    """A transaction was committed under the key: run this one again, and it reads what that one has read."""


class WrongShape(BokiError):
    """The object does not have the shape that an update or a path needs, as when a path leads through a number."""

    code = "wrong_shape"
    http_status = 409


def of_object(error: BokiError, name: str) -> BokiError:
    """The same refusal, which names the object, or the map whose partition this is: an update may be one of many."""
    owner, is_part, _ = name.partition("/")
    thing = "map" if is_part else "object"
    return type(error)(f"{thing} {owner!r}: {error.message}", **{**error.details, "object": owner})


def of_commit(error: BokiError) -> BokiError:
    """An error of the append of a commit, in words of the transaction: its caller appends nothing."""
    told = "a transaction may write at most {limit} in all, and nothing was committed: split it"
    return of_append(error, "updates", told)


def conflict(objects: Iterable[str], book: str, *, tries: int = 0) -> ConflictError:
    """The error. `tries`: how often the commit was tried, if others were always faster."""
    names = sorted(objects)
    shown = few_of([*map(repr, names)], 5)
    why = f"was overtaken {tries} times by changes of" if tries else "read what others changed meanwhile in"
    return ConflictError(
        f"the transaction {why} {shown} of book {book!r}: nothing was committed; run it again, as "
        "@store.transactional does",
        objects=names,
    )


def key_expired(key: str | None, book: str, seqnum: int) -> KeyExpired:
    """The error."""
    return KeyExpired(
        f"what was committed under key {key!r} in book {book!r} at seqnum {seqnum} counts, but its result was trimmed: "
        "this repetition changed nothing; have the history last at least as long as keys are repeated",
        key=key,
        seqnum=seqnum,
    )


def used_before(book: str) -> UsedBefore:
    """The error."""
    return UsedBefore(
        f"a transaction of book {book!r} was committed under this key by somebody else just now: run this one again, "
        "and it finds what that one has done",
        objects=[],
    )
