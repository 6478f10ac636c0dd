"""Records of an open transaction are not committed before its end, whatever else commits then."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import pytest

from aiokafka_lite._compat import timeout
from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import (
    AutoCommitError,
    CommitFailedError,
    CoordinatorLoadInProgressError,
    IllegalOperation,
)
from aiokafka_lite.producing import AIOKafkaProducer
from aiokafka_lite.producing.producer import TransactionBlock
from aiokafka_lite.structs import TopicPartition
from tests.producing.copying import Copying
from tests.support.cluster import KafkaHandle
from tests.support.protocols import WAYS
from tests.support.rows import rows
from tests.support.waiting import PATIENCE_S, until

Block: TypeAlias = TransactionBlock[Any, Any]
OUTCOMES: Final = ("committed", "aborted")
# What is committed before the transaction, and with it.
BEFORE: Final = 5
BEHIND: Final = 10
INTERVAL_S: Final = 0.2
AUTOMATIC: Final = {"auto_commit_interval_ms": INTERVAL_S * 1000, "enable_auto_commit": True}
BY_HAND: Final = {"enable_auto_commit": False}
EXPLICIT: Final = {**AUTOMATIC, "ack_mode": "explicit"}


# --- What is read in the transaction, and named to it ---------------------------------------------
async def read_a_batch(consumer: AIOKafkaConsumer, tx: Block) -> None:
    async with consumer.batch(5) as batch:
        tx.commit_offsets(batch)


async def read_a_batch_and_name_it_later(consumer: AIOKafkaConsumer, tx: Block) -> None:
    async with consumer.batch(5) as batch:
        pass
    tx.commit_offsets(batch)


async def read_a_batch_and_name_the_consumer(consumer: AIOKafkaConsumer, tx: Block) -> None:
    async with consumer.batch(5):
        tx.commit_offsets(consumer)


async def read_two_batches(consumer: AIOKafkaConsumer, tx: Block) -> None:
    for count in (2, 3):
        async with consumer.batch(count) as batch:
            tx.commit_offsets(batch)


async def read_a_batch_and_name_nothing(consumer: AIOKafkaConsumer, tx: Block) -> None:
    async with consumer.batch(5):
        pass


async def read_lists(consumer: AIOKafkaConsumer, tx: Block) -> None:
    await consumer.getmany(timeout_ms=5_000, max_records=2)
    await consumer.getmany(timeout_ms=5_000, max_records=3)
    tx.commit_offsets(consumer)
    await consumer.getmany(timeout_ms=5_000, max_records=1)


async def read_columns(consumer: AIOKafkaConsumer, tx: Block) -> None:
    batches = consumer.batches(max_rows=5)
    await batches.__anext__()
    tx.commit_offsets(consumer)
    await batches.__anext__()


async def acknowledge_records(consumer: AIOKafkaConsumer, tx: Block) -> None:
    for _ in range(5):
        record = await consumer.getone()
        tx.commit_offsets(record)
        record.ack()


Read: TypeAlias = Callable[[AIOKafkaConsumer, Block], Awaitable[None]]
READS: Final[Mapping[str, tuple[Read, Mapping[str, object]]]] = MappingProxyType(
    {
        "batch": (read_a_batch, AUTOMATIC),
        "batch, named later": (read_a_batch_and_name_it_later, AUTOMATIC),
        "batch, named by the consumer": (read_a_batch_and_name_the_consumer, AUTOMATIC),
        "batch, not named": (read_a_batch_and_name_nothing, AUTOMATIC),
        "two batches": (read_two_batches, AUTOMATIC),
        "batch, by hand": (read_a_batch, BY_HAND),
        "batch, acknowledged": (read_a_batch, EXPLICIT),
        "lists": (read_lists, BY_HAND),
        "columns": (read_columns, BY_HAND),
        "records": (acknowledge_records, EXPLICIT),
    }
)


# --- What commits meanwhile ---------------------------------------------------------------------
async def wait(copying: Copying, consumer: AIOKafkaConsumer) -> None:
    """The clock's commit."""


async def commit(copying: Copying, consumer: AIOKafkaConsumer) -> None:
    await consumer.commit()


