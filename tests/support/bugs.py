"""Places in a consumer where its tasks call something, to plant bugs there."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import pytest

from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.broker import Broker, NewRecord
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.connection import Connection
from aiokafka_lite.client.low_water import LowWaterMark
from aiokafka_lite.client.versions import FirstVersions
from aiokafka_lite.client.wire import Exchange
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.commits.commits import Commits
from aiokafka_lite.consumer.fetching.answer import Answers
from aiokafka_lite.consumer.fetching.source import Source
from aiokafka_lite.consumer.membership.classic.heartbeat import Heartbeat
from aiokafka_lite.consumer.membership.classic.membership import ClassicMembership
from aiokafka_lite.consumer.membership.classic.rebalance import Rebalance
from aiokafka_lite.consumer.membership.handover import ListenerCalls
from aiokafka_lite.consumer.membership.kip848.heartbeat import Heartbeat as EpochHeartbeat
from aiokafka_lite.consumer.membership.kip848.membership import ConsumerMembership
from aiokafka_lite.consumer.positions.resolver import PositionResolver
from aiokafka_lite.structs import TopicPartition
from tests.support import inside

TP = TopicPartition("t", 0)


Trigger = Callable[[Broker, AIOKafkaConsumer], Awaitable[object] | None]


class Listener(ConsumerRebalanceListener):
    """Has something to be called."""

    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        pass

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        pass


class Place(NamedTuple):
    """Where a task calls something that a bug is planted in, and what has it called."""

    owner: type
    method: str
    trigger: Trigger
    scope: str
    # By which protocol the consumer is in its group.
    protocol: str = "classic"


async def new_records(broker: Broker, _: AIOKafkaConsumer) -> None:
    broker.produce("t", b"more")


async def large_record(broker: Broker, _: AIOKafkaConsumer) -> None:
    """Produce a record of many pieces, so that the connection waits for more bytes at a time."""
    broker.produce("t", bytes(300_000))


async def packed_records(broker: Broker, _: AIOKafkaConsumer) -> None:
    """Let records come that no compiled code takes in one go."""
    broker.produce_all("t", [NewRecord(b"more")], codec="gzip")


async def subscribe_anew(_: Broker, consumer: AIOKafkaConsumer) -> None:
    consumer.subscribe(["t", "u"], listener=Listener())


async def reset(_: Broker, consumer: AIOKafkaConsumer) -> None:
    inside.request_reset(consumer, TP)


async def refresh(_: Broker, consumer: AIOKafkaConsumer) -> None:
    inside.cluster(consumer).invalidate()


async def cut(broker: Broker, _: AIOKafkaConsumer) -> None:
    broker.on("Fetch").disconnect()
    broker.produce("t", b"answers the fetch under way")


async def nothing(_: Broker, __: AIOKafkaConsumer) -> None:
    pass


PLACES = {
    "fetch: an answer": Place(Answers, "_settle_partition", packed_records, "fetch"),
    "fetch: the task": Place(Source, "_recover", cut, "fetch"),
    "positions": Place(PositionResolver, "_resolve_once", reset, "positions"),
    "group": Place(Rebalance, "join_and_sync", subscribe_anew, "group"),
    "heartbeat": Place(Heartbeat, "_send", nothing, "group"),
    "group, KIP-848": Place(ConsumerMembership, "_reconcile", subscribe_anew, "group", "consumer"),
    "heartbeat, KIP-848": Place(EpochHeartbeat, "_send", nothing, "group", "consumer"),
    "listener": Place(ListenerCalls, "_guarded", subscribe_anew, "group"),
    "listener, KIP-848": Place(ListenerCalls, "_guarded", subscribe_anew, "group", "consumer"),
    "auto-commit": Place(Commits, "_commit", new_records, "group"),
    "cluster refresh": Place(Cluster, "_ask_for_metadata", refresh, "cluster"),
    "connect": Place(FirstVersions, "open", cut, "cluster"),
    "connection: bytes came": Place(LowWaterMark, "want", large_record, "cluster"),
    "connection: an answer": Place(Exchange, "answered", nothing, "cluster"),
    "connection: a deadline": Place(Connection, "_check_deadlines", nothing, "cluster"),
}


# Where nothing deals with what passes by itself, so that only a restart does.
PASSING = {
    "fetch": Place(Source, "_recover", cut, "fetch"),
    "positions": Place(PositionResolver, "_resolve_once", reset, "positions"),
    "group": Place(ClassicMembership, "_hold", subscribe_anew, "group"),
    "heartbeat": Place(Heartbeat, "_beat", nothing, "group"),
    "group, KIP-848": Place(ConsumerMembership, "_reconcile", subscribe_anew, "group", "consumer"),
    "heartbeat, KIP-848": Place(EpochHeartbeat, "_beat", nothing, "group", "consumer"),
    "auto-commit": Place(Commits, "not_committed_yet", nothing, "group"),
    "cluster refresh": Place(Cluster, "_ask_for_metadata", refresh, "cluster"),
}


def plant(
    monkeypatch: pytest.MonkeyPatch, place: Place, error: Exception, times: int | None = None
) -> None:
    """Have a method raise, so many times."""
    original = inspect.getattr_static(place.owner, place.method)
    real = getattr(place.owner, place.method)
    left = times

    def fail(*arguments: object, **named: object) -> object:
        nonlocal left
        if left == 0:
            return real(*arguments, **named)
        if left is not None:
            left -= 1
        raise error

    async def fail_later(*arguments: object, **named: object) -> object:
        result = fail(*arguments, **named)
        return await result if inspect.isawaitable(result) else result

    stand_in = fail_later if inspect.iscoroutinefunction(real) else fail
    if isinstance(original, staticmethod):
        stand_in = staticmethod(stand_in)
    monkeypatch.setattr(place.owner, place.method, stand_in)
