"""The folders of a pipeline's Parquet, and the one step by which a batch comes into them.

::

    records/batch=…/book=…/date=…    what fits the schema
    records/batch=…/_batch.json      whose batch this is, and what it holds
    dead/batch=…                     what does not fit
    _writing/RUN/batch=…             a batch that is not there yet
    _begun/_origin.json              what the lake was begun with, and its id
    _checkpoint                      Spark's own

A batch is written below `_writing` as a whole, dead letters and all, and renamed to its place below `records`: that
is the moment at which it is there. Of two runs that write the same batch the rename takes one. The dead letters are
inside, in a folder that no reader looks at, and are renamed to their own place next; whoever finds them there after a
crash does it. So at every moment each table has whole batches only, and each once.

A batch is on the disk before it is renamed, and its new name before `Lake.place` returns; so is what Spark has planned
of it. Whatever is said of the batch afterwards, in the progress book or by Spark's commit, outlives a power cut no
better than the batch. Spark's commit is not synced: if it is lost, the batch comes again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from boki.errors import ConfigError
from boki.spark.files import Files
from boki.spark.progress import Batch, BookProgress, added

_RECORDS: Final = "records"
_DEAD: Final = "dead"
_WRITING: Final = "_writing"
_BEGUN: Final = "_begun"
_ORIGIN: Final = "_origin.json"
_CHECKPOINT: Final = "_checkpoint"
_INSIDE: Final = "_dead"
_MANIFEST: Final = "_batch.json"
_PREFIX: Final = "batch="

Write = Callable[[str], None]
"""Writes Parquet into the folder of that name, which is not there yet."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What decides which records a pipeline's checkpoint stands for: a lake is of one of these forever."""

    pipeline: str
    book: str
    tag: str
    start: str


