"""Dead letters in a topic: records with which nothing is left to try, as they were, and why.

Key, value, headers and timestamp stay as they were. Headers are added whose names are those that
Kafka's brokers give to dead letters of share groups (KIP-1191, ShareGroupDLQStateManager), and one
more with the exception's class. Who replays a dead letter takes them off again; a record that dies
a second time has those of its last death only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from aiokafka_lite._compat import timeout
from aiokafka_lite.client.arguments import ClientArguments
from aiokafka_lite.consumer.processing.run import DeadRecord
from aiokafka_lite.errors import IllegalStateError, UnknownTopicOrPartitionError
from aiokafka_lite.producing import AIOKafkaProducer

Headers = Sequence[tuple[str, bytes]]

PREFIX: Final = "__dlq.errors."
TOPIC: Final = PREFIX + "topic"
PARTITION: Final = PREFIX + "partition"
OFFSET: Final = PREFIX + "offset"
GROUP: Final = PREFIX + "group"
DELIVERY_COUNT: Final = PREFIX + "delivery.count"
MESSAGE: Final = PREFIX + "message"
EXCEPTION: Final = PREFIX + "exception"
# What an error says may have whole records in it.
LONGEST_MESSAGE: Final = 1_000
# A topic that was created a moment ago may not be known to all brokers.
LONGEST_LOOK_S: Final = 5.0

# Arguments that a producer takes over from the consumer: how to reach the cluster, and as whom.
TAKEN_OVER: Final = (
    "bootstrap_servers",
    "client_id",
    "request_timeout_ms",
    "retry_backoff_ms",
    "metadata_max_age_ms",
    "connections_max_idle_ms",
    "security_protocol",
    "ssl_context",
    "sasl_mechanism",
    "sasl_plain_username",
    "sasl_plain_password",
    "sasl_oauth_token_provider",
    "allow_plaintext_credentials",
)


class DeadLetters:
    """Writes dead letters to a topic: an argument of `AIOKafkaConsumer.run`.

    ::

        await consumer.run(handle, retry=Retry(), dead_letter=DeadLetters("dlq.orders"))

    A record of partition n goes to partition n of the topic, modulo how many that has, so dead
    letters of a partition stay in order. Each is written with acks=all, and the record is finished
    when that is acknowledged. After a crash in between it is handled, and perhaps written, again.

    `run` raises at its beginning if the topic is not there. A topic that goes later, a record that
    the topic's `max.message.bytes` refuses, a cluster that cannot be reached: nothing is lost. The
    record is kept, writing it is tried again, and `health()` says why.

    Args:
        topic: Where they go.
        producer: Writes them. By default one is made with the consumer's own settings, and lives
            as long as `run`. One that is given has to be started, and stays so.

    Raises:
        ValueError: The topic has no name.
    """

    def __init__(self, topic: str, *, producer: AIOKafkaProducer | None = None) -> None:
        if not topic:
            raise ValueError(f"dead letters need the name of a topic, not {topic!r}")
        self.topic: Final = topic
        self._given = producer
        self._producer: AIOKafkaProducer | None = None
        self._group_id = ""
        self._partition_count = 1

    def __repr__(self) -> str:
        return f"DeadLetters({self.topic!r})"

    async def open(self, arguments: ClientArguments, group_id: str | None) -> None:
        """Begin to write for a consumer: called by `run`.

        Raises:
            UnknownTopicOrPartitionError: The topic is not there.
            IllegalStateError: It is open for another run.
            KafkaError: The cluster cannot be reached, or refuses.
        """
        if self._producer is not None:
            raise IllegalStateError(f"{self!r} is in use by another run(): make one for each")
        self._group_id = group_id or ""
        producer = self._given
        if producer is None:
            producer = AIOKafkaProducer(
                # A topic that is made by the way has whatever partitions and retention.
                allow_auto_create_topics=False,
                **{name: getattr(arguments, name) for name in TAKEN_OVER},
            )
            await producer.start()
        self._producer = producer
        try:
            self._partition_count = await self._count_partitions(producer)
        except BaseException:
            await self.close()
            raise

    async def _count_partitions(self, producer: AIOKafkaProducer) -> int:
        cause: BaseException
        try:
            async with timeout(LONGEST_LOOK_S):
                return len(await producer.partitions_for(self.topic))
        except (UnknownTopicOrPartitionError, asyncio.TimeoutError) as error:
            cause = error
        raise UnknownTopicOrPartitionError(
            f"there is no topic {self.topic!r} for dead letters: create it first"
        ) from cause

    async def close(self) -> None:
        """End that; a producer of its own is stopped."""
        producer, self._producer = self._producer, None
        if producer is not None and producer is not self._given:
            await producer.stop()

    async def __call__(self, dead: DeadRecord) -> None:
        """Write a record, and wait until that is acknowledged.

        When it is cancelled the record may or may not be written.

        Raises:
            KafkaError: It was not written, or nobody knows.
        """
        producer = self._producer
        if producer is None:
            raise IllegalStateError(f"{self!r} is not open: give it to consumer.run()")
        record = dead.record
        await producer.send_and_wait(
            self.topic,
            dead.value,
            key=dead.key,
            partition=record.partition % self._partition_count,
            timestamp_ms=record.timestamp,
            headers=self._headers(dead),
        )

    def _headers(self, dead: DeadRecord) -> Headers:
        record, error = dead.record, dead.error
        kind = type(error)
        added = {
            TOPIC: record.topic,
            PARTITION: str(record.partition),
            OFFSET: str(record.offset),
            GROUP: self._group_id,
            DELIVERY_COUNT: str(dead.attempts),
            EXCEPTION: f"{kind.__module__}.{kind.__qualname__}",
            MESSAGE: str(error)[:LONGEST_MESSAGE],
        }
        return [
            *without_death(record.headers),
            *((name, text.encode(errors="replace")) for name, text in added.items()),
        ]


def without_death(headers: Sequence[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Return a record's own headers, without those of an earlier death."""
    return [(name, value) for name, value in headers if not name.startswith(PREFIX)]
