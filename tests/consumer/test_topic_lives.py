"""Topics that are deleted, made anew or given more partitions while they are read."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from aiokafka_lite import _compat
from aiokafka_lite.broker import Broker
from aiokafka_lite.client.view import GONE_AFTER_S, NO_LEADER, PartitionView
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.positions.topic_changes import TopicChanges
from aiokafka_lite.errors import (
    CommitFailedError,
    IllegalStateError,
    LeaderNotAvailableError,
    OffsetOutOfRangeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.events import (
    EventSubscription,
    OffsetReset,
    PartitionsAdded,
    TopicDeleted,
    TopicRecreated,
)
from aiokafka_lite.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.support import inside
from tests.support.buffers import Buffers
from tests.support.cluster import KafkaHandle, unique
from tests.support.events import next_of
from tests.support.reading import committed, consumer_of, offsets_read, reading
from tests.support.rows import rows
from tests.support.scripted_sources import view
from tests.support.waiting import until

pytestmark = pytest.mark.virtual_time_if_embedded

WAYS = ["assign", pytest.param("subscribe", marks=pytest.mark.slow), "group"]
SETTINGS: dict[str, object] = {
    "fetch_max_wait_ms": 50,
    "retry_backoff_ms": 20,
    "metadata_max_age_ms": 200,
    "heartbeat_interval_ms": 50,
}


@asynccontextmanager
async def reading_by(
    way: str, kafka: KafkaHandle, topics: dict[str, int], **settings: object
) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer of all partitions of these topics, in one of the ways to get them."""
    arguments = {**SETTINGS, **settings}
    if way == "group":
        arguments.setdefault("group_id", unique("group"))
    names = () if way == "assign" else topics
    async with reading(kafka, *names, **arguments) as consumer:  # type: ignore[arg-type]
        if way == "assign":
            consumer.assign(
                TopicPartition(name, number)
                for name, count in topics.items()
                for number in range(count)
            )
        yield consumer


async def keys_read(consumer: AIOKafkaConsumer, count: int) -> list[bytes]:
    """The keys of the next records, in any order."""
    found: list[bytes] = []
    async with _compat.timeout(20):
        while len(found) < count:
            for records in (await consumer.poll(timeout_ms=10_000)).values():
                found += [record.key or b"" for record in records]
    return sorted(found)


async def exists(kafka: KafkaHandle, topic: str) -> bool:
    async with kafka.raw() as client:
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
        )
        (answer,) = (await client.request(request)).topics
    return answer.error_code != UnknownTopicOrPartitionError.errno


def cannot_notice(consumer: AIOKafkaConsumer) -> None:
    """Have the consumer ask for no metadata, until `invalidate`."""
    cluster = inside.cluster(consumer)
    assert cluster.config.metadata_max_age_s > 60
    assert not cluster.view.incomplete_topics()


# --- Deleted -------------------------------------------------------------------------------
@pytest.mark.parametrize("way", WAYS)
async def test_a_deleted_topic_is_told_and_the_others_go_on(
    kafka: KafkaHandle, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    doomed, other = [await kafka.create_topic(partitions=2) for _ in range(2)]
    await kafka.produce(doomed, 0, rows(0, 2))
    async with reading_by(way, kafka, {doomed: 2, other: 2}) as consumer:
        events = consumer.events()
        assert len(await keys_read(consumer, 2)) == 2
        await kafka.delete_topic(doomed)
        assert await next_of(events, TopicDeleted) == TopicDeleted(doomed)
        if way == "assign":
            with pytest.raises(UnknownTopicOrPartitionError, match=doomed) as caught:
                await asyncio.wait_for(consumer.getone(), 20)
            assert caught.value.tp == TopicPartition(doomed, 0)
        else:
            await until(lambda: {tp.topic for tp in consumer.assignment()} == {other})
        await kafka.produce(other, 1, rows(10, 2))
        assert await keys_read(consumer, 2) == [b"10", b"11"]
        assert await consumer.poll(timeout_ms=50) == {}  # the error came once
        assert consumer.partitions_for_topic(doomed) is None
        # Asking for its metadata has not brought it back, though topics may be created so.
        assert not await exists(kafka, doomed)
    told = [record for record in caplog.records if "was deleted" in record.message]
    assert [record.levelno for record in told] == [logging.WARNING]


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    "way",
    ["assign", *(pytest.param(way, marks=pytest.mark.slow) for way in ("subscribe", "group"))],
)
async def test_a_deleted_topic_is_not_asked_for_in_a_hot_loop(way: str) -> None:
    async with Broker() as broker:
        broker.create_topic("doomed", 3)
        broker.create_topic("other")
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        topics = {"doomed": 3, "other": 1}
        async with reading_by(way, kafka, topics, metadata_max_age_ms=300_000) as consumer:
            events = consumer.events()
            await consumer.position(TopicPartition("other", 0))
            broker.delete_topic("doomed")
            await next_of(events, TopicDeleted)
            mark = broker.requests.total
            began = asyncio.get_running_loop().time()
            await asyncio.sleep(1.5)
            took_s = asyncio.get_running_loop().time() - began
            asked = broker.requests.of(
                since=mark,
                when=lambda seen: seen.api in ("Metadata", "ListOffsets", "OffsetFetch"),
            )
            assert len(asked) <= 2 * took_s + 2, asked
    assert broker.failure is None


