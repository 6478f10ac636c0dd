"""A partition's log as far as producers are concerned: which batches it takes, and what it answers.

After `ProducerStateManager` of Kafka's storage module: five batches are remembered, a later epoch
begins at sequence 0, and nothing is taken behind a gap. A batch that was written and is no longer
remembered is out of order, too: Kafka's brokers never answer DUPLICATE_SEQUENCE_NUMBER.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import NamedTuple

from aiokafka_lite.producing.batch import ProducerBatch, ProducerIdAndEpoch, sequence_after

REMEMBERED_BATCHES = 5


class Sent(NamedTuple):
    """A batch as it was on the wire: what becomes of the object later changes nothing."""

    batch: ProducerBatch
    identity: ProducerIdAndEpoch
    base_sequence: int
    values: tuple[int, ...]
    log: ModelLog

    @property
    def record_count(self) -> int:
        return len(self.values)


class Answer(enum.Enum):
    """What the log says to a batch."""

    WRITTEN = "written"
    OUT_OF_ORDER = "out of order"
    OLD_EPOCH = "of an old epoch"
    DELETED = "for a topic that was deleted"


class ModelLog:
    """The log and what it knows of one producer."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self._epoch = -1
        self._next_sequence = 0
        self._recent: deque[tuple[int, int]] = deque(maxlen=REMEMBERED_BATCHES)

    def take(self, sent: Sent) -> Answer:
        """Write a batch, if it is the one that follows."""
        if sent.identity.epoch < self._epoch:
            return Answer.OLD_EPOCH
        if sent.identity.epoch > self._epoch:
            if sent.base_sequence != 0 and self._epoch >= 0:
                return Answer.OUT_OF_ORDER
            # Of a producer that it does not know it takes whatever comes first.
            self._epoch, self._next_sequence = sent.identity.epoch, sent.base_sequence
            self._recent.clear()
        if (sent.base_sequence, sent.record_count) in self._recent:
            return Answer.WRITTEN
        if sent.base_sequence != self._next_sequence:
            return Answer.OUT_OF_ORDER
        self.values += sent.values
        self._next_sequence = sequence_after(sent.base_sequence, sent.record_count)
        self._recent.append((sent.base_sequence, sent.record_count))
        return Answer.WRITTEN