async def read_on(copying: Copying, consumer: AIOKafkaConsumer) -> None:
    await consumer.getmany(timeout_ms=5_000, max_records=1)


async def unsubscribe(copying: Copying, consumer: AIOKafkaConsumer) -> None:
    consumer.unsubscribe()


async def assign(copying: Copying, consumer: AIOKafkaConsumer) -> None:
    consumer.unsubscribe()
    consumer.assign([TopicPartition(copying.copies, 0)])


async def stop(copying: Copying, consumer: AIOKafkaConsumer) -> None:
    await consumer.stop()


async def stop_elsewhere(copying: Copying, consumer: AIOKafkaConsumer) -> None:
    await contextvars.Context().run(asyncio.ensure_future, consumer.stop())


async def rebalance(copying: Copying, consumer: AIOKafkaConsumer) -> None:
    consumer.subscribe([copying.copies])


Event: TypeAlias = Callable[[Copying, AIOKafkaConsumer], Awaitable[None]]
EVENTS: Final[Mapping[str, tuple[Event, Mapping[str, object]]]] = MappingProxyType(
    {
        "clock": (wait, {}),
        "commit": (commit, {}),
        "next read": (read_on, {}),
        "unsubscribe": (unsubscribe, {}),
        "assign": (assign, {}),
        "stop": (stop, {}),
        "stop elsewhere": (stop_elsewhere, {}),
        **{f"rebalance, {way}": (rebalance, settings) for way, settings in WAYS.items()},
    }
)
# After these the transaction is committed, as the records are this member's still.
KEEPING: Final = {"clock", "commit", "next read", *(f"rebalance, {way}" for way in WAYS)}


def _cases() -> Iterator[object]:
    """Each way of reading with each event; in the short form with one outcome of the two."""
    for (r, read), (e, event) in itertools.product(enumerate(READS), enumerate(EVENTS)):
        for outcome in OUTCOMES:
            is_other = OUTCOMES[(r + e) % 2] != outcome
            yield pytest.param(read, event, outcome, marks=pytest.mark.slow if is_other else ())


@pytest.mark.few_rows(18)
@pytest.mark.virtual_time
@pytest.mark.parametrize(("read", "event", "outcome"), list(_cases()))
async def test_records_of_an_open_transaction_are_committed_by_nothing_else(
    read: str, event: str, outcome: str
) -> None:
    """If it is aborted and the process crashes then, the next owner returns them again."""
    async with Broker() as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        await check_what_is_committed(kafka, read, event, outcome)


@pytest.mark.virtual_time_if_embedded
@pytest.mark.parametrize(
    ("read", "event", "outcome"),
    [
        ("batch", "commit", "committed"),
        ("two batches", "clock", "aborted"),
        ("batch", "unsubscribe", "aborted"),
        ("batch, named later", "rebalance, eager", "committed"),
        ("batch, not named", "stop elsewhere", "aborted"),
        ("batch", "rebalance, consumer", "aborted"),
        ("lists", "commit", "aborted"),
        ("records", "rebalance, cooperative", "committed"),
    ],
)
async def test_neither_are_they_for_a_real_group(
    kafka: KafkaHandle, read: str, event: str, outcome: str
) -> None:
    await check_what_is_committed(kafka, read, event, outcome)


async def check_what_is_committed(kafka: KafkaHandle, read: str, event: str, outcome: str) -> None:
    """Ask another client what is committed while a transaction is open, and after its end."""
    take, settings = READS[read]
    happen, protocol = EVENTS[event]
    copying = Copying(kafka, await kafka.create_topic(), await kafka.create_topic())
    await kafka.produce(copying.source, 0, rows(0, 4 * BEHIND))
    is_committed = False
    async with (
        timeout(2 * PATIENCE_S),
        copying.both(**{**settings, **protocol}) as (consumer, producer),
    ):
        for _ in range(BEFORE):
            record = await consumer.getone()
            if "ack_mode" in settings:
                record.ack()
        await consumer.commit()
        assert await copying.committed() == BEFORE
        with contextlib.suppress(ZeroDivisionError, CommitFailedError):
            async with producer.transaction() as tx:
                await take(consumer, tx)
                await tx.send(copying.copies, b"copy")
                await happen(copying, consumer)
                await asyncio.sleep(2 * INTERVAL_S)
                assert await copying.committed() == BEFORE
                if outcome == "aborted":
                    raise ZeroDivisionError
            is_committed = True
        await asyncio.sleep(2 * INTERVAL_S)
        if read != "batch, not named":
            assert await copying.committed() == (BEHIND if is_committed else BEFORE)
            assert is_committed == (outcome == "committed" and event in KEEPING)
    if not is_committed:
        assert await copying.committed() == BEFORE
    assert (await copying.read_copies() == [b"copy"]) == is_committed


