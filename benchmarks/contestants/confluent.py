"""confluent-kafka (librdkafka): `consume(10000)`, with its defaults and tuned."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Final

import confluent_kafka

from benchmarks.measure import WAIT_S, Measurement, Meter, StarvedError, Workload

BATCH: Final = 10_000
CONNECT_TIMEOUT_S: Final = 10.0

# Of some twenty settings tried, the one with the least CPU time: a short queue, which stays in the
# processor's cache, and a short pause between fetches.
LEAST_CPU: Final[Mapping[str, int]] = {"queued.min.messages": 20_000, "fetch.queue.backoff.ms": 1}

# Without a pause between fetches: the least wall time.
LEAST_WALL: Final[Mapping[str, int]] = {"fetch.queue.backoff.ms": 0}


def consume(workload: Workload) -> Measurement:
    """Read with the defaults."""
    return _consume(workload, {})


def consume_least_cpu(workload: Workload) -> Measurement:
    """Read with the settings that take the least CPU time."""
    return _consume(workload, LEAST_CPU)


def consume_least_wall(workload: Workload) -> Measurement:
    """Read with the settings that take the least wall time."""
    return _consume(workload, LEAST_WALL)


def _consume(workload: Workload, settings: Mapping[str, int]) -> Measurement:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": workload.bootstrap_servers,
            "group.id": f"bench-{uuid.uuid4().hex}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **settings,
        }
    )
    try:
        consumer.list_topics(workload.topic, timeout=CONNECT_TIMEOUT_S)
        records = touched_bytes = 0
        meter = Meter()
        consumer.assign(
            [
                confluent_kafka.TopicPartition(
                    workload.topic, number, confluent_kafka.OFFSET_BEGINNING
                )
                for number in range(workload.partition_count)
            ]
        )
        while records < workload.records:
            messages = consumer.consume(min(BATCH, workload.records - records), timeout=WAIT_S)
            if not messages:
                raise StarvedError(f"consume: nothing after {records} records")
            for message in messages:
                error = message.error()
                if error is not None:
                    raise confluent_kafka.KafkaException(error)
                # No record of these topics lacks a key or a value, and a check would cost time.
                touched_bytes += len(message.key()) + len(message.value())  # type: ignore[arg-type]
            records += len(messages)
        version = f"{confluent_kafka.version()}, librdkafka {confluent_kafka.libversion()[0]}"
        return meter.stop(records, touched_bytes, version)
    finally:
        consumer.close()