async def test_a_broker_that_lags_behind_deletes_nothing() -> None:
    """One answer that does not know a topic may be an old one."""
    async with Broker() as broker:
        broker.create_topic("t")
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        async with reading(kafka, "t", **SETTINGS) as consumer:  # type: ignore[arg-type]
            events = consumer.events()
            await consumer.position(TopicPartition("t", 0))
            rule = broker.on("Metadata").fail(UnknownTopicOrPartitionError)
            await inside.cluster(consumer).refresh()
            assert rule.is_over
            assert consumer.assignment() == {TopicPartition("t", 0)}
            await inside.cluster(consumer).refresh()
            broker.produce("t", b"value")
            assert (await consumer.getone()).value == b"value"
            assert "topic_deleted" not in inside.event_counts(consumer)
            events.close()


async def test_commits_leave_a_deleted_topic_out(kafka: KafkaHandle) -> None:
    doomed, other = [await kafka.create_topic() for _ in range(2)]
    for topic in (doomed, other):
        await kafka.produce(topic, 0, rows(0, 3))
    gone, there = TopicPartition(doomed, 0), TopicPartition(other, 0)
    group = unique("group")
    settings = {**SETTINGS, "auto_commit_interval_ms": 100, "group_id": group}
    async with reading_by("assign", kafka, {doomed: 1, other: 1}, **settings) as consumer:
        events = consumer.events()
        await keys_read(consumer, 6)
        await kafka.delete_topic(doomed)
        await next_of(events, TopicDeleted)
        with pytest.raises(UnknownTopicOrPartitionError):
            await asyncio.wait_for(consumer.getone(), 20)
        # By hand: at once, not when request_timeout_ms is over; and the other one is committed.
        with pytest.raises(UnknownTopicOrPartitionError):
            await asyncio.wait_for(consumer.commit({gone: 3, there: 2}), 20)
        assert await consumer.committed(there) == 2
        # By itself.
        await kafka.produce(other, 0, rows(3, 2))
        await keys_read(consumer, 2)
        await consumer.poll(timeout_ms=0)
        await until(lambda: inside.known_commit(consumer, there) == OffsetAndMetadata(5, ""))
        assert await consumer.committed(there) == 5
        assert await consumer.poll(timeout_ms=50) == {}  # raises nothing
        assert await consumer.stop() == {}


async def test_a_rebalance_for_a_deleted_topic_does_not_wait_for_its_commit() -> None:
    async with Broker() as broker:
        for topic in ("doomed", "other"):
            broker.create_topic(topic)
            broker.produce(topic, b"value")
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        topics = {"doomed": 1, "other": 1}
        settings = {"session_timeout_ms": 60_000, "group_id": "g"}
        async with reading_by("group", kafka, topics, **settings) as consumer:
            await keys_read(consumer, 2)
            await consumer.poll(timeout_ms=0)
            broker.delete_topic("doomed")
            # Half of the rebalance timeout it would be.
            await until(lambda: consumer.assignment() == {TopicPartition("other", 0)})
            broker.produce("other", b"more")
            assert (await consumer.getone()).value == b"more"
        assert broker.committed("g") == {TopicPartition("other", 0): 2}
    assert broker.failure is None


