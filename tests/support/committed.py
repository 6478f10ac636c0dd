"""What other clients read of a topic with committed records, whose values are numbers."""

from __future__ import annotations

from collections import Counter
from typing import Final

from confluent_kafka import Consumer

from tests.support.cluster import unique
from tests.support.java import JavaTools

PATIENCE_S: Final = 120.0


def read_librdkafka(where: str, topic: str, count: int) -> Counter[int]:
    """Return how often librdkafka reads each number; `count` of them at least."""
    consumer = Consumer(
        {
            "bootstrap.servers": where,
            "group.id": unique("reader"),
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([topic])
    found: Counter[int] = Counter()
    quiet = 0
    while quiet < 5 or found.total() < count:
        message = consumer.poll(1.0)
        quiet = quiet + 1 if message is None else 0
        if quiet > PATIENCE_S:
            break
        if message is not None and not message.error():
            found[int(message.value() or b"-1")] += 1
    consumer.close()
    return found


async def read_java(tools: JavaTools, where: str, topic: str) -> Counter[int]:
    """Return how often Java's consumer reads each number."""
    # It ends by its time-out.
    ended = await tools.run(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "--bootstrap-server", where, "--topic", topic, "--from-beginning",
        "--timeout-ms", "8000", "--isolation-level", "read_committed",
        timeout_s=PATIENCE_S,
    )  # fmt: skip
    return Counter(int(line) for line in ended.stdout.splitlines() if line.strip().isdigit())
