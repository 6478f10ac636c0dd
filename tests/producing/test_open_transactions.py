"""Records of an open transaction are not committed before its end, whatever else commits then."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import pytest

from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import CommitFailedError, IllegalOperation
from aiokafka_lite.producing.producer import TransactionBlock
from aiokafka_lite.structs import TopicPartition
from tests.producing.copying import Copying
from tests.support.cluster import KafkaHandle
from tests.support.protocols import WAYS
from tests.support.rows import rows
from tests.support.waiting import PATIENCE_S

Block: TypeAlias = TransactionBlock[Any, Any]
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


@pytest.mark.virtual_time
@pytest.mark.parametrize("outcome", ["committed", "aborted"])
@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("read", READS)
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


async def test_offsets_behind_the_records_of_an_open_transaction_are_refused() -> None:
    async with Broker() as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        copying = Copying(kafka, await kafka.create_topic(), await kafka.create_topic())
        await kafka.produce(copying.source, 0, rows(0, BEHIND))
        async with copying.both(**AUTOMATIC) as (consumer, producer):
            async with producer.transaction() as tx:
                async with consumer.batch(5) as batch:
                    tx.commit_offsets(batch)
                    with pytest.raises(IllegalOperation, match="after its end"):
                        await batch.commit()
                with pytest.raises(IllegalOperation, match="after its end"):
                    await consumer.commit({copying.tp: 5})
            assert await copying.committed() == 5
            async with producer.transaction(), consumer.batch(3) as batch:
                await batch.commit()  # it is no other's
                assert await copying.committed() == 8
            await consumer.commit({copying.tp: 7})
            assert await copying.committed() == 7
