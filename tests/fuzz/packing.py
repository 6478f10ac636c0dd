"""Inputs that consist of several parts, each after its length."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

_SIZE: Final = struct.Struct(">i")
NULL: Final = -1


def pack(parts: Iterable[bytes | None]) -> bytes:
    return b"".join(
        _SIZE.pack(NULL) if part is None else _SIZE.pack(len(part)) + part for part in parts
    )


def unpack(content: bytes) -> list[bytes | None]:
    """Return the parts. A length that is too large, or negative, takes the rest."""
    found: list[bytes | None] = []
    while len(content) >= _SIZE.size:
        (size,) = _SIZE.unpack_from(content)
        content = content[_SIZE.size :]
        if size == NULL:
            found.append(None)
            continue
        size = size if 0 <= size <= len(content) else len(content)
        found.append(content[:size])
        content = content[size:]
    return found


def unpack_bytes(content: bytes) -> list[bytes]:
    return [part or b"" for part in unpack(content)]
