# cython: language_level=3, boundscheck=False, wraparound=False
"""The partition of a key, compiled. What it must do is told in `_partitioner_py`."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t

cdef enum:
    SEED = 0x9747B28C
    MULTIPLIER = 0x5BD1E995


def murmur2(key):
    return hashed(key)


@cython.cdivision(True)
def partition_for_key(key, int64_t partition_count):
    if partition_count < 1:
        raise ValueError(f"partition_count must be at least 1, not {partition_count}")
    return (hashed(key) & 0x7FFFFFFF) % partition_count


cdef inline uint32_t hashed(key) except? 0:
    if not isinstance(key, bytes):
        if not isinstance(key, (bytearray, memoryview)):
            raise TypeError(
                f"key must be bytes, bytearray or memoryview, not {type(key).__name__}"
            )
        key = bytes(key)
    cdef const uint8_t *at = <const uint8_t *> PyBytes_AS_STRING(key)
    cdef Py_ssize_t left = PyBytes_GET_SIZE(key)
    cdef uint32_t result = SEED ^ <uint32_t> left
    cdef uint32_t word
    while left >= 4:
        word = at[0] | <uint32_t> at[1] << 8 | <uint32_t> at[2] << 16 | <uint32_t> at[3] << 24
        word *= MULTIPLIER
        word ^= word >> 24
        result = result * MULTIPLIER ^ word * MULTIPLIER
        at += 4
        left -= 4
    if left:
        if left > 2:
            result ^= <uint32_t> at[2] << 16
        if left > 1:
            result ^= <uint32_t> at[1] << 8
        result = (result ^ at[0]) * MULTIPLIER
    result ^= result >> 13
    result *= MULTIPLIER
    return result ^ result >> 15