@asynccontextmanager
async def on_one_partition(
    **settings: object,
) -> AsyncIterator[tuple[Broker, Copying, AIOKafkaConsumer, AIOKafkaProducer]]:
    """A consumer that is to copy forty records."""
    async with Broker() as broker, timeout(2 * PATIENCE_S):
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        copying = Copying(kafka, await kafka.create_topic(), await kafka.create_topic())
        await kafka.produce(copying.source, 0, rows(0, 4 * BEHIND))
        async with copying.both(**settings) as (consumer, producer):
            yield broker, copying, consumer, producer


@pytest.mark.virtual_time
async def test_offsets_behind_the_records_of_an_open_transaction_are_refused() -> None:
    settings = {"enable_auto_commit": True, "auto_commit_interval_ms": 3_600_000}
    async with on_one_partition(**settings) as (_, copying, consumer, producer):
        async with producer.transaction() as tx:
            async with consumer.batch(5) as batch:
                tx.commit_offsets(batch)
                with pytest.raises(IllegalOperation, match="when the transaction has ended"):
                    await batch.commit()
            with pytest.raises(IllegalOperation, match="when the transaction has ended"):
                await consumer.commit({copying.tp: 5})
        assert await copying.committed() == 5
        async with producer.transaction(), consumer.batch(3) as batch:
            await batch.commit()  # it is no other's
            assert await copying.committed() == 8
        await consumer.commit({copying.tp: 7})
        assert await copying.committed() == 7


# --- What auto-commit may commit though the transaction is aborted -------------------------------
async def list_of(consumer: AIOKafkaConsumer) -> None:
    await consumer.getmany(timeout_ms=5_000, max_records=5)


async def polled(consumer: AIOKafkaConsumer) -> None:
    await consumer.poll(5_000, 5)


async def one_by_one(consumer: AIOKafkaConsumer) -> None:
    for _ in range(5):
        await consumer.getone()


async def iterated(consumer: AIOKafkaConsumer) -> None:
    async for record in consumer:
        if record.offset == 4:
            return


async def columns(consumer: AIOKafkaConsumer) -> None:
    await consumer.poll_arrow(timeout_ms=5_000, max_rows=5)


@asynccontextmanager
async def with_two_partitions() -> AsyncIterator[
    tuple[AIOKafkaConsumer, AIOKafkaProducer, TopicPartition, TopicPartition]
]:
    """A consumer with auto-commit that reads the first of two partitions."""
    async with Broker() as broker, timeout(2 * PATIENCE_S):
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        copying = Copying(kafka, await kafka.create_topic(partitions=2), await kafka.create_topic())
        for number in range(2):
            await kafka.produce(copying.source, number, rows(0, 4 * BEHIND))
        settings = {"enable_auto_commit": True, "auto_commit_interval_ms": 3_600_000}
        async with copying.both(**settings) as (consumer, producer):
            one, other = sorted(consumer.assignment())
            consumer.pause(other)
            yield consumer, producer, one, other


def read_the_other(consumer: AIOKafkaConsumer, one: TopicPartition, other: TopicPartition) -> None:
    consumer.pause(one)
    consumer.resume(other)


