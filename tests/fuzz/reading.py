"""A second reader of messages, for one purpose: where does a message end, if it is one?

It interprets the field tables that the package generates decoders from, and shares none of their
code. Decoders have to accept the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Final, TypeAlias

from aiokafka_lite.protocol.schema import Message, Struct
from aiokafka_lite.protocol.wire import STRING, Array, Field, Fixed, Nested, Sized, Wire

# Returns the position after a value. Raises ValueError, or IndexError past the end.
Read: TypeAlias = Callable[[bytes, int], int]
_VARINT_BYTES: Final = 5
# A compact count up to this is not compared with the bytes that are left.
_UNCOMPARED: Final = 126


def end_of(cls: type[Message], version: int, content: bytes) -> int | None:
    """Return where a message ends that bytes may follow, None if it is malformed."""
    try:
        return _reader(cls, version, cls.flexible.covers(version))(content, 0)
    except (ValueError, IndexError):
        return None


@cache
def _reader(cls: type[Struct], version: int, is_flexible: bool) -> Read:
    fields = [field for field in cls.schema if field.versions.covers(version)]
    reads = [_field(field, version, is_flexible) for field in fields if field.tag is None]
    tagged = {
        field.tag: _field(field, version, is_flexible) for field in fields if field.tag is not None
    }

    def read(content: bytes, pos: int) -> int:
        for part in reads:
            pos = part(content, pos)
        return _tagged(content, pos, tagged) if is_flexible else pos

    return read


def _tagged(content: bytes, pos: int, known: dict[int, Read]) -> int:
    count, pos = _uvarint(content, pos)
    previous = -1
    for _ in range(count):
        tag, pos = _uvarint(content, pos)
        size, pos = _uvarint(content, pos)
        if tag <= previous or size > len(content) - pos:
            raise ValueError("a tagged field is misplaced, or too long")
        previous = tag
        if tag in known and known[tag](content, pos) != pos + size:
            raise ValueError("a tagged field has another size")
        pos += size
    return pos


def _field(field: Field, version: int, is_flexible: bool) -> Read:
    is_nullable = field.nullable.covers(version)
    if isinstance(field.wire, Nested) and is_nullable:
        read = _reader(field.wire.struct, version, is_flexible)
        null = (0, *range(128, 256)) if field.tag is not None else range(128, 256)
        return lambda content, pos: pos + 1 if content[pos] in null else read(content, pos + 1)
    return _value(field.wire, version, is_flexible, is_nullable)


def _value(wire: Wire, version: int, is_flexible: bool, is_nullable: bool) -> Read:
    match wire:
        case Fixed():
            size = wire.size
            return lambda content, pos: _passed(content, pos, size)
        case Nested(struct):
            return _reader(struct, version, is_flexible)
        case Array(element):
            read = _value(element, version, is_flexible, False)
            least = _least_size(element, version, is_flexible)

            def read_array(content: bytes, pos: int) -> int:
                count, pos = _length(content, pos, 4, is_flexible, is_nullable)
                is_compared = not is_flexible or count > _UNCOMPARED
                if is_compared and count > (len(content) - pos) // least:
                    raise ValueError("a count is too large")
                for _ in range(count):
                    pos = read(content, pos)
                return pos

            return read_array
        case Sized():
            width, is_text = (2, True) if wire is STRING else (4, False)

            def read_sized(content: bytes, pos: int) -> int:
                size, pos = _length(content, pos, width, is_flexible, is_nullable)
                end = _passed(content, pos, size)
                if is_text:
                    content[pos:end].decode()
                return end

            return read_sized


def _least_size(wire: Wire, version: int, is_flexible: bool) -> int:
    match wire:
        case Fixed():
            return wire.size
        case Nested(struct):
            fields: Sequence[Field] = [
                field
                for field in struct.schema
                if field.versions.covers(version) and field.tag is None
            ]
            sizes = [
                1
                if isinstance(field.wire, Nested) and field.nullable.covers(version)
                else _least_size(field.wire, version, is_flexible)
                for field in fields
            ]
            return max(1, sum(sizes) + is_flexible)
        case _:
            return 1 if is_flexible else 2 if wire is STRING else 4


def _length(
    content: bytes, pos: int, width: int, is_flexible: bool, is_nullable: bool
) -> tuple[int, int]:
    """Return a length or count, 0 for null."""
    if is_flexible:
        number, pos = _uvarint(content, pos)
        number -= 1
    else:
        end = _passed(content, pos, width)
        number, pos = int.from_bytes(content[pos:end], "big", signed=True), end
    if number < (-1 if is_nullable else 0):
        raise ValueError("a length is negative")
    return max(number, 0), pos


def _passed(content: bytes, pos: int, size: int) -> int:
    if size > len(content) - pos:
        raise IndexError("the end is missing")
    return pos + size


def _uvarint(content: bytes, pos: int) -> tuple[int, int]:
    value = 0
    for index in range(_VARINT_BYTES):
        byte = content[pos + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if value >> 32:
                break
            return value, pos + index + 1
    raise ValueError("a varint has more than 32 bits")
