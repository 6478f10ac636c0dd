"""The ways of reading: what one turn of a reading task does, and when its records are finished."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from aiokafka_lite.errors import (
    CommitFailedError,
    ConsumerStoppedError,
    IllegalOperation,
    IllegalStateError,
    KafkaError,
    TransactionAbortableError,
)
from aiokafka_lite.processing import Outputs, Retry
from aiokafka_lite.producing.producer import TransactionBlock
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.model.pairs.book import BAD, number_in

if TYPE_CHECKING:
    from tests.model.pairs.member import Hand, Reader

Record = ConsumerRecord[Any, Any]
# After so long without a record a read returns.
WAIT_MS: Final = 300
MOST: Final = 6


class BadRecordError(Exception):
    """A handler's error for a record that it can do nothing with."""


class GivenUpError(Exception):
    """The application's error by which it gives a transaction up."""


@dataclass(frozen=True)
class Way:
    """A way of reading: a row of the table.

    Attributes:
        turn: What a reading task does again and again.
        tasks: How many of them a member has.
        reading_finishes: The next read of a task, and a stop, say that what was returned is
            processed.
        commit_finishes: `commit()` says so: it commits the positions.
        settings: Of its consumer.
        kind: Of the groups whose members read so. Members that finish record by record are not in
            groups with others, which do not pass over what is finished behind a commit.
        writes: Its members write outputs, or dead letters.
    """

    name: str
    turn: Callable[[Reader], Awaitable[None]]
    tasks: int = 1
    reading_finishes: bool = True
    commit_finishes: bool = True
    settings: Mapping[str, object] = field(default_factory=dict)
    kind: str = "plain"
    writes: bool = False


# --- Reads whose next one finishes ------------------------------------------------------------
async def _async_for(reader: Reader) -> None:
    reader.finish()
    try:
        record = await anext(reader.iterator)
    except StopAsyncIteration:
        raise ConsumerStoppedError from None
    await reader.hold(record).work()


async def _getone(reader: Reader) -> None:
    reader.finish()
    await reader.hold(await reader.consumer.getone()).work()


async def _getmany(reader: Reader) -> None:
    reader.finish()
    found = await reader.consumer.getmany(timeout_ms=WAIT_MS, max_records=MOST)
    await reader.hold_all(found).work()


async def _poll(reader: Reader) -> None:
    reader.finish()
    found = await reader.consumer.poll(timeout_ms=WAIT_MS, max_records=MOST)
    await reader.hold_all(found).work()


async def _batches(reader: Reader) -> None:
    reader.finish()
    rows = await reader.consumer.poll_arrow(WAIT_MS, MOST)
    columns = rows.select(["topic", "partition", "offset", "value"]).to_pydict()
    hand = reader.hold()
    for topic, partition, offset, value in zip(*columns.values(), strict=True):
        hand.add(TopicPartition(topic, partition), offset, value)
    await hand.work()


# --- Blocks and acknowledgements ----------------------------------------------------------------
async def _batch(reader: Reader) -> None:
    async with reader.consumer.batch(max_records=MOST, timeout_ms=WAIT_MS) as batch:
        hand = reader.hold_all(batch.by_partition)
        try:
            await hand.work()
            hand.finish()  # the block ends before anything else runs
        finally:
            hand.drop()


async def _acks(reader: Reader) -> None:
    record = await reader.consumer.getone()
    hand = reader.hold(record)
    try:
        await hand.work()
        if reader.rng.random() < 0.05:
            record.nack(reader.rng.choice((0, 20)))
        elif record.ack():
            hand.finish()
        else:
            hand.finish(settles=False)
    except BaseException:
        record.nack()
        raise
    finally:
        hand.drop()


async def _acks_in_batch(reader: Reader) -> None:
    async with reader.consumer.batch(max_records=MOST, timeout_ms=WAIT_MS) as batch:
        hands = [(record, reader.hold(record)) for record in batch]
        try:
            for record, hand in hands:
                await hand.work()
                if reader.rng.random() < 0.5:
                    hand.finish(settles=record.ack())
                elif reader.rng.random() < 0.1:
                    record.nack()
                    hand.drop()
            for _, hand in hands:
                hand.finish()
        finally:
            for _, hand in hands:
                hand.drop()


# --- run ----------------------------------------------------------------------------------------
def _handler(
    reader: Reader, order: str | None
) -> Callable[[Record], Coroutine[object, object, None]]:
    async def handle(record: Record) -> None:
        hand = reader.hold(record)
        try:
            if order is not None:
                reader.check_order(record, by_key=order == "key")
            await hand.work()
            is_bad = (record.value or b"").endswith(BAD)
            if not is_bad and reader.rng.random() < 0.02:
                hand.may_be_finished()
                await _commit_own(reader, record)
            hand.finish(settles=not is_bad)  # and nothing more is awaited
            if is_bad:
                reader.member.expect_letter(record)
                raise BadRecordError
        finally:
            hand.drop()

    return handle


async def _commit_own(reader: Reader, record: Record) -> None:
    """Commit in a handler the offset behind its record, as with other clients."""
    reader.member.meet("named commit")
    tp = TopicPartition(record.topic, record.partition)
    try:
        await reader.consumer.commit({tp: record.offset + 1})
    except KafkaError as error:
        reader.member.raised("commit of its own record", error, {tp})


