"""What benchmarks append: bytes that no compression makes smaller, the same for Boki and its peers."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Final

from boki.log.limits import MIB

_POOL_BYTES: Final = 4 * MIB
_MOST: Final = 1000


@cache
def payloads(size_bytes: int) -> tuple[bytes, ...]:
    """Random bytes, the same each time, and all different: up to 1,000, and fewer if they are large.

    >>> [len(each) for each in payloads(3)[:2]], payloads(3)[0] == payloads(3)[1], len(payloads(4 * MIB))
    ([3, 3], False, 1)
    """
    count = max(1, min(_MOST, _POOL_BYTES // max(1, size_bytes)))
    pool = Random(size_bytes).randbytes(count * size_bytes)
    return tuple(pool[start : start + size_bytes] for start in range(0, count * size_bytes, size_bytes)) or (b"",)
