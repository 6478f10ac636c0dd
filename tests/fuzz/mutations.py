"""Changes of bytes that need no knowledge of their layout."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from aiokafka_lite._compat import override

if TYPE_CHECKING:
    from _typeshed import SupportsLenAndGetItem

T = TypeVar("T")

INTERESTING_BYTES: Final = (0x00, 0x01, 0x02, 0x0A, 0x20, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF)
INTERESTING: Final = (
    *(0, 1, 2, 3, 7, 16, 63, 64, 100, 127, 128, 255, 256, 1000, 4096),
    *(2**15 - 1, 2**15, 2**16 - 1, 2**16, 2**20, 2**24, 2**31 - 2, 2**31 - 1, 2**31, 2**32 - 1),
    *(2**62, 2**63 - 2, 2**63 - 1, -1, -2, -127, -128, -(2**15), -(2**31), -(2**63)),
)
"""Values at which integers of some size, lengths and counts change their meaning."""


class Dice(random.Random):
    """Random numbers that are not quite equally likely, in half the time."""

    @override
    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        if stop is None:
            return int(self.random() * start)
        return start + step * int(self.random() * ((stop - start) // step))

    @override
    def randint(self, a: int, b: int) -> int:
        return a + int(self.random() * (b - a + 1))

    @override
    def choice(self, seq: SupportsLenAndGetItem[T]) -> T:
        return seq[int(self.random() * len(seq))]


def number(rng: random.Random, near: int = 0) -> int:
    """Return a number that is likely to be a border, or close to another."""
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(INTERESTING)
    if kind < 0.9:
        return near + rng.choice((-2, -1, 1, 2, 8, -8))
    return rng.getrandbits(64) - 2**63


def packed(value: int, size: int) -> bytes:
    """Return the lower bytes of a number, whether or not it fits."""
    return (value % (1 << 8 * size)).to_bytes(size, "big")


def zigzag(value: int) -> int:
    return ((value << 1) ^ (value >> 63)) % (1 << 64)


def uvarint(value: int, padding: int = 0) -> bytes:
    """Encode a number below 2**64, with needless groups if there is padding."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    if padding:
        groups[-1] |= 0x80
        groups += b"\x80" * (padding - 1) + b"\0"
    return bytes(groups)


def varint(value: int, padding: int = 0) -> bytes:
    """Encode a signed number as record batches do."""
    if not padding and -64 <= value < 64:
        return _SHORT[value & 0x7F]
    return uvarint(zigzag(value), padding)


# Of a lower byte: numbers that take one byte.
_SHORT: Final = tuple(uvarint(zigzag(n if n < 64 else n - 128)) for n in range(128))


def changed(rng: random.Random, content: bytes, pool: Sequence[bytes]) -> bytes:
    """Return bytes with some changes of any kind."""
    mutated = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5))):
        _change(rng, mutated, pool)
    return bytes(mutated)


def _change(rng: random.Random, mutated: bytearray, pool: Sequence[bytes]) -> None:
    at = rng.randrange(len(mutated) + 1)
    match rng.randrange(10):
        case 0 if at < len(mutated):
            mutated[at] ^= 1 << rng.randrange(8)
        case 1:
            mutated[at : at + 1] = (rng.choice(INTERESTING_BYTES),)
        case 2:
            mutated[at : at + 1] = (rng.randrange(256),)
        case 3:
            del mutated[at : at + rng.choice((1, 1, 2, 4, 8, 40))]
        case 4:
            mutated[at:at] = bytes(rng.choices(INTERESTING_BYTES, k=rng.randint(1, 6)))
        case 5:
            size = rng.choice((2, 4, 8))
            near = int.from_bytes(mutated[at : at + size], "big")
            mutated[at : at + size] = packed(number(rng, near), size)
        case 6:
            mutated[at:at] = uvarint(number(rng) % (1 << 64), rng.choice((0, 0, 1, 4)))
        case 7 if rng.random() < 0.3:
            del mutated[at:]
        case 8:
            piece = mutated[at : at + rng.randint(1, 64)]
            to = rng.randrange(len(mutated) + 1)
            mutated[to:to] = piece * rng.choice((1, 1, 2, 20))
        case _:
            other = rng.choice(pool) if pool else b""
            first = rng.randrange(len(other) + 1)
            piece = bytearray(other[first : first + rng.choice((4, 16, 64, 512))])
            if rng.random() < 0.2:
                mutated[at:] = bytearray(other[first:])
            else:
                mutated[at : at + rng.choice((0, len(piece)))] = piece


def changed_text(rng: random.Random, text: str, words: Sequence[str]) -> str:
    """Return a text with some changes: words, characters, repetitions."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(text) + 1)
        match rng.randrange(5):
            case 0:
                text = text[:at] + text[at + rng.choice((1, 1, 2, 5, 20)) :]
            case 1:
                text = text[:at] + rng.choice(words) + text[at:]
            case 2:
                text = text[:at] + rng.choice(_CHARACTERS) + text[at + rng.randint(0, 1) :]
            case 3:
                end = at + rng.randint(1, 20)
                text = text[:at] + text[at:end] * rng.choice((2, 2, 3, 50)) + text[end:]
            case _:
                text = text[:at] + str(number(rng)) + text[at + rng.randint(0, 3) :]
    return text


_CHARACTERS: Final = (
    *'{}[]()":,.-+*?|\\/=^$ \t\n\r\x00\x7f\x85\u00e9\u0130\u2028\ufeff\ud800\U0001f600',
    *("\u0660", "\u00b2", "1e999", "NaN", "Infinity", "-0", "1e5", "null", "true"),
)
