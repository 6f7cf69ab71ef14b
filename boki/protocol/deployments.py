"""Versions of the functions and deployments of them, as clients, gateways and commands show them."""

from __future__ import annotations

import msgspec


class VersionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A version as lists show it."""

    number: int
    bundle_hash: str
    deployed_us: int
    """By the log's time, in microseconds since the epoch."""
    size_bytes: int
    functions: tuple[str, ...]
    broken: tuple[str, ...] = ()
    is_active: bool = False


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a deployment, or of going back."""

    version: VersionInfo
    is_new: bool
    """False if that version was there before."""
    engines: dict[str, bool]
    """The engines that are up, and whether each runs it already; the others follow."""
    superseded_by: int = 0
    """The version that runs instead, because it was deployed or chosen meanwhile; 0: none."""
