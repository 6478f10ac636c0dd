"""Looking offsets up by time: ListOffsets, sent to each partition's leader."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from aiokafka_lite._compat import timeout_at
from aiokafka_lite.client.backoff import Backoff
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.positions.leader_lookup import LeaderLookup
from aiokafka_lite.errors import (
    KafkaError,
    KafkaTimeoutError,
    for_code,
)
from aiokafka_lite.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from aiokafka_lite.structs import TopicPartition

LAST_BACKOFF_S: Final = 1.0


class FoundOffset(NamedTuple):
    """The first offset at or after a time; offset and timestamp are -1 when there is none."""

    offset: int
    timestamp: int
    leader_epoch: int


class OffsetLookup(LeaderLookup[int, FoundOffset, ListOffsetsResponse]):
    """Asks leaders for offsets by time; -2 means the first offset, -1 the last."""

    def __init__(self, config: ConsumerConfig, cluster: Cluster, rng: random.Random) -> None:
        super().__init__(config, cluster)
        self._rng = rng

    async def find(
        self, timestamps: Mapping[TopicPartition, int], deadline: float
    ) -> dict[TopicPartition, FoundOffset]:
        """Look all of them up, trying again until the deadline.

        Raises:
            KafkaTimeoutError: Not all were found by the deadline; says what kept the rest.
            KafkaError: A broker refused for a reason that does not pass.
        """
        found: dict[TopicPartition, FoundOffset] = {}
        missing = dict(timestamps)
        failures: dict[TopicPartition, KafkaError] = {}
        backoff = Backoff(self._config.retry_backoff_s, LAST_BACKOFF_S, self._rng)
        try:
            async with timeout_at(deadline):
                while missing:
                    answers, failures = await self.try_once(missing)
                    found.update(answers)
                    missing = {tp: at for tp, at in missing.items() if tp not in found}
                    for error in failures.values():
                        if not (error.retriable or error.invalid_metadata):
                            raise error
                    if missing:
                        await asyncio.sleep(backoff.next_delay_s())
        except asyncio.TimeoutError:
            reasons = "; ".join(f"{tp.topic}/{tp.partition}: {e}" for tp, e in failures.items())
            raise KafkaTimeoutError(
                f"offsets of {len(missing)} partitions were not found in time"
                + (f" ({reasons})" if reasons else "")
            ) from None
        return found

    def _request(self, questions: Mapping[TopicPartition, int]) -> ListOffsetsRequest:
        topics: dict[str, ListOffsetsTopic] = {}
        for tp, timestamp in questions.items():
            topic = topics.setdefault(tp.topic, ListOffsetsTopic(name=tp.topic))
            topic.partitions.append(
                ListOffsetsPartition(
                    partition_index=tp.partition,
                    current_leader_epoch=self._leader_epoch(tp),
                    timestamp=timestamp,
                )
            )
        return ListOffsetsRequest(
            replica_id=-1,
            isolation_level=self._config.isolation_level_code,
            topics=list(topics.values()),
            timeout_ms=self._config.request_timeout_ms,
        )

    def _answers(
        self, response: ListOffsetsResponse, questions: Mapping[TopicPartition, int]
    ) -> Iterator[tuple[TopicPartition, FoundOffset | KafkaError]]:
        for topic in response.topics:
            for answer in topic.partitions:
                tp = TopicPartition(topic.name, answer.partition_index)
                if answer.error_code:
                    error = for_code(answer.error_code)
                    yield tp, error(f"offsets of partition {tp} cannot be looked up")
                elif answer.offset < 0 and questions.get(tp, 0) < 0:
                    text = f"the leader of {tp} gave no offset for timestamp {questions[tp]}"
                    yield tp, KafkaTimeoutError(text)
                else:
                    yield tp, FoundOffset(answer.offset, answer.timestamp, answer.leader_epoch)
