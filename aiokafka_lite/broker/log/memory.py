"""Memory that comes page by page as it is written: what is reserved and not used costs nothing."""

from __future__ import annotations

import mmap
from typing import Final

# Python's default, shared memory, is a file to the kernel: a fresh page of it costs twice as much.
_PRIVATE: Final = (
    {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
)


def anonymous_memory(size: int) -> memoryview:
    """Return so many zeroed bytes of fresh memory."""
    return memoryview(mmap.mmap(-1, size, **_PRIVATE))
