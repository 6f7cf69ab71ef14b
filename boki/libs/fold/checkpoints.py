"""Checkpoints of a fold: written in parts, found again, and trimmed by, as steps.

A checkpoint of a stream stands under a tag of its own, in parts that fit into records, and ends with an `End`, which
also stands in the stream. Each part is appended under the condition that the part before it is the last record of the
tag. So of two writers one gives up, and the parts of a checkpoint that has an end are neighbours under its tag.

What a checkpoint covers is trimmed by its writer, when the fold comes to the end of it: a reader that is there, or
begins from this checkpoint or a later one, needs nothing below `floor`. What a reader finds torn or damaged it passes
by for the one before; if that was trimmed meanwhile a newer one is complete, and the reader looks again.

A library whose records say the same in another form implements `Format`; others take `PLAIN`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from boki import ConditionFailed, CorruptData, Expect, NewRecord, NotFound, Record, Trimmed, Unavailable
from boki.libs.fold.codec import RecordCodec
from boki.libs.fold.steps import Pause, ReadPage, Steps, Trim, append, page, tail
from boki.retry import Backoff

PART_BYTES: Final = 500_000
"""The size of a part."""
RACING: Final = Backoff(first_s=0.02, longest_s=0.4, jitter=0.0, tries=20)
"""How often a newer checkpoint may take the place of the one that is being read."""

S = TypeVar("S")


class Part(msgspec.Struct, frozen=True, array_like=True, tag="part"):
    """A part of a checkpoint."""

    data: bytes


class End(msgspec.Struct, frozen=True, array_like=True, tag="end"):
    """A checkpoint is complete. It stands in the stream, and under the checkpoints' tag."""

    covers: int
    """It reflects every record of the stream up to this one, and none above."""
    first: int
    """Where its parts begin."""
    floor: int
    """Nothing below this is needed by the state."""


class Format(Protocol):
    """How a library writes parts and ends."""

    def part(self, data: bytes) -> bytes:
        """The record of a part."""

    def end(self, end: End) -> bytes:
        """The record of an end."""

    def read(self, record: Record) -> Part | End | None:
        """What a record of the checkpoints' tag is; None if it is neither, and skipped."""


class _Plain:
    """The form for libraries that have none of their own."""

    def __init__(self) -> None:
        self._codec: RecordCodec[Part | End] = RecordCodec("a checkpoint", 1, Part | End)

    def part(self, data: bytes) -> bytes:
        return self._codec.encode(Part(data))

    def end(self, end: End) -> bytes:
        return self._codec.encode(end)

    def read(self, record: Record) -> Part | End | None:
        kind = self._codec.own(record.data)
        if isinstance(kind, End) and not 0 <= kind.first < record.seqnum > kind.covers >= 0:
            return None  # of somebody who lies: it would be trimmed by
        return kind


PLAIN: Final[Format] = _Plain()


class Loaded(msgspec.Struct, Generic[S], frozen=True):
    """A state from a checkpoint, and its end."""

    state: S
    end: End


class Checkpoints(Generic[S]):
    """The checkpoints of one stream. `decode` makes a state of the bytes; None if these are no valid state."""

    def __init__(
        self, stream: str | None, tag: str, decode: Callable[[bytes, End], S | None], form: Format = PLAIN
    ) -> None:
        self.stream = stream
        self.tag = tag
        self._decode = decode
        self._form = form

    # Writing

    def save(
        self, data: bytes, covers: int, floor: int, tags: Sequence[str], when: Sequence[Expect] = ()
    ) -> Steps[End | None]:
        """Write the state after record `covers`, taken before this begins, as it continues meanwhile; its end, which
        has these tags and that of checkpoints. None: another process was quicker, or has written a later one, or what
        each append depends on (`when`) does not hold.
        """
        try:
            last = yield from tail(self.tag)
            newest = yield from self._end_until(last)
            if newest is not None and newest[0].seqnum > covers:
                return None  # what it drops this one may need
            before, first = 0 if last is None else last.seqnum, 0
            for start in range(0, max(len(data), 1), PART_BYTES):
                part = NewRecord(self._form.part(data[start : start + PART_BYTES]), (self.tag,))
                (before,) = yield from append([part], [Expect(self.tag, before), *when])
                first = first or before
            end = End(covers, first, floor)
            record = NewRecord(self._form.end(end), (*tags, self.tag))
            yield from append([record], [Expect(self.tag, before), *when])
        except (ConditionFailed, Trimmed):
            return None
        return end

    def trim(self, end: End, floor: int) -> Steps[None]:
        """Trim by a checkpoint of one's own that the fold has come to. `floor`: what the fold needs by now. May be done
        twice.
        """
        below = min(floor, end.floor)
        if self.stream is not None:
            yield Trim(below, self.stream)
        yield Trim(end.first, self.tag)

    # Reading

    def newest(self) -> Steps[Loaded[S] | None]:
        """The newest state that can be read; None if there is none, and the stream is to be read from the beginning.

        `CorruptData`: there are checkpoints, none of them can be read, and what they covered was trimmed.
        """
        for tries in range(1, int(RACING.tries) + 1):
            try:
                return (yield from self._newest())
            except (Trimmed, NotFound):
                yield Pause(RACING.pause_s(tries))
        raise Unavailable(f"checkpoints under tag {self.tag!r} are written faster than they can be read: try again")

    def _newest(self) -> Steps[Loaded[S] | None]:
        last = yield from tail(self.tag)
        found = yield from self._end_until(last)
        loaded: Loaded[S] | None = None
        skipped = 0
        while found is not None and loaded is None:
            record, end = found
            loaded = yield from self._load(record.seqnum, end)
            if loaded is None:
                skipped = skipped or record.seqnum
                found = yield from self._end_until((yield from tail(self.tag, max_seqnum=record.seqnum - 1)))
        if skipped or found is None:
            yield from self._check_tail(last)
        if loaded is None and skipped and (yield from page(ReadPage(self.stream, limit=1))).first_seqnum:
            raise CorruptData(
                f"the checkpoint under tag {self.tag!r} at {skipped} cannot be read, there is none before it, and the "
                "records that it covers were trimmed"
            )
        return loaded

    def _check_tail(self, last: Record | None) -> Steps[None]:
        newest = None if last is None else (yield from tail(self.tag))
        if newest is not None and last is not None and newest.seqnum > last.seqnum:
            raise Trimmed(f"a newer checkpoint under tag {self.tag!r} may have taken the place of those before it")

    def _end_until(self, record: Record | None) -> Steps[tuple[Record, End] | None]:
        """The last end under the tag, up to this record."""
        while record is not None:
            kind = self._form.read(record)
            if isinstance(kind, End):
                return record, kind
            record = yield from tail(self.tag, max_seqnum=record.seqnum - 1)
        return None

    def _load(self, stop: int, end: End) -> Steps[Loaded[S] | None]:
        """The state in the parts of a checkpoint; None if they are not all there, or do not make one."""
        parts: list[bytes] = []
        start = end.first
        while start < stop:
            read = yield from page(ReadPage(self.tag, start, stop))
            if read.first_seqnum > end.first:
                return None
            parts += [part.data for record in read.records if isinstance(part := self._form.read(record), Part)]
            start = read.next_start if read.records else stop
        state = self._decode(b"".join(parts), end)
        return None if state is None else Loaded(state, end)
