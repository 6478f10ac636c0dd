"""health(): ok, degraded or dead, and what to do about it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from typing import TypeVar, cast

import pytest

from aiokafka_lite.broker import Broker, NewRecord
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.assignors.cooperative_sticky import CooperativeStickyPartitionAssignor
from aiokafka_lite.consumer.monitoring.health import (
    FAILED_COMMIT_S,
    LONG_BLOCK_S,
    MAX_NAMED,
    Health,
)
from aiokafka_lite.consumer.monitoring.loop_probe import RECENT_S
from aiokafka_lite.errors import (
    CoordinatorNotAvailableError,
    DeserializationError,
    InvalidCommitOffsetSizeError,
    KafkaConnectionError,
    KafkaStorageError,
)
from aiokafka_lite.events import CommitFailed
from aiokafka_lite.protocol.messages.metadata import (
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from aiokafka_lite.structs import TopicPartition
from tests.support import inside
from tests.support.cluster import KafkaHandle, unique
from tests.support.events import next_of
from tests.support.ports import free_port
from tests.support.protocols import HEARTBEAT, JOIN, in_both_protocols
from tests.support.reading import consumer_of, offsets_read, reading
from tests.support.rows import rows
from tests.support.scripted_broker import ScriptedBroker
from tests.support.waiting import until

T0 = TopicPartition("t", 0)
V = TypeVar("V")


async def until_health(
    consumer: AIOKafkaConsumer, is_reached: Callable[[Health], object]
) -> Health:
    """Wait until the health is as wanted."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 20
    while not is_reached(health := consumer.health()):
        assert loop.time() < deadline, health
        await asyncio.sleep(0.005)
    return health


def says(words: str) -> Callable[[Health], bool]:
    """Whether a reason has these words."""
    return lambda health: any(words in reason for reason in health.reasons)


def is_ok(health: Health) -> bool:
    return health.verdict == "ok"


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as broker:
        broker.create_topic("t")
        yield broker


@pytest.mark.real_if_long
async def test_before_the_start_while_it_runs_and_after_the_stop(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=kafka.bootstrap_servers)
    assert consumer.health() == Health(
        "degraded",
        ("the consumer is not started: await consumer.start() first",),
        None,
        None,
        None,
        0.0,
    )
    await consumer.start()
    health = await until_health(consumer, lambda health: health.last_fetch_s is not None)
    health = await until_health(consumer, is_ok)
    assert health.is_ok
    assert health.last_heartbeat_s is None
    assert health.lag == 0
    await consumer.stop()
    health = consumer.health()
    assert (health.verdict, health.reasons) == (
        "dead",
        ("the consumer is stopped: create another consumer",),
    )


@in_both_protocols
async def test_while_it_starts(broker: Broker, protocol: str) -> None:
    consumer = consumer_of(broker, "t", group_id="g", group_protocol=protocol)
    with broker.on(JOIN[protocol]).hold() as rule:
        starting = asyncio.ensure_future(consumer.start())
        health = await until_health(consumer, says("it is joining group g"))
        assert health.verdict == "degraded"
        rule.release()
        await starting
    await until_health(consumer, is_ok)
    await consumer.stop()


@pytest.mark.parametrize("is_cooperative", [False, True])
async def test_a_join_that_takes_long_says_whom_it_waits_for(
    broker: Broker, is_cooperative: bool
) -> None:
    settings: dict[str, object] = {"session_timeout_ms": 9_000, "rebalance_timeout_ms": 60_000}
    if is_cooperative:
        settings["partition_assignment_strategy"] = [CooperativeStickyPartitionAssignor]
    consumer = consumer_of(broker, "t", group_id="g", group_protocol="classic", **settings)
    with broker.on("JoinGroup").hold() as rule:
        starting = asyncio.ensure_future(consumer.start())
        await until_health(consumer, says("it is joining group g (JOINING)"))
        later = asyncio.get_running_loop().time() + 12.0
        (reason, *_) = inside.health_at(consumer, later).reasons
        assert re.search(r"JOINING, for 1\d\.\d s", reason)
        waits_for = (
            "waits for members that have not joined again",
            "session timeout (9 s for this consumer)",
            "rebalance timeout (60 s for this consumer)",
        )
        assert [words in reason for words in waits_for] == [not is_cooperative] * 3
        rule.release()
        await starting
    await until_health(consumer, is_ok)
    await consumer.stop()


