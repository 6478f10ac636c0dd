"""What a task reads: ranges of offsets, and where they were led when they were planned."""

from __future__ import annotations

from typing import NamedTuple

from aiokafka_lite.client.view import NO_EPOCH, Node
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.structs import TopicPartition


class KafkaOffsetRange(NamedTuple):
    """The records of one partition from `start` up to, and without, `end`.

    Leader, leader epoch and topic id are what the planner knew: a task that trusts them needs no
    metadata of its own unless the broker says otherwise.
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: bytes = ZERO_UUID
    leader: Node | None = None
    leader_epoch: int = NO_EPOCH

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """How many offsets it covers; it has as many records at most."""
        return self.end - self.start
