"""Finds the next readable offset after a batch that cannot be read.

The header of a broken batch may be wrong, so only offsets that evidently belong to the batch are
skipped. If the broker sends the same batch again, the next offset is skipped, and so on.
"""

from __future__ import annotations

from aiokafka_lite.errors import KafkaError
from aiokafka_lite.records.batch import (
    LOG_OVERHEAD,
    MAX_OFFSET,
    BatchHeader,
    check_crc,
    peek_header,
    read_header,
)


def next_offset_after(view: memoryview, pos: int, floor: int) -> int:
    """Return the next offset after the bad batch at `pos`, at least `floor` + 1.

    The evidence, in this order: its own header if the checksum is right, the valid batch that
    follows, a header whose record count and last offset agree. The batch may be incomplete. `floor`
    is the first offset that cannot be read.
    """
    own = peek_header(view, pos)
    if own is None:
        return floor + 1
    is_plausible = floor <= own.last_offset <= MAX_OFFSET  # offsets are not in the checksum
    if not is_plausible or not _is_sound(own, view, pos):
        following = _sound_batch(view, pos + LOG_OVERHEAD + max(own.batch_length, 0))
        if following is not None and following.magic == 2 and following.base_offset > floor:
            return following.base_offset
        if own.magic == 2 and own.last_offset_delta != own.count - 1:
            return floor + 1
    return own.last_offset + 1 if is_plausible else floor + 1


def next_offset_after_last(view: memoryview, end: int, floor: int) -> int:
    """Return the next offset after the batch that ends at `end`, at least `floor` + 1."""
    pos = 0
    while pos < end and (header := read_header(view, pos)) is not None:
        pos += header.size
        if pos == end and header.last_offset >= floor:
            return header.last_offset + 1
    return floor + 1


def _sound_batch(view: memoryview, pos: int) -> BatchHeader | None:
    """Return the header of a complete batch with the right checksum, or None."""
    try:
        header = read_header(view, pos) if pos < len(view) else None
    except KafkaError:
        return None
    return header if header is not None and _is_sound(header, view, pos) else None


def _is_sound(header: BatchHeader, view: memoryview, pos: int) -> bool:
    batch = view[pos : pos + header.size]
    if len(batch) < header.size or header.batch_length < 0:
        return False
    try:
        check_crc(header, batch)
    except KafkaError:
        return False
    return True
