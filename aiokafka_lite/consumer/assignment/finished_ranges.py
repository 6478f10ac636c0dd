"""The ranges finished behind a committed offset, as the metadata committed with it.

Metadata are a string of at most 4,096 bytes by default (offset.metadata.max.bytes). Clients that do
not know this name and version process the finished records again.

    aiokafka-lite/1 <base64 of:>
        4 bytes  CRC-32 of the topic's id, the offset (8 bytes), and the bytes that follow
        varint   leader epoch of the newest finished record, plus one
        pairs    varint unfinished, varint finished: lengths in offsets, from the committed one on

The ranges belong to one log and one committed offset. A recreated topic has another id. A
MirrorMaker copy has another id and offset. A truncated log has lost the leader epoch, or its end:
the leader is asked first, as for the position (positions/resolver.py).

Ranges that do not fit are dropped from the end. If a broker refuses a length, the limit is halved,
at last to zero.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final, NamedTuple

from aiokafka_lite.consumer.assignment.cursor import NO_EPOCH, Range
from aiokafka_lite.structs import OffsetAndMetadata

NAME: Final = "aiokafka-lite/1 "
# Less than offset.metadata.max.bytes by default, 4,096.
MOST_CHARACTERS: Final = 3_500
# With less room than this no ranges are written.
LEAST_CHARACTERS: Final = 64
CHECK: Final = struct.Struct(">I")
OFFSET: Final = struct.Struct(">q")


class FinishedRanges(NamedTuple):
    leader_epoch: int
    ranges: tuple[Range, ...]


def encode(
    topic_id: bytes,
    offset: int,
    leader_epoch: int,
    ranges: Iterable[Range],
    most_characters: int = MOST_CHARACTERS,
) -> str:
    """Return the metadata of an offset, "" without ranges, or without a topic id to check."""
    return encode_what_fits(topic_id, offset, leader_epoch, ranges, most_characters)[0]


def encode_what_fits(
    topic_id: bytes,
    offset: int,
    leader_epoch: int,
    ranges: Iterable[Range],
    most_characters: int = MOST_CHARACTERS,
) -> tuple[str, bool]:
    most_bytes = (most_characters - len(NAME)) // 4 * 3
    if not topic_id:
        return "", not any(True for _ in ranges)
    encoded = bytearray(CHECK.size)
    _put(encoded, leader_epoch + 1)
    end, is_empty, is_all = offset, True, True
    for first, next_end in ranges:
        before = len(encoded)
        _put(encoded, first - end)
        _put(encoded, next_end - first)
        if len(encoded) > most_bytes:
            del encoded[before:]
            is_all = False
            break
        end, is_empty = next_end, False
    if is_empty:
        return "", is_all
    CHECK.pack_into(encoded, 0, _check(topic_id, offset, encoded))
    return NAME + base64.b64encode(encoded).decode(), is_all


def decode(topic_id: bytes, offset: int, metadata: str) -> FinishedRanges | None:
    """Return the finished ranges in metadata, if these are ours and of this log and offset."""
    if not is_ours(metadata):
        return None
    try:
        encoded = base64.b64decode(metadata[len(NAME) :], validate=True)
        (check,) = CHECK.unpack_from(encoded)
    except (ValueError, struct.error):
        return None
    if check != _check(topic_id, offset, encoded):
        return None
    numbers = _numbers(memoryview(encoded)[CHECK.size :])
    leader_epoch = next(numbers) - 1
    ranges: list[Range] = []
    end = offset
    for unfinished in numbers:
        first = end + unfinished
        end = first + next(numbers)
        ranges.append(Range(first, end))
    return FinishedRanges(leader_epoch, tuple(ranges))


def united(
    topic_id: bytes,
    one: OffsetAndMetadata,
    other: OffsetAndMetadata,
    most_characters: int = MOST_CHARACTERS,
) -> OffsetAndMetadata:
    found = [each for c in (one, other) if (each := decode(topic_id, *c)) is not None]
    offset, left = max(one.offset, other.offset), list[Range]()
    for first, end in sorted(chain.from_iterable(each.ranges for each in found)):
        if first <= offset:
            offset = max(offset, end)
        elif left and first <= left[-1].end:
            left[-1] = Range(left[-1].first, max(end, left[-1].end))
        else:
            left.append(Range(first, end))
    epoch = max((each.leader_epoch for each in found), default=NO_EPOCH)
    return OffsetAndMetadata(offset, encode(topic_id, offset, epoch, left, most_characters))


def is_ours(metadata: str) -> bool:
    return metadata.startswith(NAME)


def shortened(topic_id: bytes, offset: int, metadata: str, most_characters: int) -> str:
    if len(metadata) <= most_characters:
        return metadata
    finished = decode(topic_id, offset, metadata)
    if finished is None:
        return ""
    return encode(topic_id, offset, *finished, most_characters)


def _check(topic_id: bytes, offset: int, encoded: bytes | bytearray) -> int:
    return zlib.crc32(encoded[CHECK.size :], zlib.crc32(topic_id + OFFSET.pack(offset)))


def _put(encoded: bytearray, number: int) -> None:
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)


def _numbers(encoded: memoryview) -> Iterator[int]:
    number = shift = 0
    for byte in encoded:
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            yield number
            number = shift = 0
