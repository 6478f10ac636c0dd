"""Brings the topic to hold exactly the data set: no record missing, none twice.

This is no producer for others to use. It writes each partition's batches one after the other, so
their order is certain, and all partitions at the same time, so that the network, the broker and
the encoder work in parallel. When anything goes wrong, nothing is sent again (the broker may have
it already): the topic is made anew.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Final

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client import Cluster
from aiokafka_lite.errors import KafkaError, for_code
from aiokafka_lite.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from aiokafka_lite.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from aiokafka_lite.records import RecordSet, build_batch
from aiokafka_lite.records.partitioner import partition_for_key
from demos.flights.dataset import COLUMNS, FlightRecord, read_flights
from demos.flights.expectation import Expectation
from demos.flights.problems import ForeignTopicError, LoadError
from demos.flights.scoreboard import LogRange
from demos.flights.topic import FlightsTopic, TopicAdmin

BATCH_BYTES: Final = 512 * 1024
"""Keys and values in one batch, before compression; below Kafka's limit of 1 MiB in any case."""
CODEC: Final = "zstd"
ATTEMPTS: Final = 3
_ACKS_ALL: Final = -1
_PRODUCE_TIMEOUT_S: Final = 30.0
_SAMPLE_BYTES: Final = 1024 * 1024


class Loader:
    """Loads one topic of one cluster.

    Args:
        cluster: A started cluster.
        admin: The topic.
        expectation: What the topic must hold.
        limit: Number of flights that the expectation was computed from; None for all.
    """

    def __init__(
        self,
        cluster: Cluster,
        admin: TopicAdmin,
        expectation: Expectation,
        limit: int | None = None,
    ) -> None:
        self._cluster = cluster
        self._admin = admin
        self._expectation = expectation
        self._limit = limit

    async def find_loaded(self) -> Mapping[int, LogRange] | None:
        """Return the offsets of each partition if the topic holds exactly the data set.

        Raises:
            ForeignTopicError: It holds something else, which this program must not delete.
        """
        topic = await self._admin.inspect()
        if topic is None:
            return None
        counts = tuple(each.record_count for each in topic.ranges.values())
        if counts == self._expectation.partition_counts:
            return topic.ranges
        await self._refuse_foreign_records(topic)
        return None

    async def load(self, on_progress: Callable[[int], None]) -> Mapping[int, LogRange]:
        """Make the topic anew and write the data set to it.

        Args:
            on_progress: Called with the number of flights that the broker has acknowledged.

        Returns:
            The offsets of each partition.

        Raises:
            LoadError: It did not succeed in several attempts.
        """
        last_error: KafkaError | None = None
        for _ in range(ATTEMPTS):
            try:
                await self._admin.delete()
                topic = await self._admin.create(len(self._expectation.partition_counts))
                await self._write(topic, on_progress)
                loaded = await self.find_loaded()
            except KafkaError as error:
                if not error.retriable:
                    raise
                last_error = error
                continue
            if loaded is not None:
                return loaded
        raise LoadError(
            f"cannot load the flights into topic {self._admin.name!r} in {ATTEMPTS} attempts "
            f"({last_error or 'the topic has more or fewer records than were written'}): check "
            "that no other client writes to the topic, and that the broker is reachable"
        ) from last_error

    async def _write(self, topic: FlightsTopic, on_progress: Callable[[int], None]) -> None:
        scope = TaskScope(f"load {topic.name}")
        try:
            writer = _Writer(self._cluster, topic, scope, on_progress)
            partition_count = len(topic.leaders)
            for flight in read_flights(self._limit):
                record = flight.to_record()
                await writer.append(partition_for_key(record.key, partition_count), record)
            await writer.flush()
        finally:
            await scope.close()

    async def _refuse_foreign_records(self, topic: FlightsTopic) -> None:
        """Look at the first record of each partition: is it one that this program writes?"""
        for number, each in topic.ranges.items():
            if each.record_count == 0:
                continue
            request = FetchRequest(
                max_wait_ms=0,
                min_bytes=1,
                max_bytes=_SAMPLE_BYTES,
                topics=[
                    FetchTopic(
                        topic=topic.name,
                        topic_id=topic.topic_id,
                        partitions=[
                            FetchPartition(
                                partition=number,
                                fetch_offset=each.beginning,
                                partition_max_bytes=_SAMPLE_BYTES,
                            )
                        ],
                    )
                ],
            )
            answer = await self._cluster.request(topic.leaders[number], request)
            code = answer.error_code or answer.responses[0].partitions[0].error_code
            if code:
                raise for_code(code)(f"reading {topic.name}-{number}")
            view = answer.responses[0].partitions[0].records
            if view is None:
                continue
            records = RecordSet(
                topic.name, number, memoryview(view), fetch_offset=each.beginning
            ).take(1)
            for record in records:
                if not _is_flight(record.key, record.value):
                    raise ForeignTopicError(
                        topic.name,
                        f"the record at offset {record.offset} of partition {number} is not a "
                        "flight",
                    )