@pytest.mark.virtual_time
@pytest.mark.parametrize("also_reads", ["the batch", "in vain"])
@pytest.mark.parametrize("read", [list_of, polled, one_by_one, iterated, columns])
async def test_records_that_count_by_a_read_in_the_transaction_are_refused_beside_a_batch(
    read: Callable[[AIOKafkaConsumer], Awaitable[None]], also_reads: str
) -> None:
    """Their outputs are aborted with the transaction, and auto-commit commits them anyway."""
    async with with_two_partitions() as (consumer, producer, one, other):

        async def name_all() -> None:
            async with producer.transaction() as tx:
                await read(consumer)
                read_the_other(consumer, one, other)
                async with consumer.batch(5):
                    if also_reads == "in vain":
                        consumer.pause(other)
                        await consumer.getmany(timeout_ms=1)
                    tx.commit_offsets(consumer)

        with pytest.raises(AutoCommitError, match="enable_auto_commit=False"):
            await name_all()


@pytest.mark.virtual_time
@pytest.mark.parametrize("read", [list_of, one_by_one])
async def test_records_that_counted_before_the_transaction_are_none_of_its_own(
    read: Callable[[AIOKafkaConsumer], Awaitable[None]],
) -> None:
    async with with_two_partitions() as (consumer, producer, one, other):
        await read(consumer)
        await consumer.getmany(one, timeout_ms=1, max_records=1)
        read_the_other(consumer, one, other)
        async with consumer.batch(1):
            pass
        async with producer.transaction() as tx, consumer.batch(5):
            tx.commit_offsets(consumer)
        assert await consumer.committed(other) == 6


@pytest.mark.virtual_time
@pytest.mark.parametrize("beside", ["the same partition", "another partition"])
@pytest.mark.parametrize("names", ["batch", "offsets", "offsets, at once"])
async def test_a_batch_that_was_processed_before_the_transaction_is_refused_beside_another(
    names: str, beside: str
) -> None:
    """Auto-commit may have committed it by then."""
    async with with_two_partitions() as (consumer, producer, one, other):
        async with consumer.batch(5) as batch:
            pass
        if beside == "another partition":
            read_the_other(consumer, one, other)
        async with consumer.batch(5), producer.transaction() as tx:

            async def name() -> None:
                if names == "batch":
                    tx.commit_offsets(batch)
                elif names == "offsets":
                    tx.commit_offsets({one: 5}, consumer.group_metadata())
                else:
                    await producer.send_offsets_to_transaction({one: 5}, consumer.group_metadata())

            with pytest.raises(AutoCommitError, match="enable_auto_commit=False"):
                await name()


@pytest.mark.virtual_time
@pytest.mark.parametrize("is_at_once", [True, False])
@pytest.mark.parametrize("auto_commit", [True, False])
async def test_a_batch_whose_offsets_an_aborted_transaction_names_is_returned_again(
    auto_commit: bool, is_at_once: bool
) -> None:
    """Also if its block ends before the transaction does."""
    settings = {"enable_auto_commit": auto_commit, "auto_commit_interval_ms": 200}
    async with on_one_partition(**settings) as (_, copying, consumer, producer):
        async with AsyncExitStack() as stack:
            async with consumer.batch(5) as batch:
                tx = await stack.enter_async_context(producer.transaction())
                if is_at_once:
                    await producer.send_offsets_to_transaction(
                        {copying.tp: 5}, consumer.group_metadata()
                    )
                else:
                    tx.commit_offsets({copying.tp: 5}, consumer.group_metadata())
            await asyncio.sleep(0.5)
            await producer.abort_transaction()
        await asyncio.sleep(0.5)
        assert not await copying.committed()
        async with consumer.batch(5) as again:
            assert [record.offset for record in again] == [record.offset for record in batch]


# --- Rebalances that give the partition back ------------------------------------------------------
class KeepsPositions(ConsumerRebalanceListener):
    """Restores positions, as programs do that keep them with their results."""

    def __init__(self, consumer: AIOKafkaConsumer, when: str) -> None:
        self._consumer = consumer
        self._when = when
        self._positions: dict[TopicPartition, int] = {}

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        for tp in revoked:
            self._positions[tp] = await self._consumer.position(tp)
        if self._when == "revoked":
            self._seek(revoked)

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        if self._when == "assigned":
            self._seek(assigned)

    def _seek(self, partitions: set[TopicPartition]) -> None:
        for tp in partitions & self._positions.keys():
            self._consumer.seek(tp, self._positions[tp])


