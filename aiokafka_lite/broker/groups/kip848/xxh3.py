"""The hash XXH3, 64 bits, without a seed.

Kafka stores such hashes of topics in its groups' records. Written from the algorithm's
specification; some microseconds for a topic, and only when topics or subscriptions change.
"""

from __future__ import annotations

import struct
from typing import Final

_MASK: Final = (1 << 64) - 1
_PRIME32: Final = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
_PRIME64: Final = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
_AVALANCHE: Final = 0x165667919E3779F9
_RRMXMX: Final = 0x9FB21C651E98DF25
_STRIPE: Final = 64
_SECRET: Final = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_STRIPES_IN_BLOCK: Final = (len(_SECRET) - _STRIPE) // 8
_UINT32: Final = struct.Struct("<I")
_UINT64: Final = struct.Struct("<Q")
_LANES: Final = struct.Struct("<8Q")


def xxh3_64(data: bytes) -> int:
    """Return the hash of some bytes as an unsigned number of 64 bits."""
    size = len(data)
    if size <= 16:
        return _short(data)
    if size <= 240:
        return _medium(data)
    return _long(data)


def _short(data: bytes) -> int:
    size = len(data)
    if size > 8:
        low = _u64(data, 0) ^ _u64(_SECRET, 24) ^ _u64(_SECRET, 32)
        high = _u64(data, size - 8) ^ _u64(_SECRET, 40) ^ _u64(_SECRET, 48)
        swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
        return _avalanche(size + swapped + high + _fold(low, high))
    if size >= 4:
        mixed = _u32(data, size - 4) + (_u32(data, 0) << 32)
        mixed ^= _u64(_SECRET, 8) ^ _u64(_SECRET, 16)
        mixed ^= _rotated(mixed, 49) ^ _rotated(mixed, 24)
        mixed = mixed * _RRMXMX & _MASK
        mixed ^= (mixed >> 35) + size
        mixed = mixed * _RRMXMX & _MASK
        return mixed ^ mixed >> 28
    if size:
        mixed = data[0] << 16 | data[size >> 1] << 24 | data[-1] | size << 8
        return _avalanche_xxh64(mixed ^ _u32(_SECRET, 0) ^ _u32(_SECRET, 4))
    return _avalanche_xxh64(_u64(_SECRET, 56) ^ _u64(_SECRET, 64))


def _medium(data: bytes) -> int:
    size = len(data)
    total = size * _PRIME64[0]
    if size <= 128:
        for step in range((size - 1) // 32, -1, -1):
            total += _mix(data, 16 * step, 32 * step)
            total += _mix(data, size - 16 * (step + 1), 32 * step + 16)
        return _avalanche(total)
    for step in range(8):
        total += _mix(data, 16 * step, 16 * step)
    total = _avalanche(total)
    for step in range(8, size // 16):
        total += _mix(data, 16 * step, 16 * (step - 8) + 3)
    return _avalanche(total + _mix(data, size - 16, 136 - 17))


def _long(data: bytes) -> int:
    lanes = [_PRIME32[2], *_PRIME64[:4], _PRIME32[1], _PRIME64[4], _PRIME32[0]]
    size = len(data)
    last = (size - 1) // _STRIPE
    for stripe in range(last):
        place = stripe % _STRIPES_IN_BLOCK
        _accumulate(lanes, data, stripe * _STRIPE, 8 * place)
        if place == _STRIPES_IN_BLOCK - 1:
            _scramble(lanes)
    _accumulate(lanes, data, size - _STRIPE, len(_SECRET) - _STRIPE - 7)
    total = size * _PRIME64[0]
    for pair in range(4):
        total += _fold(
            lanes[2 * pair] ^ _u64(_SECRET, 11 + 16 * pair),
            lanes[2 * pair + 1] ^ _u64(_SECRET, 19 + 16 * pair),
        )
    return _avalanche(total)


def _accumulate(lanes: list[int], data: bytes, at: int, secret_at: int) -> None:
    values = _LANES.unpack_from(data, at)
    keys = _LANES.unpack_from(_SECRET, secret_at)
    for lane, value in enumerate(values):
        key = value ^ keys[lane]
        lanes[lane ^ 1] = lanes[lane ^ 1] + value & _MASK
        lanes[lane] = lanes[lane] + (key & 0xFFFFFFFF) * (key >> 32) & _MASK


def _scramble(lanes: list[int]) -> None:
    keys = _LANES.unpack_from(_SECRET, len(_SECRET) - _STRIPE)
    for lane, key in enumerate(keys):
        value = lanes[lane]
        lanes[lane] = ((value ^ value >> 47) ^ key) * _PRIME32[0] & _MASK


def _mix(data: bytes, at: int, secret_at: int) -> int:
    return _fold(
        _u64(data, at) ^ _u64(_SECRET, secret_at),
        _u64(data, at + 8) ^ _u64(_SECRET, secret_at + 8),
    )


def _fold(one: int, other: int) -> int:
    product = one * other
    return product & _MASK ^ product >> 64


def _avalanche(value: int) -> int:
    value &= _MASK
    value = (value ^ value >> 37) * _AVALANCHE & _MASK
    return value ^ value >> 32


def _avalanche_xxh64(value: int) -> int:
    value = (value ^ value >> 33) * _PRIME64[1] & _MASK
    value = (value ^ value >> 29) * _PRIME64[2] & _MASK
    return value ^ value >> 32


def _rotated(value: int, bits: int) -> int:
    return value << bits & _MASK | value >> 64 - bits


def _u32(data: bytes, at: int) -> int:
    (value,) = _UINT32.unpack_from(data, at)
    return int(value)


def _u64(data: bytes, at: int) -> int:
    (value,) = _UINT64.unpack_from(data, at)
    return int(value)
