"""The topic that the job reads. Needs Kafka 2.8 or newer (DeleteTopics 6)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from aiokafka_lite import AIOKafkaConsumer, errors
from aiokafka_lite._compat import timeout
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.errors import KafkaError, KafkaTimeoutError, for_code
from aiokafka_lite.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from aiokafka_lite.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from aiokafka_lite.structs import TopicPartition
from demos.flights.scoreboard import LogRange

# The records have the times of the flights: with a retention Kafka would delete them.
TOPIC_CONFIGS: Final = {"retention.ms": "-1"}

CHANGE_TIMEOUT_S: Final = 30.0
T = TypeVar("T")

_POLL_S: Final = 0.05
_UNKNOWN: Final = errors.UnknownTopicOrPartitionError.errno


@dataclass(frozen=True, slots=True)
class FlightsTopic:
    """A topic whose partitions have leaders."""

    name: str
    ranges: Mapping[int, LogRange]
    """Offsets that each partition holds."""


class TopicAdmin:
    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self.name: Final = name

    async def inspect(self) -> FlightsTopic | None:
        """Return the topic, or None if it does not exist. Waits while partitions have no leader."""
        return await _in_time(
            self._inspect(), f"topic {self.name!r} still has partitions without a leader"
        )

    async def create(self, partition_count: int) -> FlightsTopic:
        """Create the topic and wait until each of its partitions has a leader."""
        await self._ask_controller_to_create(partition_count)

        async def wait_until_there() -> FlightsTopic:
            while True:
                topic = await self._inspect()
                if topic is not None:
                    return topic
                await asyncio.sleep(_POLL_S)

        return await _in_time(
            wait_until_there(), f"topic {self.name!r} was created, but is not listed"
        )

    async def delete(self) -> None:
        """Delete the topic if it exists, and wait until it is gone from the metadata."""
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=self.name)], timeout_ms=int(CHANGE_TIMEOUT_S * 1000)
        )
        answer = await self._cluster.request(
            await self._controller_id(), request, timeout_s=CHANGE_TIMEOUT_S
        )
        code = answer.responses[0].error_code
        if code not in (0, _UNKNOWN):
            raise for_code(code)(f"cannot delete topic {self.name!r}")

        async def wait_until_gone() -> None:
            while True:
                if (await self._metadata()).topics[0].error_code == _UNKNOWN:
                    return
                await asyncio.sleep(_POLL_S)

        await _in_time(wait_until_gone(), f"topic {self.name!r} was deleted, but is still listed")

    async def _ask_controller_to_create(self, partition_count: int) -> None:
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=self.name,
                    num_partitions=partition_count,
                    replication_factor=-1,  # the broker's default
                    configs=[
                        CreatableTopicConfig(name=name, value=value)
                        for name, value in TOPIC_CONFIGS.items()
                    ],
                )
            ],
            timeout_ms=int(CHANGE_TIMEOUT_S * 1000),
        )
        answer = await self._cluster.request(
            await self._controller_id(), request, timeout_s=CHANGE_TIMEOUT_S
        )
        result = answer.topics[0]
        if result.error_code:
            reason = f": {result.error_message}" if result.error_message else ""
            raise for_code(result.error_code)(f"cannot create topic {self.name!r}{reason}")

    async def _controller_id(self) -> int:
        return (await self._metadata()).controller_id

    async def _metadata(self) -> MetadataResponse:
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=self.name)], allow_auto_topic_creation=False
        )
        return await self._cluster.request_any(request)

    async def _inspect(self) -> FlightsTopic | None:
        while True:
            topic = (await self._metadata()).topics[0]
            if topic.error_code == _UNKNOWN:
                return None
            if topic.error_code and not (kind := for_code(topic.error_code)).retriable:
                raise kind(f"cannot use topic {self.name!r}: {kind.description}")
            leaders = {each.partition_index: each.leader_id for each in topic.partitions}
            if leaders and min(leaders.values()) >= 0:
                try:
                    ranges = await self._offset_ranges(leaders)
                except KafkaError as error:
                    if not error.retriable:
                        raise
                else:
                    return FlightsTopic(self.name, ranges)
            await asyncio.sleep(_POLL_S)

    async def _offset_ranges(self, partitions: Iterable[int]) -> dict[int, LogRange]:
        servers = str(self._cluster.config.bootstrap_servers)
        tps = [TopicPartition(self.name, number) for number in sorted(partitions)]
        async with AIOKafkaConsumer(bootstrap_servers=servers) as consumer:
            beginnings = await consumer.beginning_offsets(tps)
            ends = await consumer.end_offsets(tps)
        return {tp.partition: LogRange(beginnings[tp], ends[tp]) for tp in tps}


async def _in_time(change: Coroutine[object, None, T], complaint: str) -> T:
    try:
        async with timeout(CHANGE_TIMEOUT_S):
            return await change
    except asyncio.TimeoutError:
        raise KafkaTimeoutError(f"{complaint} after {CHANGE_TIMEOUT_S:g} s") from None
