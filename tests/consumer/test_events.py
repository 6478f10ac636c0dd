"""The event stream: bounded buffers, subscribers that come and go, one log line a change."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import weakref

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.events import LOG_INTERVAL_S, MAX_LOG_SUBJECTS, Events, LogLimit
from aiokafka_lite.errors import CommitFailedError, KafkaError, UnknownMemberIdError
from aiokafka_lite.events import (
    EVENT_CLASSES,
    Assigned,
    BrokerDown,
    BrokerUp,
    CommitFailed,
    ConsumerEvent,
    EventsDropped,
    Lost,
    OffsetRange,
    OffsetReset,
    RecordSkipped,
    Revoked,
    TaskFailed,
    Throttled,
    TopicDeleted,
)
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.support import inside
from tests.support.cluster import KafkaHandle, unique
from tests.support.events import events_so_far, next_of
from tests.support.protocols import HEARTBEAT, in_both_protocols
from tests.support.reading import offsets_read, reading
from tests.support.rows import rows

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


async def test_every_subscriber_gets_every_event_in_order() -> None:
    events = Events()
    first, second = events.subscribe(), events.subscribe()
    published = [TopicDeleted("a"), TopicDeleted("b"), Assigned(frozenset({A}), 3)]
    for event in published:
        events.publish(event)
    assert events_so_far(first) == events_so_far(second) == published
    assert events.counts == {"topic_deleted": 2, "assigned": 1}


async def test_a_slow_subscriber_loses_the_oldest_and_is_told_how_many() -> None:
    events = Events()
    slow, quick = events.subscribe(max_buffered=2), events.subscribe()
    for name in "abcde":
        events.publish(TopicDeleted(name))
    assert events_so_far(slow) == [EventsDropped(3), TopicDeleted("d"), TopicDeleted("e")]
    assert len(events_so_far(quick)) == 5
    events.publish(TopicDeleted("f"))
    assert events_so_far(slow) == [TopicDeleted("f")]


async def test_a_wait_that_is_cancelled_loses_no_event() -> None:
    events = Events()
    subscription = events.subscribe()
    waiting = asyncio.ensure_future(subscription.__anext__())
    await asyncio.sleep(0)
    events.publish(TopicDeleted("a"))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert events_so_far(subscription) == [TopicDeleted("a")]


async def test_a_subscriber_whose_task_was_cancelled_leaves_nothing() -> None:
    events = Events()
    subscribed = []

    async def follow() -> None:
        subscription = events.subscribe()
        subscribed.append(weakref.ref(subscription))
        async for _ in subscription:
            pass

    task = asyncio.ensure_future(follow())
    await asyncio.sleep(0)
    assert subscribed[0]() is not None
    task.cancel()
    await asyncio.wait({task})
    del task
    gc.collect()
    assert subscribed[0]() is None


async def test_a_closed_subscription_ends_the_iteration_that_waits() -> None:
    events = Events()
    with events.subscribe() as subscription:
        waiting = asyncio.ensure_future(subscription.__anext__())
        await asyncio.sleep(0)
    with pytest.raises(StopAsyncIteration):
        await waiting
    events.publish(TopicDeleted("a"))
    assert events_so_far(subscription) == []


async def test_events_of_a_consumer_come_before_its_start_and_end_with_its_stop() -> None:
    consumer = AIOKafkaConsumer(bootstrap_servers="127.0.0.1:1")
    early = consumer.events()
    inside.publish(consumer, TopicDeleted("a"))
    await consumer.stop()
    assert [event async for event in early] == [TopicDeleted("a")]
    assert [event async for event in consumer.events()] == []


async def test_a_buffer_has_room_for_one_at_least() -> None:
    with pytest.raises(ValueError, match="max_buffered"):
        Events().subscribe(0)
    events = Events()
    smallest = events.subscribe(1)
    events.publish(TopicDeleted("a"))
    assert events_so_far(smallest) == [TopicDeleted("a")]


async def test_a_closed_subscription_drops_unread_events() -> None:
    events = Events()
    subscription = events.subscribe(1)
    for name in "ab":
        events.publish(TopicDeleted(name))
    subscription.close()
    subscription.close()
    assert events_so_far(subscription) == []


async def test_of_events_about_the_same_one_is_logged_in_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events = Events()
    with caplog.at_level(logging.INFO, logger="aiokafka_lite"):
        for at_s in (100.0, 101.0, 102.0):
            events.publish(Throttled(1, 0.5, at_s=at_s))
        events.publish(Throttled(2, 0.5, at_s=102.0))
        for intervals in (1, 2):
            events.publish(Throttled(1, 0.5, at_s=100.0 + intervals * LOG_INTERVAL_S))
    assert [record.getMessage() for record in caplog.records] == [
        "node 1 throttles this client for 0.50 s, because the client exceeded a quota",
        "node 2 throttles this client for 0.50 s, because the client exceeded a quota",
        "node 1 throttles this client for 0.50 s, because the client exceeded a quota "
        "(2 like it before)",
        "node 1 throttles this client for 0.50 s, because the client exceeded a quota",
    ]


def test_the_log_limit_forgets_its_subjects_when_there_are_too_many() -> None:
    limit = LogLimit()
    for subject in range(MAX_LOG_SUBJECTS):
        assert limit.let_in(subject, 100.0) == ""
    assert limit.let_in(0, 101.0) is None
    assert limit.let_in("another", 101.0) == ""
    assert limit.let_in(0, 102.0) == ""


async def test_an_event_is_a_value_with_the_time_it_was_made() -> None:
    now = asyncio.get_running_loop().time()
    event = RecordSkipped(A, 7, KafkaError("broken"))
    assert abs(event.at_s - now) < 10
    assert json.loads(json.dumps(event.as_dict())) == {
        "name": "record_skipped",
        "at_s": event.at_s,
        "tp": ["t", 0],
        "offset": 7,
        "error": "KafkaError: broken",
        "next_offset": None,
    }
    failed = CommitFailed({A: OffsetAndMetadata(5, "")}, ValueError("odd"), is_auto=True)
    assert failed.as_dict() == {
        "name": "commit_failed",
        "at_s": failed.at_s,
        "offsets": [["t", 0, 5]],
        "error": "ValueError: odd",
        "is_auto": True,
    }
    reset = OffsetReset(A, 3, 6, "out of range", OffsetRange(3, 6)).as_dict()
    assert (reset["lost"], reset["skipped"]) == ([3, 6], None)
    assert OffsetRange(3, 6).offset_count == 3
    assert Assigned(frozenset({B, A}), 3).as_dict()["partitions"] == [["t", 0], ["t", 1]]
    with pytest.raises(AttributeError):
        event.offset = 8  # type: ignore[misc]
    assert not hasattr(event, "__dict__")


@pytest.mark.parametrize(
    ("next_offset", "text"),
    [
        (None, "record skipped: t/0 at offset 7: KafkaError: broken"),
        (8, "record skipped: t/0 at offset 7: KafkaError: broken"),
        (10, "batch skipped: t/0 at offsets 7 to 9: KafkaError: broken"),
    ],
)
async def test_offsets_of_skipped_records_are_logged(next_offset: int | None, text: str) -> None:
    assert str(RecordSkipped(A, 7, KafkaError("broken"), next_offset)) == text


def test_every_event_has_a_name_of_its_own() -> None:
    names = [event_class.name for event_class in EVENT_CLASSES]
    assert len(set(names)) == len(names)
    assert all(names)
    # By name: a class with slots is made twice.
    subclasses = {subclass.__name__ for subclass in ConsumerEvent.__subclasses__()}
    assert subclasses == {event_class.__name__ for event_class in EVENT_CLASSES}


# --- What is published, and when ----------------------------------------------------------------


@pytest.mark.real_if_long
async def test_without_a_group_the_assignment_is_told(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=kafka.bootstrap_servers)
    events = consumer.events()
    await consumer.start()
    every = frozenset({TopicPartition(topic, 0), TopicPartition(topic, 1)})
    assert await next_of(events, Assigned) == Assigned(every)
    await consumer.stop()


@pytest.mark.real_if_long
async def test_a_rebalance_is_told_by_what_is_revoked_and_assigned(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    both = frozenset({TopicPartition(topic, 0), TopicPartition(topic, 1)})
    settings = {"group_id": unique("group"), "group_protocol": "classic"}
    async with reading(kafka, topic, heartbeat_interval_ms=100, **settings) as first:  # type: ignore[arg-type]
        events = first.events()
        async with reading(kafka, topic, **settings):  # type: ignore[arg-type]
            revoked = await next_of(events, Revoked)
            assert revoked == Revoked(both, "the group rebalances")
            assigned = await next_of(events, Assigned)
            assert isinstance(assigned, Assigned)
            assert assigned.partitions < both
            assert len(assigned.partitions) == 1


async def test_by_kip_848_what_is_revoked_is_all_that_is_told_of_a_rebalance(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic(partitions=2)
    settings = {"group_id": unique("group"), "group_protocol": "consumer"}
    async with reading(kafka, topic, **settings) as first:  # type: ignore[arg-type]
        events = first.events()
        async with reading(kafka, topic, **settings) as second:  # type: ignore[arg-type]
            revoked = await next_of(events, Revoked)
            assert revoked == Revoked(frozenset(second.assignment()), "the group rebalances")
            assert len(revoked.partitions) == 1
            assert not [each for each in events_so_far(events) if isinstance(each, Assigned)]


@in_both_protocols
async def test_a_member_that_was_dropped_loses_its_partitions(protocol: str) -> None:
    settings = {"group_id": "g", "group_protocol": protocol, "heartbeat_interval_ms": 50}
    async with Broker() as broker:
        broker.create_topic("t")
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        async with reading(kafka, "t", **settings) as consumer:  # type: ignore[arg-type]
            events = consumer.events()
            broker.on(HEARTBEAT[protocol]).fail(UnknownMemberIdError)
            lost = await next_of(events, Lost)
            reason = "the coordinator no longer knows the member"
            if protocol == "consumer":
                reason += (
                    " ([Error 25] UnknownMemberIdError: ConsumerGroupHeartbeatRequest of group g "
                    "to node 1: The coordinator does not know this member id.)"
                )
            assert lost == Lost(frozenset({A}), reason)


@pytest.mark.real_if_long
async def test_a_reset_for_want_of_a_committed_offset_is_told(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 5))
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=kafka.bootstrap_servers)
    events = consumer.events()
    async with consumer:
        tp = TopicPartition(topic, 0)
        told = await next_of(events, OffsetReset)
        assert told == OffsetReset(tp, None, 5, "no committed offset")


@pytest.mark.parametrize("policy", ["earliest", "latest"])
async def test_a_reset_tells_the_exact_range_that_is_lost(kafka: KafkaHandle, policy: str) -> None:
    topic = await kafka.create_topic()
    tp = TopicPartition(topic, 0)
    for first in range(0, 10, 2):
        await kafka.produce(topic, 0, rows(first, 2))
    await kafka.delete_records(topic, 0, 6)
    async with reading(kafka, topic, auto_offset_reset=policy) as consumer:
        events = consumer.events()
        consumer.seek(tp, 3)
        told = await next_of(events, OffsetReset)
        if policy == "earliest":
            assert told == OffsetReset(tp, 3, 6, "out of range", OffsetRange(3, 6))
            assert await offsets_read(consumer, 4) == {0: [6, 7, 8, 9]}
        else:
            gone_and_skipped, skipped = OffsetRange(3, 10), OffsetRange(6, 10)
            assert told == OffsetReset(tp, 3, 10, "out of range", gone_and_skipped, skipped)


@pytest.mark.real_if_long
async def test_a_position_beyond_the_end_is_reset_without_a_loss(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 5))
    async with reading(kafka, topic) as consumer:
        events = consumer.events()
        tp = TopicPartition(topic, 0)
        consumer.seek(tp, 99)
        assert await next_of(events, OffsetReset) == OffsetReset(tp, 99, 0, "out of range")


@pytest.mark.real_if_long
async def test_a_move_by_the_application_is_no_reset(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 5))
    async with reading(kafka, topic) as consumer:
        await offsets_read(consumer, 5)
        events = consumer.events()
        assert await consumer.seek_to_beginning()
        await offsets_read(consumer, 5)
        assert not [event for event in events_so_far(events) if isinstance(event, OffsetReset)]


async def test_a_commit_that_fails_is_told(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 5))
    tp = TopicPartition(topic, 0)
    settings = {"group_protocol": "classic", "enable_auto_commit": False}
    async with reading(kafka, topic, group_id=unique("g"), **settings) as consumer:  # type: ignore[arg-type]
        await offsets_read(consumer, 5)
        events = consumer.events()
        inside.lose_membership(consumer)
        with pytest.raises(CommitFailedError):
            await consumer.commit()
        told = await next_of(events, CommitFailed)
        assert isinstance(told, CommitFailed)
        assert told.offsets[tp].offset == 5
        assert (told.is_auto, type(told.error)) == (False, CommitFailedError)


async def test_a_throttle_is_told_once_until_it_ends() -> None:
    async with Broker() as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        await kafka.create_topic("t")
        async with reading(kafka, "t", fetch_max_wait_ms=10) as consumer:
            events = consumer.events()
            rule = broker.on("Fetch").throttle(0.02, times=3)
            while not rule.is_over:
                await consumer.poll(timeout_ms=20)
            await kafka.produce("t", 0, rows(0, 1))
            await offsets_read(consumer, 1)
        told = [event for event in events_so_far(events) if isinstance(event, Throttled)]
        assert told == [Throttled(broker.node.id, 0.02)]


async def test_a_broker_that_goes_and_comes_back_is_told_once_each() -> None:
    async with Broker(nodes=2) as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        await kafka.create_topic("t")
        leader = broker.leader_of(A)
        async with reading(kafka, "t", retry_backoff_ms=10) as consumer:
            events = consumer.events()
            await broker.stop_node(leader, clean=False)
            down = await next_of(events, BrokerDown)
            assert isinstance(down, BrokerDown)
            assert down.node_id == leader
            assert down.address.startswith("127.0.0.1:")
            await broker.start_node(leader)
            broker.move_leader(A, leader)
            up = await next_of(events, BrokerUp)
            assert isinstance(up, BrokerUp)
            assert (up.node_id, up.address) == (leader, down.address)


@pytest.mark.real_if_long
async def test_a_task_that_died_is_told(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with reading(kafka, topic) as consumer:
        events = consumer.events()
        inside.let_a_task_die(consumer, "positions")
        told = await next_of(events, TaskFailed)
        assert isinstance(told, TaskFailed)
        assert told.task == "positions"
        assert isinstance(told.error, ZeroDivisionError)
