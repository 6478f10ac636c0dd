"""Memory that the kernel provides page by page when written, so unused pages are free."""

from __future__ import annotations

import mmap
from typing import Final

# A new page of Python's default, shared memory, costs twice as much.
_PRIVATE: Final = (
    {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
)


def anonymous_memory(size: int) -> memoryview:
    return memoryview(mmap.mmap(-1, size, **_PRIVATE))
