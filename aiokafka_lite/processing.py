"""Arguments of `AIOKafkaConsumer.run`: handlers by topic, retries, breaker, dead letters.

Dead letters are failed records with their original bytes, in a topic. Headers are added with the
names of share groups' dead letters in Kafka's brokers (KIP-1191, ShareGroupDLQStateManager), the
exception's class and the record's timestamp. A replay removes them.

A letter's timestamp is the time of writing, because the topic's retention would delete letters of
old records at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final, Literal, TypeAlias, get_args

from aiokafka_lite._arguments import INT, TEXT
from aiokafka_lite._compat import override
from aiokafka_lite._virtual import wall_ms
from aiokafka_lite.consumer.processing.bounds import RunSummary
from aiokafka_lite.consumer.processing.calls import text_of
from aiokafka_lite.consumer.processing.delays import TOO_LARGE
from aiokafka_lite.consumer.processing.handlers import Router
from aiokafka_lite.consumer.processing.handling import (
    DROP,
    CircuitBreaker,
    DeadRecord,
    LetterWriter,
    Retry,
    RunContext,
    check_producer,
)
from aiokafka_lite.consumer.processing.headers import (
    DELAY_COUNT,
    DELIVERY_COUNT,
    EXCEPTION,
    FIRST_EXCEPTION,
    FIRST_MESSAGE,
    FIRST_TIMESTAMP,
    GROUP,
    KEPT,
    MESSAGE,
    OFFSET,
    PARTITION,
    PREFIX,
    TIMESTAMP,
    TOPIC,
    VALUE_SHA256,
    VALUE_SIZE,
    WAITING,
    Headers,
    without_death,
)
from aiokafka_lite.consumer.processing.limits import Concurrency
from aiokafka_lite.consumer.processing.outbox import GivenProducer, Outbox, Outputs
from aiokafka_lite.errors import IllegalStateError, UnknownTopicOrPartitionError
from aiokafka_lite.producing import AIOKafkaProducer
from aiokafka_lite.producing.batch import Output
from aiokafka_lite.producing.lease import ProducerLease

__all__ = [
    "DROP",
    "CircuitBreaker",
    "Concurrency",
    "DeadLetters",
    "DeadRecord",
    "Outputs",
    "Retry",
    "Router",
    "RunSummary",
]

NewProducer = Callable[[], AIOKafkaProducer]


class PlainWriter:
    """Writes each letter on its own."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer

    async def count_partitions(self, topic: str) -> int:
        return await self._producer.count_partitions(topic, LONGEST_LOOK_S)

    async def write(self, dead: DeadRecord, letter: Output) -> None:
        await self._producer.send_and_wait(**letter._asdict())


class OwnProducer(GivenProducer):
    """A producer that is created for an outbox, and again after it was dismissed."""

    can_replace = True

    def __init__(self, make: NewProducer) -> None:
        self._make = make
        self._lease = None
        # Two producers with one transactional id would fence each other.
        self._changing = asyncio.Lock()

    @override
    async def lend(self) -> ProducerLease:
        async with self._changing:
            if self._lease is None:
                producer = self._make()
                await producer.start()
                self._producer = producer
            return await super().lend()

    @override
    async def dismiss(self) -> None:
        async with self._changing:
            if self._lease is not None:
                self._lease = None
                await self._producer.stop()


