"""Variable-length integers, and the errors of decoders (the slow paths of generated code)."""

from __future__ import annotations

from typing import Final

from aiokafka_lite.errors import KafkaProtocolError
from aiokafka_lite.protocol.source import ELEMENTS_PER_STEP, Steps, run_to_end

ONE_BYTE: Final = tuple(bytes([n]) for n in range(128))
"""Varints below 128, ready to append."""


def encode_uvarint(value: int) -> bytes:
    """Encode an unsigned 32-bit integer, seven bits a byte, least significant first."""
    if value < 128:
        return ONE_BYTE[value]
    return bytes((value & 127 | 128,)) + encode_uvarint(value >> 7)


def read_uvarint(view: memoryview, pos: int) -> tuple[int, int]:
    """Decode an unsigned 32-bit integer. Return it with the position after it."""
    value = 0
    for shift in range(0, 35, 7):
        byte = view[pos]
        pos += 1
        value |= (byte & 127) << shift
        if byte < 128:
            break
    if byte > 127 or value >= 1 << 32:
        raise KafkaProtocolError("a varint is longer than 32 bits")
    return value, pos


def skip_tagged_fields(view: memoryview, pos: int) -> int:
    """Skip a section of unknown tagged fields. Return the position after it."""
    if not view[pos]:  # as in nearly all messages
        return pos + 1
    return run_to_end(skip_tagged_fields_in_steps(view, pos))


def skip_tagged_fields_in_steps(view: memoryview, pos: int) -> Steps[int]:
    count, pos = read_uvarint(view, pos)
    previous = -1
    for number in range(count):  # a false count ends with the view
        if number % ELEMENTS_PER_STEP == ELEMENTS_PER_STEP - 1:
            yield
        tag, size, pos = read_tag(view, pos, previous)
        previous = tag
        pos += size
    return pos


def read_tag(view: memoryview, pos: int, previous: int) -> tuple[int, int, int]:
    """Return the tag and size of a tagged field, and the position of its value."""
    tag, pos = read_uvarint(view, pos)
    size, pos = read_uvarint(view, pos)
    if tag <= previous:
        raise KafkaProtocolError(
            f"tagged fields must be in ascending order, but tag {tag} follows tag {previous}"
        )
    if size > len(view) - pos:
        raise KafkaProtocolError(
            f"the size of tagged field {tag} is {size} bytes, but only {len(view) - pos} bytes of "
            "the message are left"
        )
    return tag, size, pos


def bad_length(field: str, length: int, left: int) -> KafkaProtocolError:
    """Return the error for a length or count that is negative or too large."""
    if length < 0:
        return KafkaProtocolError(f"{field} cannot be null in this version (length {length})")
    return KafkaProtocolError(
        f"the length field of {field} is {length}, which is too large for the remaining {left} "
        "bytes of the message"
    )


def wrong_tag_size(field: str) -> KafkaProtocolError:
    return KafkaProtocolError(
        f"the value of tagged field {field} is not as long as its size field says"
    )
