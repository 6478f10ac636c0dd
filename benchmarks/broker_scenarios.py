"""Scenarios in which the embedded broker is measured, with other people's clients.

They do the same with a real Kafka, with an embedded broker that keeps its logs in memory, and with
one that keeps them in files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benchmarks.contestants import (
    CONFLUENT_CONSUMER,
    CONFLUENT_PRODUCER,
    FOOTPRINT_DIRECTORY,
    FOOTPRINT_MEMORY,
    JAVA_CONSUMER,
    JAVA_PRODUCER,
    RAW_DRAIN,
    Contestant,
)
from benchmarks.figures import BROKER_CPU_BYTE, BROKER_CPU_NS, RSS, WALL_BYTE, WALL_NS
from benchmarks.scenarios import Scenario
from benchmarks.servers import DIRECTORY, KAFKA, MEMORY
from benchmarks.topics import Topic

LARGE_BATCH_BYTES: Final = 128 << 10
SMALL_BYTES: Final = 100
BIG_ARE_FEWER: Final = 4


@dataclass(frozen=True, slots=True)
class Rate:
    """A client that reads or writes as fast as it can.

    Attributes:
        is_written: Each run writes a topic of its own; else all read the same.
        value_bytes, codec, partition_count: See `Topic`.
        batch_bytes: What the producer is told; 0 for its default.
    """

    name: str
    client: Contestant
    is_written: bool
    value_bytes: int = 100
    codec: str = "none"
    partition_count: int = 4
    batch_bytes: int = 0

    def scenario(self, records: int, rounds: int) -> Scenario:
        """Return the scenario; topics of big values have fewer records."""
        count = records if self.value_bytes <= SMALL_BYTES else records // BIG_ARE_FEWER
        topic = Topic(self.codec, self.value_bytes, count, self.partition_count)
        batches = f", batches of {self.batch_bytes >> 10} KiB" if self.batch_bytes else ""
        return Scenario(
            self.name,
            family="broker",
            title=f"{self.client.name}, {topic.title}, {topic.partition_count} partitions{batches}",
            task=self.client.task or "",
            figures=(WALL_NS, BROKER_CPU_NS),
            contestants=tuple(self.client.on(server) for server in (MEMORY, DIRECTORY, KAFKA)),
            rounds=rounds,
            topics=() if self.is_written else (topic,),
            written=topic if self.is_written else None,
            batch_bytes=self.batch_bytes,
        )


RATES: Final = (
    Rate("java-produce", JAVA_PRODUCER, True),
    Rate("java-produce-big", JAVA_PRODUCER, True, 1000),
    Rate("java-produce-one", JAVA_PRODUCER, True, 1000, partition_count=1),
    Rate("java-produce-batches", JAVA_PRODUCER, True, 1000, batch_bytes=LARGE_BATCH_BYTES),
    Rate("java-produce-lz4", JAVA_PRODUCER, True, codec="lz4"),
    Rate("confluent-produce", CONFLUENT_PRODUCER, True),
    Rate("confluent-produce-big", CONFLUENT_PRODUCER, True, 1000),
    Rate("java-consume", JAVA_CONSUMER, False),
    Rate("java-consume-big", JAVA_CONSUMER, False, 1000),
    Rate("java-consume-lz4", JAVA_CONSUMER, False, codec="lz4"),
    Rate("confluent-consume", CONFLUENT_CONSUMER, False),
    Rate("confluent-consume-big", CONFLUENT_CONSUMER, False, 1000),
)


def broker_scenarios(records: int, rounds: int) -> list[Scenario]:
    """Return all scenarios of the families broker, broker-drain and broker-footprint."""
    big = Topic("none", 1000, records // BIG_ARE_FEWER)
    drain = Scenario(
        "broker-drain",
        family="broker-drain",
        title=f"fetch {big.title}, and throw the bytes away",
        task="drain",
        figures=(WALL_BYTE, BROKER_CPU_BYTE),
        contestants=tuple(RAW_DRAIN.on(server) for server in (MEMORY, DIRECTORY, KAFKA)),
        rounds=rounds,
        topics=(big,),
        passes=4,
    )
    footprint = Scenario(
        "broker-footprint",
        family="broker-footprint",
        title="10,000 partitions, 1,000 idle connections",
        task="footprint",
        figures=(RSS,),
        contestants=(FOOTPRINT_MEMORY, FOOTPRINT_DIRECTORY),
        rounds=1,
    )
    rates = [rate.scenario(records, rounds) for rate in RATES]
    return [*rates, drain, footprint]
