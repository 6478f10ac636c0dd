"""Control records, and which batches belong to aborted transactions (KIP-98)."""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable
from typing import Final

from aiokafka_lite.errors import CorruptRecordException
from aiokafka_lite.records.batch import BatchHeader

__all__ = ["AbortedTransactions", "ControlType", "control_type"]

# version, type
CONTROL_KEY: Final = struct.Struct(">hh")


class ControlType(enum.IntEnum):
    """What a control record says. Those with other numbers are passed over."""

    ABORT = 0
    COMMIT = 1


def control_type(key: bytes | None) -> int:
    """Return the number of a control record's type, known here or not.

    Raises:
        CorruptRecordException: It is not the key of a control record.
    """
    if key is None or len(key) < CONTROL_KEY.size:
        raise CorruptRecordException("a control record's key is too short")
    kind: int
    _, kind = CONTROL_KEY.unpack_from(key)
    return kind


class AbortedTransactions:
    """Tells which batches of one fetch response a reader of committed records must not see.

    The broker lists aborted transactions by producer and first offset; each lasts until that
    producer's abort marker. Batches have to be shown in the order of their offsets.
    """

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        """Take (producer id, first offset) pairs in any order."""
        self._to_come = sorted(((first, producer) for producer, first in aborted), reverse=True)
        self._open: set[int] = set()

    def cover(self, header: BatchHeader) -> bool:
        """Whether the batch is part of an aborted transaction."""
        while self._to_come and self._to_come[-1][0] <= header.last_offset:
            self._open.add(self._to_come.pop()[1])
        return header.is_transactional and header.producer_id in self._open

    def end(self, producer_id: int) -> None:
        """Note that the producer's abort marker was passed."""
        self._open.discard(producer_id)
