"""The partition of a key, in plain Python: the fallback, and the oracle of the tests."""

from __future__ import annotations

from typing import Final

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_WORD: Final = 0xFFFFFFFF


def murmur2(key: bytes | bytearray | memoryview) -> int:
    """Return the 32-bit MurmurHash2 of `key`, unsigned, with Kafka's seed."""
    if not isinstance(key, (bytes, bytearray, memoryview)):
        raise TypeError(f"key must be bytes, bytearray or memoryview, not {type(key).__name__}")
    key = bytes(key)
    size = len(key)
    whole = size & ~3
    result = _SEED ^ size & _WORD
    for start in range(0, whole, 4):
        word = int.from_bytes(key[start : start + 4], "little") * _MULTIPLIER & _WORD
        word ^= word >> 24
        result = (result * _MULTIPLIER & _WORD) ^ (word * _MULTIPLIER & _WORD)
    if size > whole:
        result ^= int.from_bytes(key[whole:], "little")
        result = result * _MULTIPLIER & _WORD
    result ^= result >> 13
    result = result * _MULTIPLIER & _WORD
    return result ^ (result >> 15)


def partition_for_key(key: bytes | bytearray | memoryview, partition_count: int) -> int:
    """Return the partition that a Java producer chooses for `key`."""
    if partition_count < 1:
        raise ValueError(f"partition_count must be at least 1, not {partition_count}")
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
