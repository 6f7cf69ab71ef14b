"""What an ingest pipeline is, as `pipeline.toml` says it, and how far it has come, as its progress book says it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from boki.errors import ConfigError
from boki.log.checks import check_book
from boki.log.ids import check_tag
from boki.spark.options import DEFAULT_GATEWAY, read_options
from boki.spark.schemas import ERROR_COLUMN, SCHEMA

_OWN: Final = frozenset({"batch", "book", "date", "seqnum", "time", "tags", "data", ERROR_COLUMN})
PROGRESS_TAG: Final = "pipeline:"


class Pipeline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One pipeline: LogBooks with JSON records, to Parquet. Paths in the file are relative to the file.

    Below `output` stand `records/batch=…/book=…/date=…` with what fits the schema, and `dead/batch=…` with what does
    not. A batch appears there whole, by one renaming, and once.
    """

    name: str
    book: str
    """As the option `book` of the source: a name, several, or a prefix."""
    schema: str
    """The members of each record's JSON, as Spark spells columns: "carrier string, delay double"."""
    output: str
    gateway: str = DEFAULT_GATEWAY
    token: str = ""
    tag: str = ""
    start: str = "earliest"
    on_trimmed: str = "fail"
    progress: str = ""
    """The LogBook of its progress; empty: `ingest:` and the name."""
    max_records_per_batch: int = 1_000_000
    trigger_s: float = 5.0
    """How often a pipeline that goes on looks for new records."""

    def __post_init__(self) -> None:
        check_tag(PROGRESS_TAG + self.name, 200)
        check_book(self.progress_book)
        if self.max_records_per_batch < 1 or not 0 <= self.trigger_s <= 86_400:
            raise ValueError("max_records_per_batch must be at least 1 and trigger_s 0 to 86,400")
        read_options(self.source_options, is_stream=True)

    @property
    def progress_book(self) -> str:
        """Where its progress is written."""
        return self.progress or f"ingest:{self.name}"

    @property
    def source_options(self) -> dict[str, str]:
        """The options of its streaming read."""
        options = {
            "gateway": self.gateway,
            "token": self.token,
            "book": self.book,
            "start": self.start,
            "json": "true",
            "onTrimmed": self.on_trimmed,
            "maxRecordsPerBatch": str(self.max_records_per_batch),
        }
        return options | ({"tag": self.tag} if self.tag else {})

    @property
    def source_schema(self) -> str:
        """The columns of its streaming read: those of the JSON, the record's own, and why one does not fit."""
        return f"{self.schema}, {SCHEMA}, {ERROR_COLUMN} string"

    def columns(self, names: list[str]) -> list[str]:
        """The columns of the JSON among those names; `ConfigError` if one is the pipeline's own."""
        if taken := sorted(_OWN.intersection(names)):
            raise ConfigError(f"the schema names {', '.join(taken)}, which the pipeline writes itself: rename them")
        return names


def load_pipeline(path: Path, overrides: Mapping[str, str]) -> Pipeline:
    """The pipeline that a file describes; `overrides` that are not empty win. `ConfigError` names what is wrong."""
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    values |= {name: value for name, value in overrides.items() if value}
    if isinstance(output := values.get("output"), str) and "://" not in output:
        values["output"] = str((path.parent / output).resolve())
    try:
        return msgspec.convert(values, Pipeline)
    except msgspec.ValidationError as error:
        known = ", ".join(Pipeline.__struct_fields__)
        raise ConfigError(f"{path}: {error}. The keys are {known}") from None


class BookProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Of one book, since the pipeline began."""

    records: int = 0
    dead: int = 0
    last_seqnum: int = 0
    last_time_us: int = 0

    def plus(self, other: BookProgress) -> BookProgress:
        """Both together.

        >>> BookProgress(records=2, last_seqnum=5).plus(BookProgress(records=1, dead=1, last_seqnum=9)).records
        3
        """
        return BookProgress(
            records=self.records + other.records,
            dead=self.dead + other.dead,
            last_seqnum=max(self.last_seqnum, other.last_seqnum),
            last_time_us=max(self.last_time_us, other.last_time_us),
        )


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """A record of the progress book: everything until this batch is in the Parquet. The last one says it all."""

    pipeline: str
    query: str
    batch: int
    books: dict[str, BookProgress] = {}

    def after(self, query: str, batch: int, books: Mapping[str, BookProgress]) -> Progress:
        """The progress when that batch is written, too; itself if it was counted."""
        if query == self.query and batch <= self.batch:
            return self
        nothing = BookProgress()
        together = self.books | {name: self.books.get(name, nothing).plus(more) for name, more in books.items()}
        return Progress(pipeline=self.pipeline, query=query, batch=batch, books=together)