class _Begun(msgspec.Struct, frozen=True, kw_only=True):
    """Who and what a lake is."""

    run: str
    """The run that began it, by whose id it is known: a run begins no other lake."""
    origin: Origin


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch holds, in words that stay with it."""

    origin: Origin
    batch: Batch
    books: dict[str, BookProgress]
    columns: dict[str, str] = {}
    """The columns of the JSON, and their types, in the records of this batch; if it has none, in those before it."""


class Lake:
    """The folders of one pipeline, as one run of it uses them."""

    def __init__(self, files: Files, root: str, run: str) -> None:
        self._files = files
        self._root = root
        self._run = run

    @property
    def root(self) -> str:
        """The folder around all of them."""
        return self._root

    @property
    def checkpoint(self) -> str:
        """Where Spark keeps how far it is: beside the records, so that one cannot be moved without the other."""
        return f"{self._root}/{_CHECKPOINT}"

    def query(self) -> str | None:
        """The id of the query whose checkpoint it is; None if there is no checkpoint."""
        data = self._files.read(f"{self.checkpoint}/metadata")
        return str(msgspec.json.decode(data)["id"]) if data else None

    def end(self, batch: int) -> str:
        """Where a batch that is under way ends: the last line that Spark has noted about it."""
        data = self._files.read(f"{self.checkpoint}/offsets/{batch}") or b""
        return data.decode().rstrip("\n").rpartition("\n")[2]

    def planned(self) -> int:
        """The last batch that Spark has begun, by the checkpoint; -1 if there is none."""
        names = self._files.names(f"{self.checkpoint}/offsets")
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def last(self) -> tuple[int, Manifest | None] | None:
        """The last batch that is there; None if there is none. One without a manifest does not count."""
        batches = self._batches()
        return (batches[-1], self.manifest(batches[-1])) if batches else None

    def books(self) -> dict[str, BookProgress]:
        """What all batches together that are still there hold of each book."""
        together: dict[str, BookProgress] = {}
        for batch in self._batches():
            manifest = self.manifest(batch)
            if manifest is not None:
                together |= added(together, manifest.books)
        return together

    def manifest(self, batch: int) -> Manifest | None:
        """What the batch holds; None if it is not there."""
        data = self._files.read(f"{self._place(_RECORDS, batch)}/{_MANIFEST}")
        return msgspec.json.decode(data, type=Manifest) if data else None

    def check(self, origin: Origin) -> None:
        """`ConfigError` if what exists cannot be continued, and what to do."""
        found = self.last()
        if found is None:
            return
        batch, manifest = found
        where = f"{self._root}/{_RECORDS}"
        if manifest is None:
            raise ConfigError(
                f"{where}/{_PREFIX}{batch:09d} was not written by a pipeline: it has no {_MANIFEST}. Give the pipeline "
                "an output of its own"
            )
        self._check_origin(manifest.origin, origin)
        query = self.query()
        if query is None:
            raise ConfigError(
                f"{where} has batches up to {batch}, and their checkpoint, {self.checkpoint}, is gone: a new one would "
                f"begin at batch 0 again. Put it back; or begin again with another output, or remove {self._root}"
            )
        if query != manifest.batch.query:
            raise ConfigError(
                f"{where} was written with another checkpoint than {self.checkpoint}: that of query "
                f"{manifest.batch.query}, not {query}. Put it back, or begin again with another output"
            )

    def columns(self) -> dict[str, str]:
        """The columns of the JSON, and their types, in the records that exist."""
        found = self.last()
        return found[1].columns if found is not None and found[1] is not None else {}

    def check_columns(self, columns: Mapping[str, str]) -> None:
        """`ConfigError` if the schema lacks a column of what exists, or has it with another type. It may have more:
        readers who merge the schemas of batches, as Spark's mergeSchema does, find nulls in those before.
        """
        there = self.columns()
        wrong = [
            f"{name} is {columns[name]} now, and was {kind}" if name in columns else f"{name} {kind} is gone"
            for name, kind in there.items()
            if columns.get(name) != kind
        ]
        if wrong:
            raise ConfigError(
                f"schema: it does not fit the records in {self._root}: {'; '.join(wrong)}. Put these columns back as "
                "they were; new ones may stand beside them, under other names. Or begin again with another output"
            )

    def begin(self, origin: Origin) -> str:
        """Say what the lake is of, before a checkpoint stands for anything; the lake's id, which no other lake has.
        `ConfigError` if it was begun with something else; of two that begin at the same time one does.
        """
        place = f"{self._root}/{_BEGUN}"
        if self._files.read(f"{place}/{_ORIGIN}") is None:
            fresh = f"{self._root}/{_WRITING}/{self._run}/{_BEGUN}"
            self._files.write(f"{fresh}/{_ORIGIN}", msgspec.json.encode(_Begun(run=self._run, origin=origin)))
            if not self._take(fresh, place):
                self._files.remove(fresh)
        try:
            begun = msgspec.json.decode(self._files.read(f"{place}/{_ORIGIN}") or b"", type=_Begun)
        except msgspec.DecodeError:
            raise ConfigError(
                f"{place} does not say what the lake was begun with: begin again with another output"
            ) from None
        self._check_origin(begun.origin, origin)
        return begun.run

    def _check_origin(self, begun: Origin, origin: Origin) -> None:
        if begun != origin:
            raise ConfigError(
                f"{self._root} was begun with {_words(begun)}, and this is {_words(origin)}: its checkpoint "
                "knows nothing of the others. Give the pipeline another output (and another name), or put back what "
                "was changed"
            )

    def recover(self) -> None:
        """Finish what an earlier run has begun: bring the dead letters of the last batch to their place, and take away
        what it was writing. Only the run that may write does so.
        """
        batches = self._batches()
        if batches:
            self._bring_dead(batches[-1])
        writing = f"{self._root}/{_WRITING}"
        for name in self._files.names(writing):
            old, aside = f"{writing}/{name}", f"{writing}/_old"
            if name == self._run:
                continue
            if name != "_old":
                # whoever still writes there must not bring a part of it to its place: first it is gone, at once
                self._files.remove(aside)
                if not self._take(old, aside):
                    continue
            self._files.remove(aside)

    def place(
        self, manifest: Manifest, *, records: Write | None, dead: Write | None, check: Callable[[], None]
    ) -> Manifest:
        """Bring a batch to its place, unless it is there; what exists, and on the disk. `records` and `dead` write
        it, if there are any; `check` raises if this run is not to write any more. `ConfigError` if another batch stands
        in the place.
        """
        batch = manifest.batch.number
        found = self.manifest(batch)
        if found is None:
            fresh = f"{self._root}/{_WRITING}/{self._run}/{_PREFIX}{batch:09d}"
            if records:
                records(fresh)
            if dead:
                dead(f"{fresh}/{_INSIDE}")
            self._files.write(f"{fresh}/{_MANIFEST}", msgspec.json.encode(manifest))
            self._files.keep(fresh)
            self._keep_plan(batch)
            check()
            if self._files.move(fresh, self._place(_RECORDS, batch)):
                found = manifest
            else:
                self._files.remove(fresh)
                found = self.manifest(batch)
        else:
            # whoever has brought it there may have been killed before it was on the disk
            self._files.keep(self._place(_RECORDS, batch))
        self._check_same(found, manifest)
        self._bring_dead(batch)
        return found or manifest

    def check_written(self, folder: str, count: int) -> None:
        """`ConfigError` if Spark has written this many rows there, and here they are not: each of its executors writes
        to the disk of its own machine, and nothing of Spark's misses what stands on another.
        """
        found = self._files.rows(folder)
        if found is not None and found != count:
            raise ConfigError(
                f"output: of {count:,} rows that Spark has written to {folder}, {found:,} are on this machine. If its "
                "executors run on others, give an output that all share: on HDFS, in an object store, or in a folder "
                "that is mounted everywhere"
            )

    def _keep_plan(self, batch: int) -> None:
        """A batch that is there, and of whose plan a power cut has left nothing, would be taken for another one."""
        for name in ("metadata", ".metadata.crc", f"offsets/{batch}", f"offsets/.{batch}.crc"):
            self._files.keep(f"{self.checkpoint}/{name}")

    def _check_same(self, found: Manifest | None, manifest: Manifest) -> None:
        if found is None or found.batch != manifest.batch:
            raise ConfigError(
                f"{self._place(_RECORDS, manifest.batch.number)} holds another batch than {self.checkpoint} says: was "
                "a checkpoint put back, or were the folders? Put both back as they were at one time, or begin again "
                "with another output"
            )

    def _bring_dead(self, batch: int) -> None:
        inside = f"{self._place(_RECORDS, batch)}/{_INSIDE}"
        if self._files.names(inside) and not self._take(inside, self._place(_DEAD, batch)):
            raise ConfigError(
                f"{self._place(_DEAD, batch)} is there, and so are dead letters in {inside}, which belong there: move "
                "the one that is not of this pipeline away"
            )

    def _take(self, folder: str, place: str) -> bool:
        """Move it; also True if somebody else just has."""
        try:
            return self._files.move(folder, place)
        except FileNotFoundError:
            return True

    def _place(self, kind: str, batch: int) -> str:
        return f"{self._root}/{kind}/{_PREFIX}{batch:09d}"

    def _batches(self) -> list[int]:
        names = self._files.names(f"{self._root}/{_RECORDS}")
        numbers = (name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX))
        return sorted(int(number) for number in numbers if number.isdigit())


def _words(origin: Origin) -> str:
    return ", ".join(f"{name} = {value!r}" for name, value in msgspec.structs.asdict(origin).items() if value)
