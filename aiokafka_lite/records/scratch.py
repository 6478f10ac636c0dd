"""Buffers that decompression writes into, kept for the next batch.

A fresh megabyte costs more to zero and to page in than its records cost to decode. Buffers are
lent to one batch at a time and come back when its records, which own their bytes, have been made.
List operations are atomic, so executor threads may lend and give back as they please.
"""

from __future__ import annotations

from typing import Final

__all__ = ["give_back", "lend"]

_KEPT_BUFFERS: Final = 4
LARGEST_KEPT_BYTES: Final = 4 * 1024 * 1024  # a bomb's buffer is not kept

_kept: list[bytearray] = []


def lend(size: int) -> bytearray:
    """Return a buffer of at least `size` bytes; what is in it is left over from before."""
    try:
        buffer = _kept.pop()
    except IndexError:
        return bytearray(size)
    return buffer if len(buffer) >= size else bytearray(size)


def give_back(view: memoryview) -> None:
    """Take back the buffer under a view of it, which must not be used any more."""
    buffer = view.obj
    if (
        isinstance(buffer, bytearray)
        and len(buffer) <= LARGEST_KEPT_BYTES
        and len(_kept) < _KEPT_BUFFERS
    ):
        _kept.append(buffer)
