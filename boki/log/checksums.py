"""The checksums of many payloads of one size, checked at once.

Each record has a CRC-32 of its own. One by one, most of the time goes into calls rather than into bytes; so where all
payloads have the same size, the sum of the whole block is compared with what the sums of its pieces come to together.

**Why that is the same.** A CRC is the remainder of the bytes, taken as a polynomial, modulo one of degree 32. So the
sum of two blocks in a row is that of the first, moved on by the length of the second, plus that of the second. Over all
pieces: the sum of the block is the remainder of a block of zeros that holds, at the end of each piece, the piece's sum.
`crc32` multiplies what it is given by x^32 before it takes the remainder, so both sides are given to it. (Its initial
value and final complement cancel out of sums that were made with them; the outer ones are made without.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from zlib import crc32

LEAST_BYTES: Final = 4
"""Payloads of fewer bytes have no room for their sums."""
MOST_BYTES: Final = 256
"""Payloads of more are checked as fast one by one."""
_PLAIN: Final = 0xFFFFFFFF
"""With this as its initial value, `crc32` begins with nothing; then it is linear, but for a complement at the end."""


def match(payloads: memoryview, size_bytes: int, sums: Sequence[memoryview]) -> bool:
    """Whether payloads of that size, one after the other, have these CRC-32: four columns of bytes, the lowest first.

    Damage goes unnoticed with the chance that it has for a single sum over all of them.

    >>> sums = b"".join(crc32(data).to_bytes(4, "little") for data in (b"four", b"more"))
    >>> columns = [memoryview(sums)[place::4] for place in range(4)]
    >>> match(memoryview(b"fourmore"), 4, columns), match(memoryview(b"fourmole"), 4, columns)
    (True, False)
    """
    laid_out = bytearray(len(payloads))
    for place, column in enumerate(sums, size_bytes - LEAST_BYTES):
        laid_out[place::size_bytes] = column
    return crc32(laid_out, _PLAIN) == crc32(crc32(payloads).to_bytes(4, "little"), _PLAIN)