# --- Made anew -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("way", "policy"),
    [
        ("assign", "earliest"),
        ("group", "latest"),
        *(
            pytest.param(way, policy, marks=pytest.mark.slow)
            for way, policy in [
                ("assign", "latest"),
                ("subscribe", "earliest"),
                ("subscribe", "latest"),
                ("group", "earliest"),
            ]
        ),
    ],
)
async def test_a_position_is_not_applied_to_another_log(
    kafka: KafkaHandle, way: str, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the new log is longer than the old: nothing of it is passed over."""
    topic = await kafka.create_topic()
    tp = TopicPartition(topic, 0)
    settings = {"auto_offset_reset": policy, "metadata_max_age_ms": 300_000}
    async with reading_by(way, kafka, {topic: 1}, **settings) as consumer:
        events = consumer.events()
        assert await consumer.position(tp) == 0
        await kafka.produce(topic, 0, rows(0, 3))
        assert await keys_read(consumer, 3) == [b"0", b"1", b"2"]
        consumer.pause(tp)  # so that no fetch finds out
        await asyncio.sleep(0.1)
        cannot_notice(consumer)
        await kafka.delete_topic(topic)
        await kafka.create_topic(topic)
        await kafka.produce(topic, 0, rows(100, 5))
        inside.cluster(consumer).invalidate()
        assert await next_of(events, TopicRecreated) == TopicRecreated(topic)
        # By KIP-848 it goes, as the topic with its id is gone, and comes back.
        await until(lambda: consumer.assignment() == {tp})
        consumer.resume(tp)
        assert await keys_read(consumer, 5) == [b"%d" % key for key in range(100, 105)]
        assert await consumer.position(tp) == 5
        if way == "group":
            await consumer.commit()
            assert await consumer.committed(tp) == 5
    told = [record for record in caplog.records if "recreated" in record.message]
    assert [record.levelno for record in told] == [logging.WARNING]


@pytest.mark.virtual_time
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_topic_is_followed_from_when_it_is_assigned_though_no_view_has_come_since(
    protocol: str,
) -> None:
    """The view has the topic still when it is subscribed again, so none is asked for."""
    async with Broker() as broker:
        broker.create_topic("t")
        broker.produce("t", b"former")
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        settings = {
            "group_id": "g",
            "group_protocol": protocol,
            "enable_auto_commit": False,
            "metadata_max_age_ms": 300_000,
        }
        async with reading_by("group", kafka, {"t": 1}, **settings) as consumer:
            events = consumer.events()
            consumer.unsubscribe()
            inside.show_metadata(consumer, inside.cluster(consumer).view)
            consumer.subscribe(["t"])
            await keys_read(consumer, 1)
            broker.recreate_topic("t")
            for _ in range(3):
                broker.produce("t", b"new")
            assert await next_of(events, TopicRecreated) == TopicRecreated("t")
            await keys_read(consumer, 3)
            await consumer.commit()
        assert broker.committed("g") == {TopicPartition("t", 0): 3}


async def test_without_a_policy_a_topic_made_anew_is_an_error_until_sought(
    kafka: KafkaHandle,
) -> None:
    topic, group = await kafka.create_topic(), unique("group")
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 3))
    settings = {"auto_offset_reset": "none", "group_id": group}
    async with reading_by("assign", kafka, {topic: 1}, **settings) as consumer:
        events = consumer.events()
        consumer.seek(tp, 0)
        await keys_read(consumer, 3)
        await kafka.delete_topic(topic)
        await kafka.create_topic(topic)
        await kafka.produce(topic, 0, rows(100, 5))
        await next_of(events, TopicRecreated)
        for _ in range(2):
            with pytest.raises(OffsetOutOfRangeError, match="recreated") as caught:
                await asyncio.wait_for(consumer.getone(), 20)
            assert caught.value.args[0] == {tp: 3}
        await consumer.commit()  # the position is of another log: there is nothing to commit
        assert await consumer.committed(tp) is None
        consumer.seek(tp, 1)
        assert await keys_read(consumer, 4) == [b"%d" % key for key in range(101, 105)]


async def test_what_was_committed_of_the_old_log_is_not_used(kafka: KafkaHandle) -> None:
    topic, group = await kafka.create_topic(), unique("group")
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 3))
    async with reading_by("group", kafka, {topic: 1}, group_id=group) as consumer:
        await keys_read(consumer, 3)
    await kafka.delete_topic(topic)
    await kafka.create_topic(topic)
    await kafka.produce(topic, 0, rows(100, 5))
    async with reading_by("group", kafka, {topic: 1}, group_id=group) as consumer:
        assert await consumer.committed(tp) is None
        assert await keys_read(consumer, 5) == [b"%d" % key for key in range(100, 105)]


async def test_auto_commit_does_not_carry_an_old_position_into_a_new_log() -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        tp = TopicPartition("t", 0)
        for _ in range(3):
            broker.produce("t", b"old")
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        settings = {"group_id": "g", "auto_commit_interval_ms": 20, "metadata_max_age_ms": 300_000}
        async with reading_by("assign", kafka, {"t": 1}, **settings) as consumer:
            events = consumer.events()
            await keys_read(consumer, 3)
            await consumer.poll(timeout_ms=0)
            await broker.wait_until(lambda: broker.committed("g") == {tp: 3})
            # Until that is over, metadata tells nothing new.
            with broker.on("Metadata").fail(LeaderNotAvailableError, times=None):
                broker.recreate_topic("t")
                for _ in range(5):
                    broker.produce("t", b"new")
                consumer.seek(tp, 2)  # of the old log: to be committed soon
                await broker.requests.wait_for("OffsetCommit", since=broker.requests.total)
            await next_of(events, TopicRecreated)
            assert broker.committed("g").get(tp, 0) == 0
            values = [(await consumer.getone()).value for _ in range(5)]
            assert values == [b"new"] * 5
            assert await consumer.stop() == {}
        assert broker.committed("g") == {tp: 5}
    assert broker.failure is None


async def recreate(kafka: KafkaHandle, topic: str) -> None:
    """Delete a topic of 100 records and create it again, with 150."""
    await kafka.delete_topic(topic)
    for _ in range(200):
        try:
            await kafka.create_topic(topic)
            break
        except TopicAlreadyExistsError:  # a real broker takes a moment to forget it
            await asyncio.sleep(0.02)
    await kafka.produce(topic, 0, rows(1000, 150))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("commits", ["commit", "named", "stop", "named later"])
async def test_offsets_of_a_deleted_topic_are_not_committed_to_the_one_that_replaces_it(
    kafka: KafkaHandle, protocol: str, commits: str
) -> None:
    topic, group = await kafka.create_topic(), unique("group")
    await kafka.produce(topic, 0, rows(0, 100))
    tp = TopicPartition(topic, 0)
    settings = {
        "group_id": group,
        "group_protocol": protocol,
        "enable_auto_commit": commits == "stop",
        # It hears of the new topic by the refusal of its commit, not before.
        "metadata_max_age_ms": 300_000 if commits != "named later" else 100,
        "fetch_max_wait_ms": 30_000 if commits != "named later" else 50,
    }
    async with reading_by("group", kafka, {topic: 1}, **settings) as consumer:
        events = consumer.events()
        await keys_read(consumer, 100)
        await recreate(kafka, topic)
        if commits == "commit":
            await consumer.commit()
        elif commits == "stop":
            await consumer.stop()
        else:
            if commits == "named later":
                await next_of(events, TopicRecreated)
                # By KIP-848 it goes, as the topic with its id is gone, and comes back.
                await until(lambda: consumer.assignment() == {tp})
            with pytest.raises(
                (CommitFailedError, IllegalStateError),
                match=r"recreated|earlier assignment|revoked it",
            ):
                await consumer.commit({tp: 100})
    async with reading_by("group", kafka, {topic: 1}, group_id=group) as successor:
        assert await keys_read(successor, 150) == sorted(b"%d" % key for key in range(1000, 1150))


async def test_a_partition_that_a_recreated_topic_lacks_keeps_no_other_from_being_committed(
    kafka: KafkaHandle,
) -> None:
    topic, group = await kafka.create_topic(partitions=2), unique("group")
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 100))
    settings = {"group_id": group, "enable_auto_commit": False, "metadata_max_age_ms": 100}
    async with reading_by("assign", kafka, {topic: 2}, **settings) as consumer:
        events = consumer.events()
        await keys_read(consumer, 100)
        await recreate(kafka, topic)
        await next_of(events, TopicRecreated)
        consumer.seek(TopicPartition(topic, 1), 0)
        for _ in range(3):
            await consumer.getone(tp)
        await consumer.commit()
    assert await committed(kafka, group, tp) == 3


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_an_offset_of_the_last_partition_is_refused_after_a_rebalance_took_it_away(
    kafka: KafkaHandle, protocol: str
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 100))
    settings = {
        "group_protocol": protocol,
        "enable_auto_commit": False,
        "metadata_max_age_ms": 100,
    }
    async with reading_by("group", kafka, {topic: 1}, **settings) as consumer:
        await keys_read(consumer, 100)
        await kafka.delete_topic(topic)
        await until(lambda: not consumer.assignment())
        with pytest.raises(IllegalStateError, match="a rebalance revoked it"):
            await consumer.commit({TopicPartition(topic, 0): 100})


async def test_what_was_read_before_a_topic_was_deleted_is_not_committed_to_its_successor() -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        broker.produce("t", b"old")
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        settings = {"group_id": "g", "enable_auto_commit": False}
        async with reading_by("assign", kafka, {"t": 1}, **settings) as consumer:
            events = consumer.events()
            await keys_read(consumer, 1)
            broker.delete_topic("t")
            await next_of(events, TopicDeleted)
            # Metadata do not say so yet.
            broker.create_topic("t")
            with pytest.raises(UnknownTopicOrPartitionError):
                await consumer.commit()
        assert not broker.committed("g")


async def test_an_offset_of_a_deleted_topic_is_committed_after_a_seek_there() -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        tp = TopicPartition("t", 0)
        for _ in range(3):
            broker.produce("t", b"old")
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        settings = {"group_id": "g", "enable_auto_commit": False}
        async with reading_by("assign", kafka, {"t": 1}, **settings) as consumer:
            events = consumer.events()
            await keys_read(consumer, 3)
            broker.recreate_topic("t")
            for _ in range(5):
                broker.produce("t", b"new")
            await next_of(events, TopicRecreated)
            with pytest.raises(CommitFailedError, match="recreated"):
                await consumer.commit({tp: 3})
            consumer.seek(tp, 3)
            await consumer.commit({tp: 3})
            await keys_read(consumer, 2)
            await consumer.commit({tp: 4})
        assert broker.committed("g") == {tp: 4}
    assert broker.failure is None


async def test_an_offset_that_was_sought_is_committed_though_the_new_topic_has_no_leader() -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        tp = TopicPartition("t", 0)
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        settings = {"group_id": "g", "enable_auto_commit": False, "metadata_max_age_ms": 300_000}
        async with reading_by("assign", kafka, {"t": 1}, **settings) as consumer:
            events, cluster = consumer.events(), inside.cluster(consumer)
            broker.produce("t", b"old")
            await keys_read(consumer, 1)
            topic_id = broker.recreate_topic("t").topic_id
            former = cluster.view.topics["t"]
            new = former._replace(topic_id=topic_id, partitions={0: PartitionView(NO_LEADER)})
            with broker.on("Metadata").hold():
                inside.show_metadata(consumer, cluster.view._replace(topics={"t": new}))
                await next_of(events, TopicRecreated)
                consumer.seek(tp, 1)
                await consumer.commit({tp: 1})
        assert broker.committed("g") == {tp: 1}


@pytest.mark.virtual_time
@pytest.mark.parametrize("api", ["OffsetCommit", "OffsetFetch"])
async def test_an_answer_about_a_deleted_topic_does_not_say_what_its_successor_has_committed(
    api: str,
) -> None:
    async with Broker(nodes=2) as broker:
        await broker.open_internal_topic("__consumer_offsets")
        broker.create_topic("t")
        tp = TopicPartition("t", 0)
        leader = broker.leader_of(tp)
        # The leader's answers do not wait behind the coordinator's late one.
        group = next(name for name in "abcdef" if broker.coordinator_of(name) != leader)
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        settings = {"group_id": group, "enable_auto_commit": False}
        async with reading_by("assign", kafka, {"t": 1}, **settings) as consumer:
            events, cluster = consumer.events(), inside.cluster(consumer)
            for _ in range(3):
                broker.produce("t", b"old")
            await keys_read(consumer, 3)
            if api == "OffsetFetch":
                await consumer.commit()
            with broker.on(api).delay(5.0, handled=True) as rule:
                asking = consumer.commit() if api == "OffsetCommit" else consumer.committed(tp)
                late = asyncio.ensure_future(asking)
                await until(lambda: rule.hits and broker.committed(group))
                topic_id = broker.recreate_topic("t").topic_id
                for _ in range(3):
                    broker.produce("t", b"new")
                assert broker.leader_of(tp) == leader
                new = cluster.view.topics["t"]._replace(topic_id=topic_id)
                inside.show_metadata(consumer, cluster.view._replace(topics={"t": new}))
                await next_of(events, TopicRecreated)
                await keys_read(consumer, 3)
                assert not late.done()
                await late
            assert inside.cursor(consumer, tp).committed is None
    assert broker.failure is None


async def test_a_broker_that_lags_behind_does_not_bring_the_old_topic_back() -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        broker.produce("t", b"old")
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        async with reading_by("assign", kafka, {"t": 1}) as consumer:
            events = consumer.events()
            cluster = inside.cluster(consumer)
            assert (await consumer.getone()).value == b"old"
            old_view = cluster.view
            broker.recreate_topic("t")
            broker.produce("t", b"new")
            await next_of(events, TopicRecreated)
            assert (await consumer.getone()).value == b"new"
            # An answer of a broker that has not heard of it, and one that has.
            inside.show_metadata(
                consumer, old_view._replace(fetched_at=old_view.fetched_at + 0.001)
            )
            await cluster.refresh()
            broker.produce("t", b"newer")
            assert (await consumer.getone()).value == b"newer"
            assert inside.event_counts(consumer)["topic_recreated"] == 1


# --- Partitions that there are not ---------------------------------------------------------------
async def test_an_assigned_partition_that_its_topic_does_not_have_raises_once(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic(partitions=2)
    await kafka.produce(topic, 0, rows(0, 1))
    missing = TopicPartition(topic, 7)
    async with reading(kafka) as consumer:
        consumer.assign([TopicPartition(topic, 0), missing])
        assert await keys_read(consumer, 1) == [b"0"]
        with pytest.raises(UnknownTopicOrPartitionError, match="no partition 7") as caught:
            await asyncio.wait_for(consumer.getone(), 20)
        assert caught.value.tp == missing
        await inside.cluster(consumer).refresh()
        assert await consumer.poll(timeout_ms=50) == {}  # once
        assert "do not know the partition" in " ".join(consumer.health().reasons)


async def test_a_missing_partition_raises_after_the_time_after_which_a_topic_is_gone() -> None:
    buffers = Buffers(*(TopicPartition("t", number) for number in (0, 7, 8)))
    state = buffers.state
    changes = TopicChanges(state.core(buffer=buffers.buffer))
    for elapsed_s in (0.0, GONE_AFTER_S - 0.125):
        changes.view_changed(view({0: 1})._replace(fetched_at=1.0 + elapsed_s))
        assert not buffers.buffer.can_serve(())
    changes.view_changed(view({0: 1})._replace(fetched_at=1.0 + GONE_AFTER_S))
    for number in (7, 8):
        with pytest.raises(UnknownTopicOrPartitionError, match=f"no partition {number}"):
            await buffers.gets.one(())
    changes.view_changed(view({0: 1})._replace(fetched_at=1.0 + 2 * GONE_AFTER_S))
    assert not buffers.buffer.can_serve(())


# --- More partitions -----------------------------------------------------------------------
@pytest.mark.parametrize("way", WAYS)
async def test_nothing_written_to_new_partitions_is_lost_with_latest(
    kafka: KafkaHandle, way: str
) -> None:
    topic = await kafka.create_topic(partitions=4)
    for partition in range(4):
        await kafka.produce(topic, partition, rows(0, 5))
    settings = {"auto_offset_reset": "latest", "metadata_max_age_ms": 300_000}
    async with reading_by(way, kafka, {topic: 4}, **settings) as consumer:
        events = consumer.events()
        old = [TopicPartition(topic, number) for number in range(4)]
        assert set((await consumer.position(*old)).values()) == {5}
        cannot_notice(consumer)
        await kafka.add_partitions(topic, 12)
        for partition in range(12):
            await kafka.produce(topic, partition, rows(100 + partition, 1))
        inside.cluster(consumer).invalidate()
        assert await next_of(events, PartitionsAdded) == PartitionsAdded(topic, 4, 12)
        if way == "assign":
            consumer.incremental_assign(TopicPartition(topic, number) for number in range(4, 12))
        assert await keys_read(consumer, 12) == [b"%d" % key for key in range(100, 112)]


async def test_a_partition_that_was_there_before_starts_at_its_end_with_latest(
    kafka: KafkaHandle,
) -> None:
    """Also one that is assigned after others were added."""
    topic = await kafka.create_topic(partitions=2)
    first, second, third = (TopicPartition(topic, number) for number in range(3))
    await kafka.produce(topic, 1, rows(0, 5))
    async with reading_by("assign", kafka, {topic: 1}, auto_offset_reset="latest") as consumer:
        events = consumer.events()
        assert await consumer.position(first) == 0
        await kafka.add_partitions(topic, 3)
        await kafka.produce(topic, 2, rows(0, 5))
        await next_of(events, PartitionsAdded)
        consumer.incremental_assign([second, third])
        assert await consumer.position(second, third) == {second: 5, third: 0}


async def test_new_partitions_go_on_where_the_group_has_got_to(kafka: KafkaHandle) -> None:
    topic, group = await kafka.create_topic(partitions=1), unique("group")
    second = TopicPartition(topic, 1)
    settings = {"auto_offset_reset": "latest", "group_id": group}
    async with reading_by("assign", kafka, {topic: 1}, **settings) as consumer:
        events = consumer.events()
        await consumer.position(TopicPartition(topic, 0))
        await kafka.add_partitions(topic, 2)
        await kafka.produce(topic, 1, rows(0, 5))
        await next_of(events, PartitionsAdded)
        async with reading(kafka, group_id=group) as other:
            other.assign([second])
            await other.commit({second: 3})
        consumer.incremental_assign([second])
        assert await consumer.position(second) == 3


# --- Patterns ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "is_grouped", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["alone", "group"]
)
async def test_a_pattern_gains_and_loses_topics_and_loses_no_record(
    kafka: KafkaHandle, is_grouped: bool
) -> None:
    prefix = unique("pattern")
    first = await kafka.create_topic(f"{prefix}-a")
    await kafka.produce(first, 0, rows(0, 3))
    group = unique("group") if is_grouped else None
    settings = {**SETTINGS, "auto_offset_reset": "latest", "group_id": group}
    async with reading(kafka, **settings) as consumer:  # type: ignore[arg-type]
        events = consumer.events()
        consumer.subscribe(pattern=f"{prefix}-|__consumer_offsets")
        await until(lambda: consumer.subscription() == {first})
        await until(lambda: consumer.assignment() == {TopicPartition(first, 0)})
        assert await consumer.position(TopicPartition(first, 0)) == 3
        second = await kafka.create_topic(f"{prefix}-b")
        await kafka.produce(second, 0, rows(10, 2))
        await kafka.produce(first, 0, rows(20, 2))
        assert await keys_read(consumer, 4) == [b"10", b"11", b"20", b"21"]
        assert consumer.subscription() == {first, second}
        if is_grouped:  # what was handed out by the latest get would be read again
            await consumer.commit()
        await kafka.delete_topic(first)
        assert await next_of(events, TopicDeleted) == TopicDeleted(first)
        await until(lambda: consumer.subscription() == {second})
        await until(lambda: consumer.assignment() == {TopicPartition(second, 0)})
        await kafka.produce(second, 0, rows(30, 2))
        assert await keys_read(consumer, 2) == [b"30", b"31"]


@pytest.mark.parametrize("is_told_first", [True, False])
async def test_a_deleted_topic_of_a_pattern_is_told_once_whoever_hears_of_it_first(
    is_told_first: bool,
) -> None:
    buffers = Buffers()
    state = buffers.state
    lives = TopicChanges(state.core(buffer=buffers.buffer))
    state.unsubscribe()
    state.subscribe_pattern(re.compile("t"))
    steps = [
        lives.view_changed,
        lambda view: state.match_pattern(view, exclude_internal_topics=True),
    ]
    there = view({0: 1})._replace(is_of_all=True)
    with state.events.subscribe() as events:
        for seen in (there, there._replace(topics={}), there._replace(topics={}), there):
            for step in steps if is_told_first else reversed(steps):
                step(seen)
        state.events.close()
        assert [event async for event in events] == [TopicDeleted("t")]
    assert state.subscription == {"t"}
    assert lives.came_later(TopicPartition("t", 0))


async def test_the_same_pattern_again_is_no_reason_to_read_old_topics_from_the_beginning(
    kafka: KafkaHandle,
) -> None:
    prefix = unique("pattern")
    topic, other = await kafka.create_topic(f"{prefix}-a"), await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 3))
    tp = TopicPartition(topic, 0)
    settings = {**SETTINGS, "auto_offset_reset": "latest"}
    async with reading(kafka, **settings) as consumer:  # type: ignore[arg-type]
        for _ in range(2):
            consumer.subscribe(pattern=f"{prefix}-")
            await until(lambda: consumer.assignment() == {tp})
            assert await consumer.position(tp) == 3
            consumer.unsubscribe()
            consumer.subscribe([other])
            await until(lambda: consumer.assignment() == {TopicPartition(other, 0)})
            await inside.cluster(consumer).refresh()
            consumer.unsubscribe()


# --- Deleted records -----------------------------------------------------------------------
async def test_records_deleted_under_the_reader_are_told_exactly(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    tp = TopicPartition(topic, 0)
    for first in range(0, 10, 2):
        await kafka.produce(topic, 0, rows(first, 2))
    async with reading_by("assign", kafka, {topic: 1}, max_poll_records=2) as consumer:
        events: EventSubscription = consumer.events()
        consumer.seek(tp, 0)
        assert await offsets_read(consumer, 2) == {0: [0, 1]}
        consumer.pause(tp)
        await kafka.delete_records(topic, 0, 7)
        consumer.seek(tp, 2)  # drops what is buffered
        consumer.resume(tp)
        told = await next_of(events, OffsetReset)
        assert isinstance(told, OffsetReset)
        assert told.lost is not None
        assert (told.from_offset, told.to_offset, *told.lost) == (2, 7, 2, 7)
        assert await offsets_read(consumer, 3) == {0: [7, 8, 9]}


async def test_holes_that_compaction_leaves_are_passed_over() -> None:
    """Also one at the beginning, and in batches of which a single record is left."""
    async with Broker(segment_bytes=2_000) as broker:
        broker.create_topic(
            "t", configs={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
        )
        for number in range(600):
            key = "kept" if number == 200 else f"key {number % 3}"
            broker.produce("t", b"%d" % number, key=key)
        await broker.clean_logs()
        left = [record.offset for record in broker.records("t")]
        assert left[0] == 200
        assert left[1] > 500
        async with consumer_of(broker, "t", max_partition_fetch_bytes=100) as consumer:
            read = [(await asyncio.wait_for(consumer.getone(), 10)).offset for _ in left]
            assert read == left
            assert await consumer.position(TopicPartition("t", 0)) == 600