def _running(order: str | None, letters: str = "plain") -> Callable[[Reader], Awaitable[None]]:
    async def turn(reader: Reader) -> None:
        await reader.consumer.run(
            _handler(reader, order),
            concurrency=reader.rng.choice((3, 10)),
            order=order,  # type: ignore[arg-type]
            retry=Retry(dead=BadRecordError),
            dead_letter=reader.member.dead_letters(letters),
        )

    return turn


async def _run_with_lists(reader: Reader) -> None:
    async def handle(records: list[Record]) -> None:
        hand = reader.hold()
        for record in records:
            hand.add(TopicPartition(record.topic, record.partition), record.offset, record.value)
        try:
            await hand.work()
            if any((record.value or b"").endswith(BAD) for record in records):
                if len(records) == 1:
                    reader.member.expect_letter(records[0])
                    hand.finish(settles=False)
                raise BadRecordError  # then each is tried by itself
            hand.finish()
        finally:
            hand.drop()

    await reader.consumer.run(
        handle,
        batch_size=4,
        concurrency=reader.rng.choice((2, 5)),
        retry=Retry(dead=BadRecordError),
        dead_letter=reader.member.dead_letters("plain"),
    )


# --- Transactions -------------------------------------------------------------------------------
async def _transaction(reader: Reader) -> None:
    """Do what copy() of docs/producing.md does; give some of the transactions up."""
    member = reader.member
    producer = await member.working_producer()
    tx, before = producer.transaction(), reader.transaction
    reader.transaction = tx
    hand: Hand | None = None
    is_ending = False
    try:
        async with reader.consumer.batch(max_records=MOST, timeout_ms=WAIT_MS) as batch:
            with contextlib.suppress(GivenUpError):
                async with tx:
                    hand = reader.hold_all(batch.by_partition)
                    for record in batch:
                        await tx.send(member.outputs, b"%d" % number_in(record.value), record.key)
                    await hand.work()
                    tx.commit_offsets(reader.rng.choice((reader.consumer, batch)))
                    if reader.rng.random() < 0.05:
                        raise GivenUpError
                    if before is not None and reader.rng.random() < 0.1:
                        await _send_in_former(reader, before)
                    hand.may_be_finished()
                    is_ending = True
    except (CommitFailedError, TransactionAbortableError) as error:
        member.note(f"aborted: {error!r:.200}")
    finally:
        if hand is not None and is_ending:
            if tx.is_committed:
                hand.finish()
            elif tx.is_committed is False:
                hand.is_not_finished()
            elif producer.fatal_error is None:
                member.violate("no outcome", "the block of a transaction is left, which goes on")
        if hand is not None:
            hand.drop()


async def _send_in_former(reader: Reader, former: TransactionBlock[bytes, bytes]) -> None:
    """Send in a transaction that is over, while another one is open."""
    try:
        await former.send(reader.member.outputs, b"-1")
    except (IllegalOperation, IllegalStateError, KafkaError):
        return
    reader.member.violate("late", "a transaction takes a record of the one before it")


async def _run_in_transactions(reader: Reader) -> None:
    member = reader.member
    producer = await member.working_producer()

    async def handle(record: Record, outputs: Outputs) -> None:
        hand = reader.hold(record)
        try:
            reader.check_order(record, by_key=True)
            await hand.work()
            outputs.send(member.outputs, b"%d" % number_in(record.value), key=record.key)
            hand.may_be_finished()
        finally:
            hand.drop()

    await reader.consumer.run(handle, concurrency=10, transactions=producer)


def _with_tasks(way: Way, count: int) -> Way:
    return replace(way, name=f"{way.name}, {count} tasks", tasks=count)


EXPLICIT: Final[Mapping[str, object]] = MappingProxyType({"ack_mode": "explicit"})
BY_TASKS: Final = (
    Way("async for", _async_for),
    Way("getone", _getone),
    Way("getmany", _getmany),
    Way("poll", _poll),
    Way("batches", _batches),
    Way("batch()", _batch, reading_finishes=False),
    Way(
        "acks",
        _acks,
        reading_finishes=False,
        commit_finishes=False,
        settings=EXPLICIT,
        kind="records",
    ),
    Way(
        "acks in batch()",
        _acks_in_batch,
        reading_finishes=False,
        commit_finishes=False,
        settings=EXPLICIT,
        kind="records",
    ),
)
RUNS: Final = (
    Way(
        "run by key",
        _running("key"),
        reading_finishes=False,
        commit_finishes=False,
        kind="records",
        writes=True,
    ),
    Way(
        "run by partition",
        _running("partition"),
        reading_finishes=False,
        commit_finishes=False,
        kind="records",
        writes=True,
    ),
    Way(
        "run with lists",
        _run_with_lists,
        reading_finishes=False,
        commit_finishes=False,
        kind="records",
        writes=True,
    ),
    Way(
        "run, letters in transactions",
        _running("key", "transactional"),
        reading_finishes=False,
        commit_finishes=False,
        kind="letters",
        writes=True,
    ),
)
TRANSACTIONS: Final = (
    Way(
        "batch() in a transaction",
        _transaction,
        reading_finishes=False,
        settings=MappingProxyType({"enable_auto_commit": False}),
        kind="transactions",
        writes=True,
    ),
    Way(
        "run in transactions",
        _run_in_transactions,
        reading_finishes=False,
        commit_finishes=False,
        kind="transactions",
        writes=True,
    ),
)
WAYS: Final[Mapping[str, Way]] = {
    way.name: way
    for way in (
        *BY_TASKS,
        *(_with_tasks(way, 5) for way in BY_TASKS),
        *RUNS,
        *TRANSACTIONS,
    )
}
