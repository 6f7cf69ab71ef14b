"""Objects and their versions as JSON, for HTTP."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from boki.libs.bokistore import Version


class VersionShape(msgspec.Struct, frozen=True):
    """A version of an object, with its seqnum as digits. What is not known is ""."""

    seqnum: Annotated[str, Meta(description="From which seqnum on the object has this value")]
    time_s: float
    value: Any
    exists: Annotated[bool, Meta(description="False: it was deleted, and value is null")]
    function: str
    invocation: str
    step: str
    is_transaction: bool
    objects: Annotated[tuple[str, ...], Meta(description="All objects that the same record has changed")]


class ItemShape(msgspec.Struct, frozen=True):
    """An item of a map."""

    key: str
    value: Any


def version_shape(version: Version) -> VersionShape:
    """A version for JSON."""
    return VersionShape(**(msgspec.structs.asdict(version) | {"seqnum": str(version.seqnum)}))