class OutboxWriter:
    """Writes letters with their records' offsets in an outbox."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    async def count_partitions(self, topic: str) -> int:
        return await (await self._outbox.lease()).count_partitions(topic, LONGEST_LOOK_S)

    async def write(self, dead: DeadRecord, letter: Output) -> None:
        if dead.job is None:
            raise IllegalStateError(
                "dead letters can be written in transactions only for records that consumer.run() "
                "processes"
            )
        await self._outbox.deliver(dead.job, letter._replace(timestamp_ms=wall_ms()))


# What an error says may have whole records in it.
LONGEST_MESSAGE: Final = 1_000
# A topic that was created a moment ago may not be known to all brokers.
LONGEST_LOOK_S: Final = 5.0
# Until its end the next owner of the partition waits, and so does who reads committed dead letters.
# Shorter than most sessions, so that a member that has crashed is missed for longer than this.
TRANSACTION_TIMEOUT_MS: Final = 15_000

# The broker knows how large a record may be, and a producer of letters has no limit of its own.
NO_LIMIT: Final = 2**31 - 1
WhatIfTooLarge: TypeAlias = Literal["keep", "drop", "stub"]

log = logging.getLogger(__name__)


class DeadLetters:
    """Writes dead letters to a topic: an argument of `AIOKafkaConsumer.run`.

    ::

        await consumer.run(handle, retry=Retry(), dead_letter=DeadLetters("dlq.orders"))

    A record of partition n is written to partition n of the topic, modulo its number of partitions,
    so dead letters of a partition stay in order. Each is written with acks=all, and the
    acknowledgement finishes the record. After a crash in between, the record is handled, and
    perhaps written, again. With a `transactional_id`, letter and offset are committed in one
    transaction, so readers with isolation_level="read_committed" see each letter once.

    `run` raises at its start if the topic does not exist. If writing fails later, the record is
    kept, writing is retried, and `health()` reports the reason.

    Args:
        topic: The topic of the dead letters.
        producer: A started producer, which stays started. By default one is created with the
            consumer's settings, for the duration of `run`.
        transactional_id: The transactional id of the created producer. Each member of the group
            needs its own, and the same one after a restart: the next start then aborts a
            transaction that a crash has left open. Otherwise the brokers do, after
            `transaction_timeout_ms`. If the dead letters of a run depend on the error, all that
            have a transactional_id have the same one, and share the producer.
        transaction_timeout_ms: The time after which brokers abort an open transaction. If it
            exceeds their `transaction.max.timeout.ms`, `run` raises their error.
        too_large: What happens to a letter that exceeds the topic's `max.message.bytes`. "keep": it
            is retried. Its partition stops when too many records wait behind it. "drop": the record
            is skipped, with a warning in the log. "stub": a letter without a value is written, with
            the value's size and SHA-256 in its headers. Key and headers of the record are omitted
            if they do not fit either.

    Raises:
        ValueError, TypeError: An argument is invalid, or both `producer` and `transactional_id` are
            given.
    """

    _contents = "dead letters"

    def __init__(
        self,
        topic: str,
        *,
        producer: AIOKafkaProducer | None = None,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        too_large: WhatIfTooLarge = "keep",
    ) -> None:
        if not topic:
            raise ValueError(f"DeadLetters needs the name of a topic, not {topic!r}")
        TEXT.check("topic", topic)
        TEXT.check("transactional_id", transactional_id, or_none=True)
        INT.check("transaction_timeout_ms", transaction_timeout_ms)
        check_producer("producer", producer)
        if producer is not None and transactional_id is not None:
            raise ValueError(
                "if `transactional_id` is set, DeadLetters creates a producer itself: leave out "
                "`producer`"
            )
        if transaction_timeout_ms <= 0:
            raise ValueError(
                f"transaction_timeout_ms must be a positive number, not {transaction_timeout_ms!r}"
            )
        if too_large not in get_args(WhatIfTooLarge):
            raise ValueError(f'too_large must be "keep", "drop" or "stub", not {too_large!r}')
        self.topic: Final = topic
        self._too_large = too_large
        self._given = producer
        self._transactional_id = transactional_id
        self._transaction_timeout_ms = transaction_timeout_ms
        self._writer: LetterWriter | None = None
        self._group_id = ""

    def __repr__(self) -> str:
        return f"DeadLetters({self.topic!r})"

    async def open(self, run: RunContext) -> None:
        """Start writing for a consumer. `run` calls it.

        Raises:
            UnknownTopicOrPartitionError: The topic does not exist.
            IllegalStateError: It is open for another run, or the consumer reads its topic. Or it
                has a transactional_id, and the consumer does not commit offsets.
            InvalidTransactionTimeout: The timeout exceeds the brokers' limit.
            KafkaTimeoutError: No broker returned whether the topic exists.
            KafkaError: The cluster cannot be reached, or rejects a request.
        """
        if self._writer is not None:
            raise IllegalStateError(
                f"another run() uses {self!r}: create one DeadLetters object per run()"
            )
        self._check(run)
        self._group_id = run.group_id
        writer = await self._writer_for(run)
        try:
            await writer.count_partitions(self.topic)
        except UnknownTopicOrPartitionError as error:
            raise UnknownTopicOrPartitionError(
                f"no topic {self.topic!r} for {self._contents} was found: create it first"
            ) from error
        self._writer = writer

    def _check(self, run: RunContext) -> None:
        if run.reads(self.topic):
            raise IllegalStateError(
                f"run() would process its own dead letters, because the consumer reads "
                f"{self.topic!r}: choose another topic, or a pattern that does not match it"
            )

    async def _writer_for(self, run: RunContext) -> LetterWriter:
        if run.outbox is not None:
            if self._transactional_id is not None or self._given is not None:
                raise IllegalStateError(
                    "run(transactions=…) writes dead letters in its own transactions: leave out "
                    "`transactional_id` and `producer` of DeadLetters"
                )
            return OutboxWriter(run.outbox)
        if self._given is not None:
            return PlainWriter(self._given)
        if (writer := run.writers.get(self._transactional_id)) is None:
            writer = run.writers[self._transactional_id] = await self._new_writer(run)
        return writer

    async def _new_writer(self, run: RunContext) -> LetterWriter:
        """Return a writer with a producer that is created for the run, and stopped at its end."""
        # A topic that is made by the way has whatever partitions and retention.
        make = partial(
            AIOKafkaProducer,
            transactional_id=self._transactional_id,
            transaction_timeout_ms=self._transaction_timeout_ms,
            max_request_size=NO_LIMIT,
            buffer_memory=NO_LIMIT,
            **(run.arguments.of_every_client() | {"allow_auto_create_topics": False}),
        )
        if self._transactional_id is None:
            producer = make()
            await producer.start()
            run.stack.push_async_callback(producer.stop)
            return PlainWriter(producer)
        if (other := transactional_id_of(run)) is not None:
            raise IllegalStateError(
                "all dead letters of one run() that have a transactional_id share one producer: "
                f"give {self!r} the transactional_id {other!r}, too"
            )
        if run.new_outbox is None:
            raise IllegalStateError(
                "with a transactional_id, the producer of the dead letters commits the consumer's "
                "offsets in its transactions: the consumer needs a group_id and "
                "enable_auto_commit=True"
            )
        outbox = run.new_outbox(OwnProducer(make))
        await outbox.open()
        run.stack.push_async_callback(outbox.close)
        return OutboxWriter(outbox)

    async def close(self) -> None:
        """Stop writing."""
        self._writer = None

    async def __call__(self, dead: DeadRecord) -> None:
        """Write a record, and wait for its acknowledgement, or the commit of its transaction.

        After a cancellation or an error, the record may or may not be written.
        """
        writer = self._writer
        if writer is None:
            raise IllegalStateError(
                f"{self!r} is not open: pass the object to consumer.run(), which opens it"
            )
        count = await writer.count_partitions(self.topic)
        partition = dead.record.partition % count
        letter = Output(self.topic, dead.key, dead.value, partition, headers=self._headers(dead))
        try:
            await writer.write(dead, letter)
        except TOO_LARGE as error:
            if self._too_large == "keep":
                raise
            await self._write_less(writer, dead, letter, error)

    async def _write_less(
        self, writer: LetterWriter, dead: DeadRecord, letter: Output, error: Exception
    ) -> None:
        record = dead.record
        place = f"{record.topic}/{record.partition} offset {record.offset}"
        if self._too_large == "drop":
            log.warning(
                'record %s is dropped (too_large="drop"), because its dead letter is too large: %s',
                place,
                error,
            )
            return
        for stub in self._stubs(dead, letter):
            try:
                await writer.write(dead, stub)
            except TOO_LARGE as refusal:
                error = refusal
            else:
                log.warning(
                    "the dead letter of %s was written without the record's value, because the "
                    "complete dead letter is too large",
                    place,
                )
                return
        raise error

    @staticmethod
    def _stubs(dead: DeadRecord, letter: Output) -> Iterator[Output]:
        """Yield replacements of a letter, each smaller than the one before."""
        value = b"" if letter.value is None else letter.value
        of_value: Headers = [
            (VALUE_SIZE, b"%d" % len(value)),
            (VALUE_SHA256, hashlib.sha256(value).hexdigest().encode()),
        ]
        without_value = letter._replace(value=None, headers=[*letter.headers, *of_value])
        yield without_value
        yield without_value._replace(key=None)
        why = [each for each in without_value.headers if each[0].startswith(PREFIX)]
        yield without_value._replace(key=None, headers=why)

    def _headers(self, dead: DeadRecord) -> Headers:
        record = dead.record
        timestamp: int | None = record.timestamp  # that of a message of magic 0 is missing
        added = {
            TOPIC: record.topic,
            PARTITION: str(record.partition),
            OFFSET: str(record.offset),
            GROUP: self._group_id,
            DELIVERY_COUNT: str(dead.attempts),
        }
        if timestamp is not None:
            added[TIMESTAMP] = str(timestamp)
        return [
            *without_death(record.headers),
            *((name, text.encode(errors="replace")) for name, text in added.items()),
            (EXCEPTION, name_of(dead.error)),
            (MESSAGE, message_of(dead.error)),
            *dead.history,
        ]


class DelayTopic(DeadLetters):
    """Writes failed records to a topic in which they wait: by `topic` and `delays` of `Retry`.

    It shares the producer of the dead letters, and their transactions if they have some.
    """

    _contents = "delayed records"

    @override
    def _check(self, run: RunContext) -> None:
        self._transactional_id = None if run.outbox is not None else transactional_id_of(run)
        is_in_transactions = run.outbox is not None or self._transactional_id is not None
        if is_in_transactions and not run.is_read_committed:
            raise IllegalStateError(
                "Retry(topic=…) with transactions needs a consumer with "
                'isolation_level="read_committed". Otherwise, it would read delayed records whose '
                "transactions are aborted"
            )

    @override
    def _headers(self, dead: DeadRecord) -> Headers:
        history = dict(dead.history)
        if not history:
            history = {
                FIRST_EXCEPTION: name_of(dead.error),
                FIRST_MESSAGE: message_of(dead.error),
                FIRST_TIMESTAMP: b"%d" % wall_ms(),
            }
        history[DELAY_COUNT] = b"%d" % (int(history.get(DELAY_COUNT, b"0")) + 1)
        headers = super()._headers(replace(dead, history=(*history.items(), WAITING)))
        own = [each for each in dead.record.headers if each[0].startswith(PREFIX)]
        return [*((KEPT + name, value) for name, value in own), *headers]


def transactional_id_of(run: RunContext) -> str | None:
    return next((each for each in run.writers if each is not None), None)


def name_of(error: BaseException) -> bytes:
    return f"{type(error).__module__}.{type(error).__qualname__}".encode(errors="replace")


def message_of(error: BaseException) -> bytes:
    return text_of(error, str)[:LONGEST_MESSAGE].encode(errors="replace")
