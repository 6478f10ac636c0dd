"""A second reader of messages and of the headers of requests.

It interprets the field tables that the package generates decoders from, and shares none of their
code. Decoders have to accept the same bytes, and find the same values and the same end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Final, NamedTuple, TypeAlias

from aiokafka_lite.protocol.registry import REQUESTS
from aiokafka_lite.protocol.schema import Message, Struct
from aiokafka_lite.protocol.wire import (
    BOOL,
    STRING,
    UINT16,
    UUID,
    Array,
    Field,
    Fixed,
    Nested,
    Sized,
    Wire,
)

# Returns a value and the position after it. Raises ValueError, or IndexError past the end.
Read: TypeAlias = Callable[[bytes, int], tuple[object, int]]
_VARINT_BYTES: Final = 5
# A compact count up to this is not compared with the bytes that are left.
_UNCOMPARED: Final = 126


class RequestHeader(NamedTuple):
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None


def read(cls: type[Message], version: int, content: bytes) -> tuple[object, int] | None:
    """Return a message that bytes may follow, and where it ends. None if it is malformed."""
    try:
        return _reader(cls, version, cls.flexible.covers(version))(content, 0)
    except (ValueError, IndexError):
        return None


def read_request_header(content: bytes) -> tuple[RequestHeader, int] | None:
    """Return a request's header, and where the message begins. None if it is malformed."""
    numbers, pos = [], 0
    try:
        for size in (2, 2, 4):
            end = _passed(content, pos, size)
            numbers.append(int.from_bytes(content[pos:end], "big", signed=True))
            pos = end
        length, pos = _length(content, pos, 2, is_flexible=False, is_nullable=True)
        end = _passed(content, pos, length or 0)
        name = None if length is None else content[pos:end].decode()
        api_key, version, correlation_id = numbers
        cls = REQUESTS.get(api_key)
        if cls is not None and cls.flexible.covers(version):
            _, end = _tagged(content, end, {})
    except (ValueError, IndexError):
        return None
    return RequestHeader(api_key, version, correlation_id, name), end


@cache
def _reader(cls: type[Struct], version: int, is_flexible: bool) -> Read:
    fields = [field for field in cls.schema if field.versions.covers(version)]
    reads = [(each.name, _field(each, version, is_flexible)) for each in fields if each.tag is None]
    tagged = {
        field.tag: (field.name, _field(field, version, is_flexible))
        for field in fields
        if field.tag is not None
    }

    def read(content: bytes, pos: int) -> tuple[object, int]:
        values = {}
        for name, part in reads:
            values[name], pos = part(content, pos)
        if is_flexible:
            found, pos = _tagged(content, pos, tagged)
            values.update(found)
        return cls(**values), pos

    return read


def _tagged(
    content: bytes, pos: int, known: dict[int, tuple[str, Read]]
) -> tuple[dict[str, object], int]:
    values = {}
    count, pos = _uvarint(content, pos)
    previous = -1
    for _ in range(count):
        tag, pos = _uvarint(content, pos)
        size, pos = _uvarint(content, pos)
        if tag <= previous or size > len(content) - pos:
            raise ValueError("a tagged field is misplaced, or too long")
        previous = tag
        if tag in known:
            name, read = known[tag]
            values[name], end = read(content, pos)
            if end != pos + size:
                raise ValueError("a tagged field has another size")
        pos += size
    return values, pos


def _field(field: Field, version: int, is_flexible: bool) -> Read:
    is_nullable = field.nullable.covers(version)
    if isinstance(field.wire, Nested) and is_nullable:
        read = _reader(field.wire.struct, version, is_flexible)
        null = (0, *range(128, 256)) if field.tag is not None else range(128, 256)
        return lambda content, pos: (
            (None, pos + 1) if content[pos] in null else read(content, pos + 1)
        )
    return _value(field.wire, version, is_flexible, is_nullable)


def _value(wire: Wire, version: int, is_flexible: bool, is_nullable: bool) -> Read:
    match wire:
        case Fixed():
            return _fixed(wire)
        case Nested(struct):
            return _reader(struct, version, is_flexible)
        case Array(element):
            read = _value(element, version, is_flexible, False)
            least = _least_size(element, version, is_flexible)

            def read_array(content: bytes, pos: int) -> tuple[object, int]:
                count, pos = _length(content, pos, 4, is_flexible, is_nullable)
                if count is None:
                    return None, pos
                is_compared = not is_flexible or count > _UNCOMPARED
                if is_compared and count > (len(content) - pos) // least:
                    raise ValueError("a count is too large")
                items = []
                for _ in range(count):
                    item, pos = read(content, pos)
                    items.append(item)
                return items, pos

            return read_array
        case Sized():
            width, is_text = (2, True) if wire is STRING else (4, False)

            def read_sized(content: bytes, pos: int) -> tuple[object, int]:
                size, pos = _length(content, pos, width, is_flexible, is_nullable)
                if size is None:
                    return None, pos
                end = _passed(content, pos, size)
                found = content[pos:end]
                return found.decode() if is_text else found, end

            return read_sized


def _fixed(wire: Fixed) -> Read:
    size = wire.size
    is_signed = wire is not UINT16

    def read(content: bytes, pos: int) -> tuple[object, int]:
        end = _passed(content, pos, size)
        found = content[pos:end]
        if wire is UUID:
            return found, end
        number = int.from_bytes(found, "big", signed=is_signed)
        return number != 0 if wire is BOOL else number, end

    return read


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
) -> tuple[int | None, int]:
    """Return a length or count, None for null."""
    if is_flexible:
        number, pos = _uvarint(content, pos)
        number -= 1
    else:
        end = _passed(content, pos, width)
        number, pos = int.from_bytes(content[pos:end], "big", signed=True), end
    if number < (-1 if is_nullable else 0):
        raise ValueError("a length is negative")
    return None if number < 0 else number, pos


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