async def test_a_start_that_failed_says_why_and_that_it_may_be_called_again(
    broker: Broker,
) -> None:
    await broker.stop_node(1)
    consumer = consumer_of(broker, "t")
    with pytest.raises(KafkaConnectionError):
        await consumer.start()
    health = consumer.health()
    assert health.verdict == "degraded"
    (reason,) = health.reasons
    assert reason.startswith("start() failed ")
    assert "ago: KafkaConnectionError" in reason
    assert "refused" in reason
    since = re.compile(r"[\d.]+ ms ago")
    assert since.sub("just now", consumer.explain(T0)) == since.sub("just now", reason)
    await broker.start_node(1)
    await consumer.start()
    await until_health(consumer, is_ok)
    await consumer.stop()


@in_both_protocols
async def test_where_no_broker_can_be_reached_one_line_says_why_and_what_comes_of_it(
    protocol: str,
) -> None:
    settings = {"group_id": "g", "group_protocol": protocol, "heartbeat_interval_ms": 20}
    async with Broker() as broker:
        broker.create_topic("t", 6)
        async with consumer_of(broker, "t", **settings) as consumer:
            await until_health(consumer, is_ok)
            await broker.stop_node(1, clean=False)
            health = await until_health(consumer, says("connection refused"))
            (reason,) = health.reasons
            assert reason.startswith("no broker has been reachable for")
            assert reason.count("refused") == 1
            assert "6 partitions are not read" in reason
            assert "group g receives no heartbeats from this member" in reason
            await broker.start_node(1)
            await until_health(consumer, is_ok)


