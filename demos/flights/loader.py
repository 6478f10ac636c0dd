"""Loads the data set into the topic: no record is missing or duplicated.

If the load fails or is interrupted, the next attempt recreates the topic.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from aiokafka_lite import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.structs import RecordMetadata, TopicPartition
from demos.flights.dataset import COLUMNS, read_flights
from demos.flights.problems import ForeignTopicError, LoadError
from demos.flights.scoreboard import LogRange
from demos.flights.statistics import Expectation
from demos.flights.topic import FlightsTopic, TopicAdmin

BATCH_BYTES: Final = 512 * 1024
"""Keys and values that are written together, below Kafka's limit of 1 MiB for one batch."""
ATTEMPTS: Final = 3
_SAMPLE_TIMEOUT_MS: Final = 5_000


class Loader:
    def __init__(
        self,
        cluster: Cluster,
        admin: TopicAdmin,
        expectation: Expectation,
        limit: int | None = None,
    ) -> None:
        self._bootstrap_servers = str(cluster.config.bootstrap_servers)
        self._admin = admin
        self._expectation = expectation
        self._limit = limit

    async def find_loaded(self) -> Mapping[int, LogRange] | None:
        """Return the offsets of each partition if the topic has exactly the data set.

        Raises:
            ForeignTopicError: It has other records, which this program must not delete.
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
        """Recreate the topic, write the data set to it, and return the offsets of each partition.

        Raises:
            LoadError: Several attempts failed.
        """
        last_error: KafkaError | None = None
        for _ in range(ATTEMPTS):
            try:
                await self._admin.delete()
                await self._admin.create(len(self._expectation.partition_counts))
                await self._write(on_progress)
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

    async def _write(self, on_progress: Callable[[int], None]) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap_servers,
            client_id="aiokafka-lite-flights-loader",
            compression_type="zstd",
            max_batch_size=BATCH_BYTES,
        )
        async with producer:
            sent: list[asyncio.Future[RecordMetadata]] = []
            written = sent_bytes = 0
            for flight in read_flights(self._limit):
                timestamp_ms, key, value = flight.to_record()
                sent.append(
                    await producer.send(self._admin.name, value, key=key, timestamp_ms=timestamp_ms)
                )
                sent_bytes += len(key) + len(value)
                if sent_bytes >= BATCH_BYTES:
                    written += await _acknowledged(producer, sent)
                    on_progress(written)
                    sent, sent_bytes = [], 0
            on_progress(written + await _acknowledged(producer, sent))

    async def _refuse_foreign_records(self, topic: FlightsTopic) -> None:
        """Check whether the first record of each partition is a flight."""
        async with AIOKafkaConsumer(bootstrap_servers=self._bootstrap_servers) as consumer:
            for number, each in topic.ranges.items():
                if each.record_count == 0:
                    continue
                tp = TopicPartition(topic.name, number)
                consumer.assign([tp])
                consumer.seek(tp, each.beginning)
                found = await consumer.getmany(timeout_ms=_SAMPLE_TIMEOUT_MS, max_records=1)
                if not found:
                    raise ForeignTopicError(
                        topic.name,
                        f"the first record of partition {number} cannot be read within "
                        f"{_SAMPLE_TIMEOUT_MS / 1000:g} s",
                    )
                for record in found.get(tp, ()):
                    if not _is_flight(record.key, record.value):
                        raise ForeignTopicError(
                            topic.name,
                            f"the record at offset {record.offset} of partition {number} is not a "
                            "flight",
                        )


async def _acknowledged(
    producer: AIOKafkaProducer, sent: Sequence[asyncio.Future[RecordMetadata]]
) -> int:
    await producer.flush()
    for error in [future.exception() for future in sent]:
        if error is not None:
            raise error
    return len(sent)


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
