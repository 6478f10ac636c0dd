"""Reused buffers for decompression: zeroing a megabyte costs more than decoding its records.

A buffer is free again when the batch's records, which own their bytes, exist. List operations are
atomic, so executor threads may use the pool, too.
"""

from __future__ import annotations

from typing import Final

_KEPT_BUFFERS: Final = 4
LARGEST_KEPT_BYTES: Final = 4 * 1024 * 1024  # a bomb's buffer is not kept

_kept: list[bytearray] = []


def lend(size: int) -> bytearray:
    """Return a buffer of at least `size` bytes with arbitrary content."""
    try:
        buffer = _kept.pop()
    except IndexError:
        return bytearray(size)
    return buffer if len(buffer) >= size else bytearray(size)


def give_back(view: memoryview) -> None:
    """Return the buffer under a view to the pool. The view must not be used afterwards."""
    buffer = view.obj
    if (
        isinstance(buffer, bytearray)
        and len(buffer) <= LARGEST_KEPT_BYTES
        and len(_kept) < _KEPT_BUFFERS
    ):
        _kept.append(buffer)