@pytest.mark.real_if_long
async def test_a_task_that_died_is_death_at_once(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with reading(kafka, topic) as consumer:
        await until_health(consumer, is_ok)
        died = inside.let_a_task_die(consumer, "group")
        await asyncio.wait({died})
        await asyncio.sleep(0)
        health = consumer.health()
        assert health.verdict == "dead"
        assert "task group failed with ZeroDivisionError('a bug')" in health.reasons[0]


@pytest.mark.real_if_long
async def test_a_task_that_is_restarted_degrades_until_it_has_recovered(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic()
    async with reading(kafka, topic) as consumer:
        await until_health(consumer, is_ok)
        attempts = 0

        async def fail_once() -> None:
            nonlocal attempts
            attempts += 1
            if attempts == 1:
                raise KafkaConnectionError("it passes")

        inside.supervise(consumer, "positions", fail_once, name="flaky", first_delay_s=0.05)
        health = await until_health(
            consumer, says("the background task 'flaky' (positions) failed and is retried")
        )
        assert health.verdict == "degraded"
        assert "KafkaConnectionError: it passes" in health.reasons[0]
        await until_health(consumer, is_ok)


async def test_no_broker_is_told_from_no_data() -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        consumer = consumer_of(broker, "t")
        await consumer.start()
        assert (await until_health(consumer, is_ok)).reasons == ()
        assert await consumer.poll(timeout_ms=10) == {}
    health = await until_health(consumer, says("no broker has been reachable for"))
    assert await consumer.poll(timeout_ms=10) == {}
    assert health.verdict == "degraded"
    assert "Until a broker can be reached, 1 partitions are not read" in health.reasons[0]
    await consumer.stop()


async def test_one_broker_of_two_is_named() -> None:
    async with Broker(nodes=2) as broker:
        broker.create_topic("t")
        async with consumer_of(broker, "t") as consumer:
            await until_health(consumer, lambda health: health.last_fetch_s is not None)
            leader = broker.leader_of(T0)
            # Metadata says nothing new, as for some seconds after a real broker was killed.
            with broker.on("Metadata").hold() as rule:
                await broker.stop_node(leader, clean=False)
                health = await until_health(consumer, says(f"node {leader} at 127.0.0.1:"))
                assert health.verdict == "degraded"
                assert not says("no broker can be reached")(health)
                rule.release()
            await until_health(consumer, is_ok)


async def test_a_broker_with_the_node_id_0_is_named_and_measured() -> None:
    async with ScriptedBroker(node_id=1) as broker:
        gone = MetadataResponseBroker(node_id=0, host="127.0.0.1", port=free_port())
        broker.brokers = [broker.as_broker, gone]
        led_by_it = MetadataResponsePartition(
            partition_index=0, leader_id=0, leader_epoch=0, replica_nodes=[0], isr_nodes=[0]
        )
        broker.topics["t"] = MetadataResponseTopic(name="t", partitions=[led_by_it])
        async with AIOKafkaConsumer(bootstrap_servers=broker.address) as consumer:
            consumer.assign([T0])
            consumer.seek(T0, 0)
            words = f"node 0 at 127.0.0.1:{gone.port} has not been reachable for "
            await until_health(consumer, says(words))
            nodes = cast("list[dict[str, object]]", consumer.metrics()["nodes"])
            assert [(row["node"], row["is_reachable"]) for row in nodes] == [(0, False), (1, True)]


@in_both_protocols
async def test_a_coordinator_that_is_away(broker: Broker, protocol: str) -> None:
    settings = {"group_id": "g", "group_protocol": protocol, "heartbeat_interval_ms": 20}
    async with consumer_of(broker, "t", **settings) as consumer:
        health = await until_health(consumer, is_ok)
        assert health.last_heartbeat_s is not None
        with (
            broker.on(HEARTBEAT[protocol]).fail(CoordinatorNotAvailableError, times=None),
            broker.on("FindCoordinator").fail(CoordinatorNotAvailableError, times=None),
        ):
            words = "the coordinator of group g is not known and is being looked up"
            assert (await until_health(consumer, says(words))).verdict == "degraded"
        await until_health(consumer, is_ok)


async def test_a_lost_coordinator_is_named() -> None:
    async with Broker(nodes=2) as broker:
        broker.create_topic("t", 2)
        settings = {"group_protocol": "classic", "heartbeat_interval_ms": 9_000}
        async with consumer_of(broker, "t", group_id="g", **settings) as consumer:
            await until_health(consumer, is_ok)
            assert consumer._coordinator is not None
            node_id = consumer._coordinator.coordinator_id
            assert node_id is not None
            metadata, finding = broker.on("Metadata"), broker.on("FindCoordinator")
            with metadata.hold(), finding.hold():  # or another node would be the coordinator
                await broker.stop_node(node_id, clean=False)
                # It cannot be reached, or is looked up already: as its end is noticed.
                await until_health(consumer, says("the coordinator of group g"))


@pytest.mark.parametrize("is_cooperative", [False, True])
async def test_a_rebalance_that_goes_on_is_said(broker: Broker, is_cooperative: bool) -> None:
    settings: dict[str, object] = {"group_id": "g", "group_protocol": "classic"}
    if is_cooperative:
        settings["partition_assignment_strategy"] = [CooperativeStickyPartitionAssignor]
    async with consumer_of(broker, "t", **settings) as consumer:
        await until_health(consumer, is_ok)
        broker.create_topic("u")
        with broker.on("JoinGroup").hold() as rule:
            consumer.subscribe(["t", "u"])
            await rule.reached()
            stops = (
                "records of reassigned partitions are withheld"
                if is_cooperative
                else "no records are returned"
            )
            assert says(f"group g is rebalancing (JOINING): {stops} until the rebalance ends")(
                consumer.health()
            )
            assert consumer.explain(TopicPartition("u", 0)) == "group g is rebalancing (JOINING)"
            rule.release()
        await until_health(consumer, is_ok)


@in_both_protocols
async def test_heartbeats_that_nobody_answers(broker: Broker, protocol: str) -> None:
    async with consumer_of(
        broker,
        "t",
        group_id="g",
        group_protocol=protocol,
        heartbeat_interval_ms=50,
        session_timeout_ms=6_000,
        request_timeout_ms=60_000,
    ) as consumer:
        await until_health(consumer, is_ok)
        late = inside.health_at(consumer, inside.last_contact_at(consumer) + 7.0)
        assert late.verdict == "degraded"
        assert late.last_heartbeat_s == pytest.approx(7.0)
        assert says("no heartbeat was answered for 7.0 s, longer than the session timeout of")(late)


@in_both_protocols
async def test_a_member_that_left_for_want_of_gets_comes_back(
    kafka: KafkaHandle, protocol: str
) -> None:
    topic = await kafka.create_topic()
    group = unique("group")
    settings = {"group_protocol": protocol, "max_poll_interval_ms": 200}
    async with reading(kafka, topic, group_id=group, **settings) as consumer:  # type: ignore[arg-type]
        health = await until_health(consumer, says(f"the consumer left group {group}"))
        assert health.verdict == "degraded"
        getting = asyncio.ensure_future(consumer.getone())
        await until_health(consumer, is_ok)
        getting.cancel()


@pytest.mark.real_if_long
@in_both_protocols
async def test_no_partitions_are_ok_and_said(kafka: KafkaHandle, protocol: str) -> None:
    topic = await kafka.create_topic()
    group = unique("group")
    settings = {"group_id": group, "group_protocol": protocol, "heartbeat_interval_ms": 100}
    async with (
        reading(kafka, topic, **settings) as first,  # type: ignore[arg-type]
        reading(kafka, topic, **settings) as second,  # type: ignore[arg-type]
    ):
        await until(lambda: len(first.assignment()) + len(second.assignment()) == 1)
        idle = second if first.assignment() else first
        health = await until_health(idle, is_ok)
        assert health.reasons == (
            f"no partition is assigned, because the other members of group {group} own all "
            "partitions"
            + (", or have not yet released those of this member" if protocol == "consumer" else ""),
        )


async def test_a_joiner_that_waits_for_others_is_not_told_that_there_is_nothing_for_it(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic(partitions=2)
    for number in range(2):
        await kafka.produce(topic, number, [(None, b"v")])
    group = unique("group")
    async with reading(kafka, topic, group_id=group, group_protocol="consumer") as first:
        handed_out: set[TopicPartition] = set()
        while len(handed_out) < 2:
            handed_out |= (await first.getmany(timeout_ms=5000)).keys()
        async with reading(kafka, topic, group_id=group, group_protocol="consumer") as second:
            assert not second.assignment()
            (said,) = (await until_health(second, is_ok)).reasons
            assert said.endswith(", or have not yet released those of this member")
            await first.getmany(timeout_ms=0)
            await until(second.assignment)


@pytest.mark.virtual_time
@pytest.mark.parametrize("group_id", [None, "g"])
async def test_a_subscribed_topic_that_is_gone_is_said_until_it_is_back(
    broker: Broker, group_id: str | None
) -> None:
    async with consumer_of(broker, "t", group_id=group_id, metadata_max_age_ms=50) as consumer:
        await until_health(consumer, lambda health: is_ok(health) and consumer.assignment())
        broker.delete_topic("t")
        health = await until_health(consumer, lambda _: not consumer.assignment())
        health = await until_health(consumer, says("topic 't' is subscribed but was deleted"))
        assert health.verdict == "degraded"
        assert not says("own all partitions")(health)
        broker.create_topic("t")
        await until_health(consumer, lambda health: is_ok(health) and consumer.assignment())


@pytest.mark.virtual_time
async def test_only_some_of_many_deleted_topics_are_named(broker: Broker) -> None:
    topics = [f"gone-{number}" for number in range(MAX_NAMED + 2)]
    for topic in topics:
        broker.create_topic(topic)
    async with consumer_of(broker, "t", *topics, metadata_max_age_ms=50) as consumer:
        await until_health(consumer, is_ok)
        for topic in topics[:MAX_NAMED]:
            broker.delete_topic(topic)
        named = tuple(
            f"topic {topic!r} is subscribed but was deleted: it has no records unless it is "
            "recreated"
            for topic in topics[:MAX_NAMED]
        )
        await until_health(consumer, lambda health: health.reasons == named)
        for topic in topics[MAX_NAMED:]:
            broker.delete_topic(topic)
        both = (*named, "and 2 more subscribed topics were deleted")
        await until_health(consumer, lambda health: health.reasons == both)


async def test_a_pattern_that_no_topic_matches_is_said(broker: Broker) -> None:
    async with consumer_of(broker) as consumer:
        consumer.subscribe(pattern="none")
        health = await until_health(consumer, is_ok)
        assert health.reasons == (
            "no partition is assigned, because the subscribed topics have no partitions",
        )


@pytest.mark.real_if_long
async def test_nothing_subscribed_and_paused_partitions_are_said(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    async with reading(kafka) as consumer:
        health = await until_health(consumer, is_ok)
        assert "no topic is subscribed" in health.reasons[0]
        consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
        consumer.pause(TopicPartition(topic, 0))
        health = await until_health(consumer, lambda h: is_ok(h) and h.last_fetch_s is not None)
        assert health.reasons == ("1 of 2 partitions are paused",)


async def test_a_read_that_waits_for_no_topic_is_no_good_sign(broker: Broker) -> None:
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap_servers)
    async with consumer:
        await until_health(consumer, is_ok)
        reading = asyncio.ensure_future(consumer.getone())
        health = await until_health(consumer, lambda health: not is_ok(health))
        assert health.reasons == (
            "reads wait forever: no topic is subscribed and no partition is assigned: "
            "call subscribe() or assign()",
        )
        consumer.assign([TopicPartition("t", 0)])
        await until_health(consumer, is_ok)
        reading.cancel()


@pytest.mark.real_if_long
async def test_lag_is_how_much_there_is_from_the_first_unfinished_records_on(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic(partitions=2)
    await kafka.produce(topic, 0, rows(0, 5))
    await kafka.produce(topic, 1, rows(0, 3))
    async with reading(kafka, topic) as consumer:
        await until_health(consumer, lambda health: health.lag == 8)
        await offsets_read(consumer, 8)
        assert await consumer.poll(timeout_ms=1) == {}
        assert consumer.health().lag == 0


async def test_only_some_of_many_failing_partitions_are_named(broker: Broker) -> None:
    broker.create_topic("many", MAX_NAMED + 3)
    with broker.on("Fetch").fail(KafkaStorageError, times=None):
        async with consumer_of(broker, "many") as consumer:
            health = await until_health(consumer, says("3 more partitions have problems"))
            assert len(health.reasons) == MAX_NAMED + 1
            assert says(f"Number of partitions by problem: {MAX_NAMED + 3} backing_off")(health)
            assert health.verdict == "degraded"


async def test_a_partition_in_trouble_behind_others_is_named(broker: Broker) -> None:
    broker.create_topic("two", 2)
    first, second = (TopicPartition("two", number) for number in range(2))
    async with consumer_of(broker) as consumer:
        with broker.on("ListOffsets").hold() as rule:
            consumer.assign([first, second])
            await rule.reached()
            inside.put_error(consumer, second, KafkaStorageError("broken"))
            health = consumer.health()
            (reason,) = health.reasons
            assert reason.startswith("two/1: the next read raises ")
            rule.release()
        consumer.seek(second, 0)
        await consumer.position(first, second)
        await until_health(consumer, lambda health: health.last_fetch_s is not None)
        inside.put_error(consumer, second, KafkaStorageError("broken"))
        assert consumer.health().reasons == (reason,)


async def test_a_partition_in_a_backoff_beside_a_fetch_in_flight_is_named(broker: Broker) -> None:
    broker.create_topic("two", 2)
    first, second = (TopicPartition("two", number) for number in range(2))
    async with consumer_of(broker, "two") as consumer:
        await until(lambda: all(inside.is_in_flight(consumer, tp) for tp in (first, second)))
        inside.cursor(consumer, second).failed(
            asyncio.get_running_loop().time() + 60, "KafkaStorageError"
        )
        (reason,) = consumer.health().reasons
        assert reason.startswith(
            "two/1: fetching the partition from node 1 failed and is retried in "
        )


async def test_an_error_that_waits_is_said(broker: Broker) -> None:
    async with consumer_of(broker, "t") as consumer:
        await until_health(consumer, is_ok)
        inside.meet_error(consumer, KafkaStorageError("something"))
        health = consumer.health()
        assert health.verdict == "degraded"
        assert len(health.reasons) == 1
        assert says("the next read raises")(health)
        with pytest.raises(KafkaStorageError):
            await consumer.getone()
        await until_health(consumer, is_ok)


async def test_a_commit_that_failed_degrades_until_one_succeeds(broker: Broker) -> None:
    broker.produce("t", "v")
    async with consumer_of(broker, "t", group_id="g", enable_auto_commit=False) as consumer:
        await consumer.getone()
        await until_health(consumer, is_ok)
        broker.on("OffsetCommit").fail(InvalidCommitOffsetSizeError)
        events = consumer.events()
        with pytest.raises(InvalidCommitOffsetSizeError):
            await consumer.commit()
        event = await next_of(events, CommitFailed)
        assert says("the latest commit failed ")(consumer.health())
        late = inside.health_at(consumer, event.at_s + FAILED_COMMIT_S)
        assert not says("the latest commit failed ")(late)
        await consumer.commit()
        assert consumer.health().is_ok


async def test_a_loop_that_was_blocked_for_long_is_said_for_a_while(broker: Broker) -> None:
    async with consumer_of(broker, "t") as consumer:
        await until_health(consumer, is_ok)
        inside.note_block(consumer, 2.0)
        assert says("the event loop was blocked for 2.0 s")(consumer.health())
        inside.note_block(consumer, 2.0, ago_s=RECENT_S + 1)
        assert consumer.health().is_ok
        inside.note_block(consumer, LONG_BLOCK_S)
        assert consumer.health().is_ok


# What it was stopped for


def number(value: bytes | None) -> int:
    return int(value or b"")


async def read_and_stop(
    consumer: AIOKafkaConsumer[object, V], way: str, *, handle: Callable[[V], object] = id
) -> None:
    """Read for ever, in one of the ways in which programs do."""
    if way == "async with":
        async with consumer:
            async for record in consumer:
                handle(record.value)
    else:
        await consumer.start()
        try:
            while True:
                await consumer.getmany(timeout_ms=1_000)
        finally:
            await consumer.stop()


@pytest.mark.real_if_long
@pytest.mark.parametrize("way", ["async with", "finally"])
async def test_stopped_after_a_bad_record_it_names_the_error_and_the_place(
    kafka: KafkaHandle, way: str
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, [(None, b"1"), (None, b"2"), (None, b"poison")])
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=kafka.bootstrap_servers,
        auto_offset_reset="earliest",
        value_deserializer=number,
    )
    with pytest.raises(DeserializationError):
        await read_and_stop(consumer, way)
    health = consumer.health()
    assert health.verdict == "dead"
    (reason,) = health.reasons
    assert reason.startswith("the consumer is stopped: create another consumer. ")
    assert f"DeserializationError: the value of record {topic}/0 at offset 2" in reason
    assert "invalid literal for int() with base 10: b'poison'" in reason
    assert "after records of" not in reason
    assert consumer.explain(TopicPartition(topic, 0)) == reason


@pytest.mark.real_if_long
async def test_stopped_by_its_handler_it_names_what_was_raised_and_the_latest_record(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, [(None, b"1"), (None, b"2"), (None, b"poison"), (None, b"4")])
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=kafka.bootstrap_servers, auto_offset_reset="earliest"
    )
    with pytest.raises(ValueError, match="invalid literal"):
        await read_and_stop(consumer, "async with", handle=number)
    (reason,) = consumer.health().reasons
    assert '`async with` block ended with ValueError("invalid literal for int()' in reason
    assert reason.endswith(f"after records of {topic}/0 up to offset 2 were returned")


async def test_stopped_by_an_error_before_any_record_it_names_that(broker: Broker) -> None:
    consumer = consumer_of(broker, "t")
    with pytest.raises(ValueError, match="early"):
        async with consumer:
            raise ValueError("early")
    assert consumer.health().reasons == (
        "the consumer is stopped: create another consumer. The consumer's `async with` block "
        "ended with ValueError('early')",
    )


async def test_stopped_after_a_task_died_it_still_names_what_of(broker: Broker) -> None:
    consumer = consumer_of(broker, "t")
    await consumer.start()
    died = inside.let_a_task_die(consumer, "group")
    await asyncio.wait({died})
    await consumer.stop()
    (reason,) = consumer.health().reasons
    assert reason.endswith("The background task group had failed with ZeroDivisionError('a bug')")


async def test_stopped_in_order_it_tells_of_no_error_that_was_got_over(broker: Broker) -> None:
    broker.produce_all("t", [NewRecord("poison"), NewRecord("2")])
    async with consumer_of(broker, "t", value_deserializer=number) as consumer:
        with pytest.raises(DeserializationError):
            await consumer.getone()
        consumer.seek(T0, 1)
        assert (await consumer.getone()).offset == 1
    assert consumer.health().reasons == ("the consumer is stopped: create another consumer",)


async def test_cancelled_it_tells_of_no_error(broker: Broker) -> None:
    consumer = consumer_of(broker, "t")
    reader = asyncio.create_task(read_and_stop(consumer, "async with"))
    await until_health(consumer, is_ok)
    reader.cancel()
    await asyncio.wait([reader])
    assert consumer.health().reasons == ("the consumer is stopped: create another consumer",)
