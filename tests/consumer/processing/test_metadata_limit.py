"""Where brokers refuse long metadata, commits have shorter ones, and are made all the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.direct import NewRecord
from aiokafka_lite.consumer.commits.transactional import OffsetsInTransaction
from aiokafka_lite.errors import OffsetMetadataTooLargeError
from aiokafka_lite.processing import DeadLetters, Retry
from aiokafka_lite.protocol.messages.offsets import OffsetCommitRequest
from aiokafka_lite.structs import ConsumerRecord, OffsetAndMetadata, TopicPartition
from tests.consumer.processing.acking import PATIENCE_S, take
from tests.support.states import Holder
from tests.support.waiting import until
from tests.support.worker import Worker

Record = ConsumerRecord[bytes | None, bytes | None]
A = TopicPartition("t", 0)
COUNT = 1_000


@asynccontextmanager
async def owner(broker: Broker, **settings: object) -> AsyncIterator[AIOKafkaConsumer]:
    arguments: dict[str, object] = {
        "bootstrap_servers": broker.bootstrap_servers,
        "group_id": "g",
        "auto_offset_reset": "earliest",
        "ack_mode": "explicit",
        "rebalance_hold_ms": 0,  # a stop does not wait for what is not acknowledged
        **settings,
    }
    async with timeout(PATIENCE_S), AIOKafkaConsumer("t", **arguments) as consumer:  # type: ignore[arg-type]
        yield consumer


@asynccontextmanager
async def filled(most_bytes: int) -> AsyncIterator[Broker]:
    async with Broker(offset_metadata_max_bytes=most_bytes) as broker:
        broker.create_topic("t", partitions=1)
        broker.create_topic("dead", partitions=1)
        broker.produce_all("t", [NewRecord(b"%d" % number) for number in range(COUNT)])
        yield broker


def commits(broker: Broker) -> int:
    return sum(isinstance(seen.request, OffsetCommitRequest) for seen in broker.requests)


async def committed(consumer: AIOKafkaConsumer) -> OffsetAndMetadata | None:
    return await consumer.committed(A, metadata=True)


@pytest.mark.parametrize(("most_bytes", "least"), [(1_024, 400), (256, 100), (30, 0)])
async def test_gaps_are_committed_with_as_much_metadata_as_the_broker_takes(
    most_bytes: int, least: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with filled(most_bytes) as broker:
        async with owner(broker) as consumer:
            records = await take(consumer, COUNT)
            for record in records[:1] + records[2::2]:
                record.ack()
            await consumer.commit()
            found = await committed(consumer)
            assert found is not None
            assert found.offset == 1
            assert least <= len(found.metadata) <= most_bytes
            assert "offset.metadata.max.bytes" in caplog.text
            asked_before = commits(broker)
            records[1].ack()
            await consumer.commit()
            assert (await committed(consumer) or (0,))[0] == 3
            asked = commits(broker)
            assert asked - asked_before <= 2  # an automatic one as well, and no refusal
            assert consumer.health().is_ok
        async with owner(broker) as next_owner:
            again = await take(next_owner, 2)
            assert again[0].offset == 3
            assert again[1].offset == (5 if least else 4)


async def test_a_transaction_finishes_as_many_records_as_metadata_have_room_for() -> None:
    worker = Worker("127.0.0.1:1", "g")
    state = worker.state
    state.assign_from_user([A])
    cursor, holder = state.partition(A), Holder()
    cursor.topic_id = b"0123456789abcdef"
    state.seek(cursor, 0)
    state.reads.begin_get()
    records = [
        ConsumerRecord("t", 0, offset, 0, 0, None, None, None, -1, -1, ())
        for offset in range(COUNT)
    ]
    state.works.hand_out_each(cursor, records, (), lambda _: holder)
    state.reads.hand_out(cursor, 0, COUNT, ())
    offsets = OffsetsInTransaction(state.core(), worker.commits)
    for refused, is_one_enough in ((400, True), (100, False)):
        state.finished.limit_metadata(refused)
        gaps = range(1, COUNT, 2)
        found = offsets.if_finished(cursor, {*gaps})
        if is_one_enough:
            assert found is not None
            offset, finished = found
            count = len(finished)
            assert 0 < count < len(gaps)
            assert finished == {*gaps[:count]}
            assert state.finished.offset_if_finished(cursor, finished) == (offset, True)
            assert not state.finished.offset_if_finished(cursor, {*gaps[: count + 1]})[1]
        else:
            assert found is None
            # The first unfinished record needs no room.
            first = offsets.if_finished(cursor, {0, *gaps[1:]})
            assert first == (OffsetAndMetadata(1, ""), {0})


async def test_metadata_of_the_application_are_refused_as_they_are() -> None:
    async with filled(1_024) as broker, owner(broker, ack_mode="implicit") as consumer:
        await consumer.getone()
        with pytest.raises(OffsetMetadataTooLargeError):
            await consumer.commit({A: (1, "x" * 2_000)})


async def test_run_goes_on_and_writes_dead_letters_in_transactions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    may_end = asyncio.Event()

    async def handle(record: Record) -> None:
        if record.offset == COUNT - 1:
            raise ValueError("bad")
        if record.offset % 2 == 0:
            await may_end.wait()

    async with (
        filled(256) as broker,
        owner(broker, ack_mode="implicit", auto_commit_interval_ms=60_000) as consumer,
    ):
        letters = DeadLetters("dead", transactional_id="letters")
        running = asyncio.create_task(
            consumer.run(
                handle,
                order=None,
                concurrency=COUNT,
                retry=Retry(dead=ValueError),
                dead_letter=letters,
                breaker=None,
            )
        )
        await until(lambda: "offset.metadata.max.bytes" in caplog.text)
        may_end.set()
        await until(lambda: consumer.metrics()["processing_dead_total"] == 1)
        await consumer.stop()
        await running
        async with owner(broker) as next_owner:
            assert (await committed(next_owner) or (0,))[0] == COUNT