@pytest.mark.virtual_time
@pytest.mark.parametrize("when", ["revoked", "assigned"])
@pytest.mark.parametrize("read", ["batch", "batch, not named"])
async def test_a_position_that_a_listener_restores_is_not_committed_before_the_transaction_ends(
    read: str, when: str
) -> None:
    take, settings = READS[read]
    settings = {**settings, **WAYS["eager"], "rebalance_hold_ms": 100}
    async with on_one_partition(**settings) as (_, copying, consumer, producer):
        listener = KeepsPositions(consumer, when)
        consumer.subscribe([copying.source], listener=listener)
        for _ in range(BEFORE):
            await consumer.getone()
        await consumer.commit()
        with contextlib.suppress(ZeroDivisionError):
            async with producer.transaction() as tx:
                await take(consumer, tx)
                consumer.subscribe([copying.source, copying.copies], listener=listener)
                await until(lambda: len(consumer.assignment()) == 2)
                await asyncio.sleep(2 * INTERVAL_S)
                await consumer.commit()
                assert await copying.committed() == BEFORE
                raise ZeroDivisionError
        record = await consumer.getone(copying.tp)
        assert record.offset == BEFORE
        await consumer.getmany(copying.tp, timeout_ms=1_000, max_records=BEHIND)
        await consumer.commit()
        assert await copying.committed() == BEFORE + 1 + BEHIND


# --- What stops wait for, and what commits that were made before it say --------------------------
@pytest.mark.few_rows(10)
@pytest.mark.virtual_time
@pytest.mark.parametrize("hold_ms", [None, 100])
@pytest.mark.parametrize("read", READS)
async def test_a_stop_waits_for_the_transaction_as_a_rebalance_does(
    read: str, hold_ms: int | None
) -> None:
    take, settings = READS[read]
    is_waited_for = hold_ms is None
    async with on_one_partition(**settings, rebalance_hold_ms=hold_ms) as (
        _,
        copying,
        consumer,
        producer,
    ):
        stopping: asyncio.Future[Any] | None = None
        with contextlib.suppress(CommitFailedError):
            async with producer.transaction() as tx:
                await take(consumer, tx)
                await tx.send(copying.copies, b"copy")
                stopping = contextvars.Context().run(asyncio.ensure_future, consumer.stop())
                await asyncio.sleep(1)
                assert stopping.done() != is_waited_for
        assert stopping is not None
        assert await stopping == {}
        if read != "batch, not named":
            assert await copying.read_copies() == [b"copy"] * is_waited_for
            assert (await copying.committed() or 0) == 5 * is_waited_for


@pytest.mark.virtual_time
@pytest.mark.parametrize("by_name", [True, False])
@pytest.mark.parametrize("names", ["consumer", "offsets", "offsets, at once"])
async def test_a_commit_that_is_tried_again_after_the_transaction_does_not_undo_it(
    names: str, by_name: bool
) -> None:
    async with on_one_partition(**BY_HAND) as (broker, copying, consumer, producer):
        await consumer.getmany(timeout_ms=5_000, max_records=5)
        with broker.on("OffsetCommit").fail(CoordinatorLoadInProgressError, times=None) as rule:
            commit = consumer.commit({copying.tp: 5} if by_name else None)
            committing = asyncio.ensure_future(commit)
            await rule.reached()
            async with producer.transaction() as tx:
                await consumer.getmany(timeout_ms=5_000, max_records=5)
                if names == "consumer":
                    tx.commit_offsets(consumer)
                elif names == "offsets":
                    tx.commit_offsets({copying.tp: 10}, consumer.group_metadata())
                else:
                    await producer.send_offsets_to_transaction(
                        {copying.tp: 10}, consumer.group_metadata()
                    )
                    rule.remove()
                    await asyncio.sleep(1)
                    assert not committing.done() or not by_name
        await committing
        assert await copying.committed() == 10
