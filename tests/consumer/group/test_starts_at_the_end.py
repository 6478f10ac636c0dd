"""Where a group begins by auto_offset_reset is committed before records are returned."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import pytest

from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import OffsetOutOfRangeError, RebalanceInProgressError
from aiokafka_lite.producing import AIOKafkaProducer
from aiokafka_lite.structs import TopicPartition
from tests.support.cluster import KafkaHandle, unique
from tests.support.protocols import WAYS
from tests.support.reading import committed, reading, values
from tests.support.rows import rows
from tests.support.waiting import PATIENCE_S, eventually


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Mapping[str, object]:
    return WAYS[request.param]


def at_the_end(kafka: KafkaHandle, topic: str, group: str, **settings: object) -> AIOKafkaConsumer:
    arguments: dict[str, object] = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "group_id": group,
        "auto_offset_reset": "latest",
        "auto_commit_interval_ms": 3_600_000,
        "heartbeat_interval_ms": 100,
        "fetch_max_wait_ms": 50,
        **settings,
    }
    return AIOKafkaConsumer(topic, **arguments)  # type: ignore[arg-type]


@pytest.mark.real_if_long
async def test_the_start_is_committed_before_records_are_returned(
    kafka: KafkaHandle, way: Mapping[str, object]
) -> None:
    topic, group = await kafka.create_topic(partitions=2), unique("g")
    tp, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    await kafka.produce(topic, 0, rows(0, 7))
    async with timeout(PATIENCE_S), at_the_end(kafka, topic, group, **way) as consumer:
        assert await consumer.position(tp) == 7
        await kafka.produce(topic, 0, rows(7, 3))
        assert (await consumer.getone()).offset == 7
        # What the next owner would read if this process was killed now.
        assert await committed(kafka, group, tp) == 7
        assert await consumer.position(other) == 0
        assert await committed(kafka, group, other) == 0


@pytest.mark.real_if_long
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"enable_auto_commit": False}, None),
        ({"auto_offset_reset": "earliest"}, None),
        ({"auto_offset_reset": "by_duration:PT1H"}, 0),
    ],
    ids=["by-hand", "earliest", "by-duration"],
)
async def test_who_commits_by_hand_or_begins_at_the_beginning_commits_no_start(
    kafka: KafkaHandle, settings: Mapping[str, object], expected: int | None
) -> None:
    topic, group = await kafka.create_topic(), unique("g")
    await kafka.produce(topic, 0, rows(0, 7))
    async with timeout(PATIENCE_S), at_the_end(kafka, topic, group, **settings) as consumer:
        assert await consumer.position(TopicPartition(topic, 0)) in (0, 7)
        assert await committed(kafka, group, TopicPartition(topic, 0)) == expected


async def test_records_are_withheld_until_the_start_is_committed() -> None:
    async with Broker() as broker:
        broker.create_topic("t", 50)
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        with broker.on("OffsetCommit").hold() as held:
            async with timeout(PATIENCE_S), at_the_end(kafka, "t", "g") as consumer:
                await held.reached()
                for number in range(50):
                    broker.produce("t", b"%d" % number, partition=number)
                assert await consumer.getmany(timeout_ms=200) == {}
                held.release()
                found = 0
                while found < 50:
                    found += sum(map(len, (await consumer.getmany(timeout_ms=1_000)).values()))
        assert len(broker.requests.of("OffsetCommit")) == 2  # all of them at once; and the stop's


async def test_reading_begins_though_the_start_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        refusal = broker.on("OffsetCommit").fail(RebalanceInProgressError)
        async with timeout(PATIENCE_S), at_the_end(kafka, "t", "g") as consumer:
            await consumer.position(TopicPartition("t", 0))
            broker.produce("t", b"0")
            assert (await consumer.getone()).value == b"0"
        assert refusal.hits == 1
    assert "auto-commit failed" in caplog.text


async def test_the_start_is_committed_before_the_first_transaction_of_a_partition(
    kafka: KafkaHandle,
) -> None:
    """A member that is killed in it has lost nothing: the next one begins where it began."""
    topic, copies, group = await kafka.create_topic(), await kafka.create_topic(), unique("g")
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 5))
    async with timeout(PATIENCE_S), at_the_end(kafka, topic, group) as consumer:
        await consumer.position(tp)
        await kafka.produce(topic, 0, rows(5, 5))
        async with AIOKafkaProducer(
            bootstrap_servers=kafka.bootstrap_servers, transactional_id=unique("tx")
        ) as producer:
            async with consumer.batch() as batch, producer.transaction() as tx:
                assert await committed(kafka, group, tp) == 5
                for record in batch:
                    await tx.send(copies, record.value, partition=0)
                tx.commit_offsets(batch)
            await eventually(lambda: committed(kafka, group, tp), 5 + len(batch))
    async with reading(kafka, copies, isolation_level="read_committed") as reader:
        expected = [value for _, value in rows(5, len(batch))]
        assert await values(reader, len(batch)) == expected


@pytest.mark.real_if_long
@pytest.mark.parametrize(
    ("policy", "lost", "start"),
    [("latest", 3, 10), ("latest", 50, 10), ("earliest", 50, 6)],
    ids=["deleted", "truncated", "truncated, earliest"],
)
async def test_the_start_is_committed_where_the_committed_offset_is_lost(
    kafka: KafkaHandle, policy: str, lost: int, start: int
) -> None:
    """The next owner would begin at a later end, or at that offset once the log is so long."""
    topic, group = await kafka.create_topic(), unique("g")
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 10))
    await kafka.delete_records(topic, 0, 6)
    async with reading(kafka, group_id=group, enable_auto_commit=False) as former:
        former.assign([tp])
        await former.commit({tp: lost})
    settings = {"auto_offset_reset": policy}
    async with timeout(PATIENCE_S), at_the_end(kafka, topic, group, **settings) as consumer:
        await eventually(lambda: consumer.position(tp), start)
        assert await committed(kafka, group, tp) == start


@pytest.mark.real_if_long
async def test_a_start_is_committed_with_the_ranges_that_are_finished_behind_it(
    kafka: KafkaHandle,
) -> None:
    """Retention has passed the committed offset: a crash must not repeat records behind it."""
    topic, group = await kafka.create_topic(), unique("g")
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 10))
    by_hand = partial(
        reading,
        kafka,
        group_id=group,
        enable_auto_commit=False,
        ack_mode="explicit",
        rebalance_hold_ms=0,
    )
    async with by_hand() as former:
        former.assign([tp])
        for record in [await former.getone() for _ in range(8)]:
            if record.offset in (4, 5, 7):
                record.ack()
        await former.commit()
    await kafka.delete_records(topic, 0, 2)
    settings = {
        "auto_offset_reset": "earliest",
        "ack_mode": "explicit",
        "rebalance_hold_ms": 0,
    }
    async with timeout(PATIENCE_S), at_the_end(kafka, topic, group, **settings) as consumer:
        assert (await consumer.getone()).offset == 2
        assert await committed(kafka, group, tp) == 2
        # What the next owner would read if this process was killed now.
        async with by_hand() as successor:
            successor.assign([tp])
            found = [(await successor.getone()).offset for _ in range(5)]
        assert found == [2, 3, 6, 8, 9]


@pytest.mark.real_if_long
async def test_the_start_of_a_partition_that_came_later_is_committed(
    kafka: KafkaHandle, way: Mapping[str, object]
) -> None:
    """This consumer begins at its beginning, and the next owner would begin at the end."""
    topic, group = await kafka.create_topic(), unique("g")
    settings = {"metadata_max_age_ms": 100, **way}
    async with timeout(PATIENCE_S), at_the_end(kafka, topic, group, **settings) as consumer:
        await consumer.position(TopicPartition(topic, 0))
        await kafka.add_partitions(topic, 2)
        await kafka.produce(topic, 1, rows(0, 5))
        record = await consumer.getone()
        assert (record.partition, record.offset) == (1, 0)
        assert await committed(kafka, group, TopicPartition(topic, 1)) == 0


@pytest.mark.real_if_long
async def test_the_start_of_a_topic_that_is_recreated_is_committed(
    kafka: KafkaHandle, way: Mapping[str, object]
) -> None:
    topic, group = await kafka.create_topic(), unique("g")
    tp = TopicPartition(topic, 0)
    settings = {"metadata_max_age_ms": 100, **way}
    async with timeout(2 * PATIENCE_S), at_the_end(kafka, topic, group, **settings) as consumer:
        await consumer.position(tp)
        await kafka.delete_topic(topic)
        await kafka.create_topic(topic)
        await kafka.produce(topic, 0, rows(0, 5))
        record = await consumer.getone()
        assert record.offset == 0
        assert await committed(kafka, group, tp) == 0


@pytest.mark.parametrize("is_finished", [True, False])
async def test_the_start_is_not_committed_while_records_before_it_are_processed(
    is_finished: bool,
) -> None:
    """A crash would skip them."""
    async with Broker() as broker:
        broker.create_topic("t")
        kafka, tp = KafkaHandle("embedded", broker.bootstrap_servers), TopicPartition("t", 0)
        async with timeout(PATIENCE_S), at_the_end(kafka, "t", "g") as consumer:
            await consumer.position(tp)
            await kafka.produce("t", 0, rows(0, 1))
            assert len(await consumer.getmany(timeout_ms=5_000)) == 1
            if is_finished:
                await consumer.getmany(timeout_ms=0)
            with broker.on("ListOffsets").hold() as held:
                broker.on("Fetch").fail(OffsetOutOfRangeError)
                await held.reached()
                await kafka.produce("t", 0, rows(1, 9))
            await eventually(lambda: consumer.position(tp), 10)
            assert await committed(kafka, "g", tp) == (10 if is_finished else 0)
