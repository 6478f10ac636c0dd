"""CRC32C, imported on first use: the wheel's package takes as long to import as all of records."""

from __future__ import annotations

from typing import Protocol

__all__ = ["crc32c"]


class _Crc32c(Protocol):
    def __call__(self, content: bytes | bytearray | memoryview, crc: int = 0, /) -> int: ...


def _import_first(content: bytes | bytearray | memoryview, crc: int = 0, /) -> int:
    global crc32c
    from crc32c import crc32c as compute

    crc32c = compute
    return compute(content, crc)


#: Called through this module, so that the second call already goes to the wheel's function.
crc32c: _Crc32c = _import_first