class _Writer:
    """Gathers records into batches, and keeps one Produce request per partition under way."""

    def __init__(
        self,
        cluster: Cluster,
        topic: FlightsTopic,
        scope: TaskScope,
        on_progress: Callable[[int], None],
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._scope = scope
        self._on_progress = on_progress
        self._acknowledged = 0
        self._open: dict[int, list[FlightRecord]] = {number: [] for number in topic.leaders}
        self._open_bytes = dict.fromkeys(topic.leaders, 0)
        self._under_way: dict[int, asyncio.Task[KafkaError | None]] = {}

    async def append(self, partition: int, record: FlightRecord) -> None:
        """Add a record; waits when its partition's previous batch is still under way."""
        self._open[partition].append(record)
        self._open_bytes[partition] += len(record.key) + len(record.value)
        if self._open_bytes[partition] >= BATCH_BYTES:
            await self._send(partition)

    async def flush(self) -> None:
        """Send what is left and wait until all of it is acknowledged."""
        for partition in self._topic.leaders:
            await self._send(partition)
        for partition in self._topic.leaders:
            await self._settle(partition)

    async def _send(self, partition: int) -> None:
        await self._settle(partition)
        records = self._open[partition]
        if not records:
            return
        self._open[partition], self._open_bytes[partition] = [], 0
        self._under_way[partition] = self._scope.spawn(
            self._produce(partition, records), name=f"produce to partition {partition}"
        )

    async def _settle(self, partition: int) -> None:
        """Wait for the batch that is under way, if any; raises what became of it."""
        task = self._under_way.pop(partition, None)
        # Whoever is cancelled while waiting here leaves the task to its scope, which ends it.
        if task is not None and (error := await asyncio.shield(task)) is not None:
            raise error

    async def _produce(self, partition: int, records: list[FlightRecord]) -> KafkaError | None:
        """Write one batch; an error is handed back, for `_settle` to raise."""
        loop = asyncio.get_running_loop()
        # In a thread: compressing half a megabyte must not hold up the loop, least of all when the
        # broker runs on it too.
        batch = await loop.run_in_executor(None, _encode, records)
        request = ProduceRequest(
            acks=_ACKS_ALL,
            timeout_ms=int(_PRODUCE_TIMEOUT_S * 1000),
            topic_data=[
                TopicProduceData(
                    name=self._topic.name,
                    topic_id=self._topic.topic_id,
                    partition_data=[PartitionProduceData(index=partition, records=batch)],
                )
            ],
        )
        try:
            answer = await self._cluster.request(
                self._topic.leaders[partition], request, timeout_s=_PRODUCE_TIMEOUT_S
            )
        except KafkaError as error:
            return error
        result = answer.responses[0].partition_responses[0]
        if result.error_code:
            reason = f": {result.error_message}" if result.error_message else ""
            return for_code(result.error_code)(f"writing to {self._topic.name}-{partition}{reason}")
        self._acknowledged += len(records)
        self._on_progress(self._acknowledged)
        return None


def _encode(records: list[FlightRecord]) -> memoryview:
    return memoryview(
        build_batch(
            ((record.timestamp_ms, record.key, record.value, ()) for record in records),
            codec=CODEC,
        )
    )


def _is_flight(key: bytes | None, value: bytes | None) -> bool:
    try:
        flight = json.loads(value or b"null")
    except ValueError:
        return False
    return (
        isinstance(flight, dict)
        and tuple(flight) == COLUMNS
        and key == str(flight["carrier"]).encode()
    )
