"""What configurations may not say: values that are each fine and do not go together, and addresses open to others."""

from __future__ import annotations

import ipaddress
import re
from math import isfinite
from typing import Any, Final

import msgspec

from boki.log.limits import Limits

_LIKE_ADDRESS: Final = re.compile(r"[0-9.]+|.*:.*")
_ADDRESSES: Final = re.compile(r"[^\s,:/]+:\d{1,5}(,[^\s,:/]+:\d{1,5})*")
_CHROOT: Final = re.compile(r"(/[A-Za-z0-9._-]+)+")


def check_finite(value: Any) -> Any:
    """`value`. `msgspec.ValidationError` for a number that no clock reaches and no JSON can hold."""
    if isinstance(value, float) and not isfinite(value):
        raise msgspec.ValidationError("Expected a finite number")
    return value


def budget_problems(limits: Limits, *, keep_calls_s: float, cache_bytes: int, append_buffer_bytes: int) -> list[str]:
    """What an engine's budgets are too small for."""
    found = []
    if keep_calls_s < limits.key_window_s:
        found.append(
            f"keep_calls_s is {keep_calls_s:g}, and a key gives its first result for limits.key_window_s = "
            f"{limits.key_window_s:g}: results must be kept for as long"
        )
    if cache_bytes < 4 * limits.request_bytes:
        found.append(
            f"cache_bytes is {cache_bytes}: it must hold four requests of limits.request_bytes = "
            f"{limits.request_bytes}, or large appends could not be read"
        )
    if append_buffer_bytes < limits.request_bytes:
        found.append(
            f"append_buffer_bytes is {append_buffer_bytes}: it must hold one request "
            f"(limits.request_bytes = {limits.request_bytes})"
        )
    return found


def quorum_problems(replicas: int, write_quorum: int, sequencers: int) -> list[str]:
    """Why these could not decide anything, or not well."""
    found = []
    if write_quorum > replicas:
        found.append(
            f"write_quorum is {write_quorum}, and replicas {replicas}: each record would need more copies than it gets"
        )
    if sequencers and sequencers % 2 == 0:
        found.append(f"sequencers is {sequencers}: an even number tolerates no more losses than one less")
    return found


def zookeeper_problems(zookeeper: str) -> list[str]:
    """Why no node could find a ZooKeeper there."""
    if are_addresses(zookeeper):
        return []
    return [f"zookeeper is {zookeeper!r}: expected host:port, or several with commas between them"]


def chroot_problems(chroot: str) -> list[str]:
    """Why ZooKeeper has no such path."""
    return [] if _CHROOT.fullmatch(chroot) else [f"chroot is {chroot!r}: expected a path like /boki"]


def are_addresses(text: str) -> bool:
    """Whether this is host:port, or several with commas between them."""
    return _ADDRESSES.fullmatch(text) is not None


def address_problems(host: str, token: str, insecure: bool) -> list[str]:
    """Why nothing should listen there like this."""
    if _LIKE_ADDRESS.fullmatch(host) and not _is_address(host):
        return [f"host {host} is not an address: four numbers of at most 255, as in 127.0.0.1, or a name"]
    if token or insecure or is_loopback(host):
        return []
    return [f"host {host} is open to others: set BOKI_TOKEN, or pass --insecure if anybody may use it"]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server on that address.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
