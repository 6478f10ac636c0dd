"""Control records, and the batches of aborted transactions (KIP-98)."""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from aiokafka_lite.errors import CorruptRecordException
from aiokafka_lite.records.batch import HEADER_BYTES, BatchHeader
from aiokafka_lite.structs import ConsumerRecord

# version, type
CONTROL_KEY: Final = struct.Struct(">hh")
# version, coordinator epoch
END_MARKER_VALUE: Final = struct.Struct(">hi")


class ControlType(enum.IntEnum):
    """The types of control records. Others are skipped."""

    ABORT = 0
    COMMIT = 1


def control_type(key: bytes | None) -> int:
    """Return the number of a type, which may be unknown here."""
    if key is None or len(key) < CONTROL_KEY.size:
        raise CorruptRecordException("the key of a control record is missing or too short")
    kind: int
    _, kind = CONTROL_KEY.unpack_from(key)
    return kind


class EndMarker(NamedTuple):
    type: ControlType
    coordinator_epoch: int


def end_marker(header: BatchHeader, batch: memoryview) -> EndMarker | None:
    """Return the marker in a control batch. None for other types, or after compaction."""
    if header.count == 0:
        return None
    from aiokafka_lite.records import decoders  # which import this module

    records: list[ConsumerRecord] = []
    decoders.current().BatchCursor(
        "",
        0,
        batch[HEADER_BYTES:],
        count=header.count,
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        append_time=None,
        floor=0,
    ).take(records, 1)
    kind = control_type(records[0].key)
    value = records[0].value
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    if value is None or len(value) < END_MARKER_VALUE.size:
        raise CorruptRecordException("the value of a transaction marker is missing or too short")
    _, coordinator_epoch = END_MARKER_VALUE.unpack_from(value)
    return EndMarker(ControlType(kind), coordinator_epoch)


class AbortedTransactions:
    """Finds batches of aborted transactions, which abort markers end, in the order of offsets."""

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        """Take (producer id, first offset) pairs in any order."""
        self._to_come = sorted(((first, producer) for producer, first in aborted), reverse=True)
        self._open: set[int] = set()

    def cover(self, header: BatchHeader) -> bool:
        """Return whether the batch is part of an aborted transaction."""
        while self._to_come and self._to_come[-1][0] <= header.last_offset:
            self._open.add(self._to_come.pop()[1])
        return header.is_transactional and header.producer_id in self._open

    def end(self, producer_id: int) -> None:
        self._open.discard(producer_id)
