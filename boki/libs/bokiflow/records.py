"""Records of workflows: what stands in a run's journal and in its inbox.

A workflow run is a logged call. In the LogBook of that call it has two tags:

- the **journal** holds what the run itself did, one record for each outcome: the n-th record is appended under the
  condition that the tag has had n records (`Expect(tag, count=n)`), so that the log decides between two executions of
  one run, place by place, and several appends may be in flight;
- the **inbox** holds what others sent: signals, updates, resolved promises, requests to cancel or to pause. Anyone may
  append to it at any time, before the start and after the end.

Updates and their answers have a third tag beside that of the inbox: see `boki.libs.bokiflow.answering`.

Journal and inbox never conflict. Each journal record says in `seen` which message of the inbox was delivered last
before it, so a replay delivers both in the same order.

**Writers.** The condition on the count alone is not enough while several appends are in flight: if place 3 is lost to
another execution, the record for place 4 may still find four records in front of it. So a record names its writer and
the place where that writer began, and `boki.libs.bokiflow.history` skips a record whose predecessor is of another one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from boki import Expect
from boki.extending import Failure, Payload
from boki.libs.bokiflow.gates.records import Admission, Asked, GateKept, GateRecord
from boki.libs.bokiflow.joins import JoinRecord
from boki.libs.bokiflow.locks.state import Freed, LockRecord, Queued, Wanted
from boki.libs.fold.codec import RecordCodec

VERSION: Final = 2
"""Version 1 knew no locks, no limits and no children in transactions."""
_JOURNAL: Final = "!fj:"


class Result(msgspec.Struct, frozen=True, array_like=True):
    """How a command ended: with a value or with a failure; with neither if it was never known how (`unknown`)."""

    value: Payload | None = None
    failure: Failure | None = None


class Done(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Command number `n` has ended: a step, a child workflow or a function call.

    `name` and `digest` (of the arguments) identify it: a replay that starts something else under the number diverges.
    """

    n: int
    name: str
    digest: bytes
    result: Result
    began_us: int = 0
    attempts: int = 1


