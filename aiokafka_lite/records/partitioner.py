"""Java's default partitioner, so that others find each key where they look for it.

See `org.apache.kafka.common.utils.Utils.murmur2` and `BuiltInPartitioner.partitionForKey`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_WORD: Final = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """Return the 32-bit MurmurHash2 of `key`, unsigned, with Kafka's seed."""
    size = len(key)
    whole = size & ~3
    result = _SEED ^ size
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


@lru_cache(maxsize=1024)
def partition_for_key(key: bytes, partition_count: int) -> int:
    """Return the partition that a Java producer would send `key` to."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
