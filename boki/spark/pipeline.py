"""What an ingest pipeline is, as `pipeline.toml` says it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from boki.errors import ConfigError, InvalidArgument
from boki.log.checks import check_book
from boki.log.ids import check_name
from boki.spark.options import DEFAULT_GATEWAY, read_options
from boki.spark.schemas import ERROR_COLUMN, SCHEMA

_OWN: Final = frozenset({"batch", "book", "date", "seqnum", "time", "tags", "data", ERROR_COLUMN})
PROGRESS_PREFIX: Final = "ingest:"
"""Progress books are called so: no pipeline over a prefix takes them for its input (`boki.spark.options`)."""
_KEYS: Final = {"onTrimmed": "on_trimmed", "maxRecordsPerBatch": "max_records_per_batch", "tags": "tag"}
"""Keys of the file for what the source's options call otherwise."""


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
    """How often a pipeline that continues looks for new records."""

    def __post_init__(self) -> None:
        _checked("name", lambda: check_name(self.name, "a name"))
        for key, value in (("schema", self.schema), ("output", self.output)):
            if not value.strip():
                raise ValueError(f"{key}: must not be empty")
        if self.max_records_per_batch < 1:
            raise ValueError("max_records_per_batch: must be at least 1")
        if not 0 <= self.trigger_s <= 86_400:
            raise ValueError("trigger_s: must be 0 to 86,400 seconds")
        key = "progress" if self.progress else "name"
        _checked(key, lambda: check_book(self.progress_book))
        if not self.progress_book.startswith(PROGRESS_PREFIX):
            raise ValueError(
                f"progress: must begin with {PROGRESS_PREFIX!r}, so that no pipeline over a prefix reads it as input"
            )
        options = _checked("", lambda: read_options(self.source_options, is_stream=True))
        if options.books.takes(self.progress_book):
            raise ValueError(
                f"{key}: {self.progress_book!r} is also among the input, so that each batch would make the next one: "
                "name another book by the key progress"
            )

    @property
    def progress_book(self) -> str:
        """Where its progress is written."""
        return self.progress or PROGRESS_PREFIX + self.name

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
        """The columns of the JSON among those names; `ConfigError` if one is the pipeline's own, or two
        differ by capitals only.
        """
        if taken := sorted(_OWN.intersection(name.lower() for name in names)):
            raise ConfigError(f"schema: it names {', '.join(taken)}, which the pipeline writes itself: rename them")
        lower = [name.lower() for name in names]
        if alike := [name for name in names if lower.count(name.lower()) > 1]:
            raise ConfigError(
                f"schema: it names {' and '.join(alike)}, and tables make no difference between capitals and small "
                "letters: leave one out"
            )
        return names


def _checked(key: str, check: Callable[[], Any]) -> Any:
    """What the check gives; if it refuses, the message begins with the key of the file."""
    try:
        return check()
    except InvalidArgument as error:
        field = str(error.details.get("field", ""))
        raise ValueError(f"{key or _KEYS.get(field, field)}: {error.message}") from None


def load_pipeline(path: Path, overrides: Mapping[str, str]) -> Pipeline:
    """The pipeline that a file describes; `overrides` that are not empty win. `ConfigError` names what is wrong."""
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # also of text that is no UTF-8, and of numbers with too many digits
        raise ConfigError(f"{path} is not TOML: {error}") from None
    values |= {name: value for name, value in overrides.items() if value}
    if isinstance(output := values.get("output"), str) and output and ":/" not in output:
        values["output"] = str((path.parent / output).resolve())
    try:
        return msgspec.convert(values, Pipeline)
    except msgspec.ValidationError as error:
        known = ", ".join(Pipeline.__struct_fields__)
        raise ConfigError(f"{path}: {error}. The keys are {known}") from None
