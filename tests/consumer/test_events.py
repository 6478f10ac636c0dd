"""The event stream: bounded buffers, subscribers that come and go, one log line a change."""

from __future__ import annotations

import asyncio
import gc
import json
import logging

import pytest

from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.event_stream import LOG_INTERVAL_S, Events, EventSubscription
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.events import (
    EVENT_CLASSES,
    Assigned,
    ConsumerEvent,
    EventsDropped,
    RecordSkipped,
    Throttled,
    TopicDeleted,
)
from aiokafka_lite.structs import TopicPartition

A = TopicPartition("t", 0)


def buffered(subscription: EventSubscription) -> list[ConsumerEvent]:
    """What a subscription gives without waiting."""
    found = []
    while True:
        step = subscription.__anext__()
        try:
            step.send(None)
        except StopIteration as done:
            found.append(done.value)
        except StopAsyncIteration:
            return found
        else:
            step.close()
            return found


async def test_every_subscriber_gets_every_event_in_order() -> None:
    events = Events()
    first, second = events.subscribe(), events.subscribe()
    published = [TopicDeleted("a"), TopicDeleted("b"), Assigned(frozenset({A}), 3)]
    for event in published:
        events.publish(event)
    assert buffered(first) == buffered(second) == published
    assert events.counts == {"topic_deleted": 2, "assigned": 1}


async def test_a_slow_subscriber_loses_the_oldest_and_is_told_how_many() -> None:
    events = Events()
    slow, quick = events.subscribe(max_buffered=2), events.subscribe()
    for name in "abcde":
        events.publish(TopicDeleted(name))
    assert buffered(slow) == [EventsDropped(3), TopicDeleted("d"), TopicDeleted("e")]
    assert len(buffered(quick)) == 5
    events.publish(TopicDeleted("f"))
    assert buffered(slow) == [TopicDeleted("f")]


async def test_a_wait_that_is_cancelled_loses_no_event() -> None:
    events = Events()
    subscription = events.subscribe()
    waiting = asyncio.ensure_future(subscription.__anext__())
    await asyncio.sleep(0)
    events.publish(TopicDeleted("a"))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert buffered(subscription) == [TopicDeleted("a")]


async def test_a_subscriber_whose_task_was_cancelled_leaves_nothing() -> None:
    events = Events()

    async def follow() -> None:
        async for _ in events.subscribe():
            pass

    task = asyncio.ensure_future(follow())
    await asyncio.sleep(0)
    assert events.subscriber_count == 1
    task.cancel()
    await asyncio.wait({task})
    del task
    gc.collect()
    assert events.subscriber_count == 0


async def test_a_closed_subscription_ends_the_iteration_that_waits() -> None:
    events = Events()
    with events.subscribe() as subscription:
        waiting = asyncio.ensure_future(subscription.__anext__())
        await asyncio.sleep(0)
    with pytest.raises(StopAsyncIteration):
        await waiting
    events.publish(TopicDeleted("a"))
    assert events.subscriber_count == 0
    assert buffered(subscription) == []


async def test_events_of_a_consumer_come_before_its_start_and_end_with_its_stop() -> None:
    consumer = AIOKafkaConsumer(bootstrap_servers="127.0.0.1:1")
    early = consumer.events()
    consumer._state.events.publish(TopicDeleted("a"))
    await consumer.stop()
    assert [event async for event in early] == [TopicDeleted("a")]
    assert [event async for event in consumer.events()] == []


async def test_a_buffer_has_room_for_one_at_least() -> None:
    with pytest.raises(ValueError, match="max_buffered"):
        Events().subscribe(0)


async def test_of_events_about_the_same_one_is_logged_in_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events = Events()
    with caplog.at_level(logging.INFO, logger="aiokafka_lite"):
        for at_s in (100.0, 101.0, 102.0):
            events.publish(Throttled(1, 0.5, at_s=at_s))
        events.publish(Throttled(2, 0.5, at_s=102.0))
        events.publish(Throttled(1, 0.5, at_s=100.0 + LOG_INTERVAL_S))
    assert [record.getMessage() for record in caplog.records] == [
        "node 1 throttles this client for 0.50 s",
        "node 2 throttles this client for 0.50 s",
        "node 1 throttles this client for 0.50 s (2 like it before)",
    ]


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
    }
    with pytest.raises(AttributeError):
        event.offset = 8  # type: ignore[misc]
    assert not hasattr(event, "__dict__")


def test_every_event_has_a_name_of_its_own() -> None:
    names = [event_class.name for event_class in EVENT_CLASSES]
    assert len(set(names)) == len(names)
    assert all(names)
    # By name: a class with slots is made twice.
    subclasses = {subclass.__name__ for subclass in ConsumerEvent.__subclasses__()}
    assert subclasses == {event_class.__name__ for event_class in EVENT_CLASSES}
