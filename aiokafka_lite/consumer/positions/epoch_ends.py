"""Where leader epochs ended: OffsetForLeaderEpoch, sent to each partition's leader (KIP-320)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from aiokafka_lite.consumer.positions.leader_lookup import LeaderLookup
from aiokafka_lite.errors import KafkaError, for_code
from aiokafka_lite.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from aiokafka_lite.structs import TopicPartition

UNDEFINED: Final = -1


class EpochEnd(NamedTuple):
    """The largest epoch not above the one asked for, and the offset behind its last record."""

    leader_epoch: int
    end_offset: int

    @property
    def is_defined(self) -> bool:
        """The leader knows of an epoch so old; its log may begin behind it."""
        return self.leader_epoch != UNDEFINED and self.end_offset != UNDEFINED


class EpochEndLookup(LeaderLookup[int, EpochEnd, OffsetForLeaderEpochResponse]):
    """Asks leaders where an epoch ended."""

    def _request(self, questions: Mapping[TopicPartition, int]) -> OffsetForLeaderEpochRequest:
        topics: dict[str, OffsetForLeaderTopic] = {}
        for tp, epoch in questions.items():
            topic = topics.setdefault(tp.topic, OffsetForLeaderTopic(topic=tp.topic))
            topic.partitions.append(
                OffsetForLeaderPartition(
                    partition=tp.partition,
                    current_leader_epoch=self._leader_epoch(tp),
                    leader_epoch=epoch,
                )
            )
        return OffsetForLeaderEpochRequest(replica_id=-1, topics=list(topics.values()))

    def _answers(
        self, response: OffsetForLeaderEpochResponse, questions: Mapping[TopicPartition, int]
    ) -> Iterator[tuple[TopicPartition, EpochEnd | KafkaError]]:
        for topic in response.topics:
            for answer in topic.partitions:
                tp = TopicPartition(topic.topic, answer.partition)
                if answer.error_code:
                    error = for_code(answer.error_code)(f"the position in {tp} cannot be checked")
                    yield tp, error
                else:
                    yield tp, EpochEnd(answer.leader_epoch, answer.end_offset)
