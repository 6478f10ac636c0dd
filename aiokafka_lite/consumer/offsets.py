"""Looking offsets up by time: ListOffsets, sent to each partition's leader."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Final, NamedTuple

from aiokafka_lite._compat import timeout_at
from aiokafka_lite.client.backoff import Backoff
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.errors import (
    KafkaError,
    KafkaTimeoutError,
    UnknownTopicOrPartitionError,
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


class OffsetLookup:
    """Asks leaders for offsets by time; -2 means the first offset, -1 the last."""

    def __init__(self, config: ConsumerConfig, cluster: Cluster, rng: random.Random) -> None:
        self._config = config
        self._cluster = cluster
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

    async def try_once(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, FoundOffset], dict[TopicPartition, KafkaError]]:
        """Ask every leader once; return what was found, and why the rest was not."""
        view = self._cluster.view
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        failures: dict[TopicPartition, KafkaError] = {}
        is_stale = False
        for tp, timestamp in timestamps.items():
            leader = view.leader(tp)
            if leader is None:
                # A topic that metadata does not cover yet is being asked for already.
                is_stale = is_stale or tp.topic in view.topics
                failures[tp] = UnknownTopicOrPartitionError(
                    f"no leader is known for partition {tp}"
                ).at(tp)
            else:
                by_leader.setdefault(leader.leader, {})[tp] = timestamp
        found: dict[TopicPartition, FoundOffset] = {}
        refused: dict[TopicPartition, KafkaError] = {}
        answers = await asyncio.gather(
            *(self._ask(node_id, wanted) for node_id, wanted in by_leader.items()),
            return_exceptions=True,
        )
        for wanted, answer in zip(by_leader.values(), answers, strict=True):
            if isinstance(answer, KafkaError):
                refused.update(dict.fromkeys(wanted, answer))
            elif isinstance(answer, BaseException):
                raise answer
            else:
                self._sort(wanted, answer, found, refused)
        if is_stale or any(error.invalid_metadata for error in refused.values()):
            self._cluster.invalidate()
        failures.update(refused)
        return found, failures

    async def _ask(
        self, node_id: int, timestamps: Mapping[TopicPartition, int]
    ) -> ListOffsetsResponse:
        view = self._cluster.view
        topics: dict[str, ListOffsetsTopic] = {}
        for tp, timestamp in timestamps.items():
            leader = view.leader(tp)
            topic = topics.setdefault(tp.topic, ListOffsetsTopic(name=tp.topic))
            topic.partitions.append(
                ListOffsetsPartition(
                    partition_index=tp.partition,
                    current_leader_epoch=-1 if leader is None else leader.leader_epoch,
                    timestamp=timestamp,
                )
            )
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=self._config.isolation_level_code,
            topics=list(topics.values()),
            timeout_ms=self._config.request_timeout_ms,
        )
        return await self._cluster.request(
            node_id, request, timeout_s=self._config.request_timeout_s
        )

    @staticmethod
    def _sort(
        wanted: Mapping[TopicPartition, int],
        response: ListOffsetsResponse,
        found: dict[TopicPartition, FoundOffset],
        failures: dict[TopicPartition, KafkaError],
    ) -> None:
        for topic in response.topics:
            for answer in topic.partitions:
                tp = TopicPartition(topic.name, answer.partition_index)
                if tp not in wanted:
                    continue
                if answer.error_code:
                    failures[tp] = for_code(answer.error_code)(
                        f"offsets of partition {tp} cannot be looked up"
                    ).at(tp)
                elif answer.offset < 0 and wanted[tp] < 0:
                    failures[tp] = KafkaTimeoutError(
                        f"the leader of {tp} gave no offset for timestamp {wanted[tp]}"
                    ).at(tp)
                else:
                    found[tp] = FoundOffset(answer.offset, answer.timestamp, answer.leader_epoch)
        for tp in wanted:
            if tp not in found and tp not in failures:
                failures[tp] = KafkaTimeoutError(f"the leader of {tp} left it out").at(tp)