class Fired(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The timer that is command number `n` is over."""

    n: int


class Intended(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Step `n`, which may run at most once, is about to begin."""

    n: int
    name: str
    digest: bytes


class Retrying(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Attempt number `attempts` of step `n` has failed, and the next one is due at `next_us`.

    `name` and `digest` as in `Done`; "": it is not known of which step, as in records of earlier versions.
    """

    n: int
    attempts: int
    next_us: int
    began_us: int
    failure: Failure
    name: str = ""
    digest: bytes = b""


class Beat(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """What step `n` said of its progress, for its next attempt. `name` and `digest` as in `Retrying`."""

    n: int
    details: Payload
    name: str = ""
    digest: bytes = b""


class Began(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Nothing but what its header says: when the run began, as of where it has read, or which message was delivered
    while something else was under way.
    """


class Continued(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The workflow begins again with this payload; of the journal nothing before this record counts.

    `place` is the record's own place in the journal, and `number` counts the continuations. Its header's `seen` is
    lowered to where the inbox is to be read from; `taken` names the messages behind it that were taken nevertheless.
    `kept` are messages in front of it that were not taken: where each stood, and its record.
    """

    payload: Payload
    place: int
    number: int
    taken: tuple[int, ...] = ()
    kept: tuple[tuple[int, bytes], ...] = ()


class Marked(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """A decision that the run made when it first came to it, such as which code it follows; by name."""

    name: str
    value: Payload


class Rewound(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """What is recorded of command `n` and those after it is forgotten: the body does them again.

    `scopes`: from which number on which scope names what the commands number (`Scopes`); the last one is new. Requests
    to cancel, to pause and to resume are forgotten, too, that stand before this record and were not delivered before
    what is kept. `opens`: commands in front of `n` that had not ended when a fork was made, and the scope of their
    keys: the first workflow runs them, too.
    """

    n: int
    scopes: tuple[tuple[int, str], ...]
    opens: tuple[tuple[str, tuple[int, ...]], ...] = ()


class Ended(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """The workflow has ended, and no other record could carry the tag that says so.

    It may come to stand behind messages to the next life. So requests to end or to pause in front of it were for the
    life that has ended if they were sent until `until_us`, and that life has heard what its header says. 0: an earlier
    version has written it, and all that stands in front of it was for that life.
    """

    until_us: int = 0


Fact = Done | Fired | Intended | Retrying | Beat | Began | Continued | Marked | Rewound | Ended
"""What a journal record says. Only `Done` and `Fired` are events that the body of the workflow waits for."""


class Entry(msgspec.Struct, frozen=True, array_like=True, tag="f"):
    """A journal record.

    `writer` and `base` say who wrote it: a random number, and the place of that writer's first record. A record that
    never counts says its own place there, by `uncounted`. `seen` is the seqnum of the inbox message that was delivered
    last before it (0: none). `at_us` is the workflow's time afterwards. `began_us` is when the workflow began, in the
    first record of the journal. `life` tells the runs of one id apart that was started again after its workflow had
    ended. `read_at` is the seqnum as of which the body read the log since the record before (0: it read nothing), see
    `boki.libs.bokiflow.positions`. `stood_at`: this is a copy of a record of another workflow at that seqnum, as of
    which the body reads. `progress_run` is the number of the last run of the call that had made progress when this was
    written (0: not known), so that the last record alone tells how often the workflow was lost since.
    """

    writer: int
    base: int
    seen: int
    at_us: int
    fact: Fact
    began_us: int = 0
    life: int = 0
    read_at: int = 0
    stood_at: int = 0
    progress_run: int = 0


class Signalled(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A message without an answer."""

    name: str
    payload: Payload


class Updated(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A message that wants an answer. `id` is the same when it is sent again."""

    name: str
    payload: Payload
    id: str


class Answered(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The run's answer to an update; of several of one id the first counts."""

    id: str
    result: Result


class Resolved(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The promise of that name has a value or an error; of several the first counts."""

    name: str
    result: Result


class CancelRequested(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """End the workflow by cancelling it, so that it can clean up. `life`: only that life of it (0: whichever hears)."""

    reason: str = ""
    life: int = 0


class Paused(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Do not continue until `Resumed`. `life` as in `CancelRequested`."""

    reason: str = ""
    life: int = 0


class Resumed(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Continue. `life` as in `CancelRequested`."""

    life: int = 0


Note = Signalled | Updated | Answered | Resolved | CancelRequested | Paused | Resumed | Wanted | Freed | Admission
"""What an inbox record says. Records of locks and limits are sent to the workflows that they concern."""


class Message(msgspec.Struct, frozen=True, array_like=True, tag="m"):
    """An inbox record. A copy of one in another workflow's inbox says when and at which seqnum that stood there."""

    note: Signalled | Updated | Answered | Resolved | CancelRequested | Paused | Resumed
    at_us: int = 0
    stood_at: int = 0


CODEC: Final[RecordCodec[Entry | Message | LockRecord | GateRecord | JoinRecord]] = RecordCodec(
    "workflows",
    VERSION,
    Entry | Message | LockRecord | GateRecord | JoinRecord,
    since={LockRecord: 2, GateRecord: 2, JoinRecord: 2},
)


def journal_tag(run: str) -> str:
    """The tag of a run's journal."""
    return _JOURNAL + run


def inbox_tag(workflow: str) -> str:
    """The tag of a workflow's inbox."""
    return f"!fi:{workflow}"


def never(tag: str) -> Expect:
    """A condition that no append meets, because no tag has had that many records. So nothing is appended; only an
    append under a key that was used before succeeds.
    """
    return Expect(tag, count=(1 << 62) - 1)


def updates_tag(workflow: str) -> str:
    """The tag of a workflow's updates and their answers, which outlive their place in the inbox."""
    return f"!fu:{workflow}"


def ended_tag(keep_s: float) -> str:
    """The tag of the last journal records of workflows whose history is kept for that long after they have ended."""
    return f"!fe:{keep_s:g}"


def run_of(tags: Iterable[str]) -> str:
    """Whose journal a record is in, by its tags; "": in none."""
    return next((tag.removeprefix(_JOURNAL) for tag in tags if tag.startswith(_JOURNAL)), "")


def uncounted(place: int) -> int:
    """The `base` of the record at that place which only takes the place and never counts; and the place of that base.
    Earlier versions wrote that of place 0 always.
    """
    return -1 - place


def entry_of(data: bytes) -> Entry | None:
    """The journal record with these data; None: a stranger's."""
    record = CODEC.own(data)
    return record if isinstance(record, Entry) else None


def note_of(data: bytes) -> Note | None:
    """What the inbox record with these data says; None: a stranger's."""
    message = message_of(data)
    return None if message is None or isinstance(message.note, Queued | Asked | GateKept) else message.note


def message_of(data: bytes) -> Message | LockRecord | GateRecord | None:
    """The inbox record with these data; None: a stranger's, or of no use to a workflow."""
    record = CODEC.own(data)
    match record:
        case LockRecord(note=Wanted() | Freed()) | GateRecord(note=Admission()) | Message():
            return record
        case _:
            return None


def encode_entry(entry: Entry) -> bytes:
    """The record data of a journal record."""
    return CODEC.encode(entry)


def encode_note(note: Note, at_us: int = 0, stood_at: int = 0) -> bytes:
    """The record data of an inbox record."""
    if isinstance(note, Admission):
        return CODEC.encode(GateRecord(note, at_us, stood_at))
    kind = LockRecord if isinstance(note, Wanted | Freed) else Message
    return CODEC.encode(kind(note, at_us, stood_at))  # type: ignore[arg-type] # each has its notes
