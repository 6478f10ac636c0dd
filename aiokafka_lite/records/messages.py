"""Wrapper messages of magic 0 and 1: one message whose value is a compressed message set."""

from __future__ import annotations

import struct

from aiokafka_lite.errors import CorruptRecordException
from aiokafka_lite.records.batch import BatchHeader

__all__ = ["wrapped_value"]

_int32 = struct.Struct(">i")


def wrapped_value(header: BatchHeader, message: memoryview) -> memoryview:
    """Return the compressed message set inside a wrapper. Its key is ignored.

    Raises:
        CorruptRecordException: The value is missing, or has another length.
    """
    pos = 18 if header.magic == 0 else 26  # magic 1 has a timestamp
    _key, pos = _slice(message, pos)
    value, pos = _slice(message, pos)
    if value is None or pos != len(message):
        raise CorruptRecordException(
            "a compressed message has no value, or has bytes after its value"
        )
    return value


def _slice(message: memoryview, pos: int) -> tuple[memoryview | None, int]:
    if len(message) - pos < 4:
        raise CorruptRecordException("a message is incomplete: it ends inside a length field")
    (length,) = _int32.unpack_from(message, pos)
    pos += 4
    if length == -1:
        return None, pos
    if length < 0 or length > len(message) - pos:
        raise CorruptRecordException(f"a key or value of {length} bytes is longer than its message")
    return message[pos : pos + length], pos + length
