"""A static member that unsubscribes and subscribes again: its place is kept, nobody else moves."""

from __future__ import annotations

import pytest

from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.structs import TopicPartition
from tests.support import inside
from tests.support.cluster import KafkaHandle, unique
from tests.support.rows import rows
from tests.support.waiting import until


class Told(ConsumerRebalanceListener):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, frozenset[TopicPartition]]] = []

    def on_partitions_revoked(self, revoked: object) -> None:
        self.calls.append(("revoked", frozenset(revoked)))  # type: ignore[call-overload]

    def on_partitions_assigned(self, assigned: object) -> None:
        self.calls.append(("assigned", frozenset(assigned)))  # type: ignore[call-overload]


def member(
    kafka: KafkaHandle, group: str, name: str, topic: str, listener: Told
) -> AIOKafkaConsumer:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=group,
        group_instance_id=name,
        group_protocol="classic",
        auto_offset_reset="earliest",
        heartbeat_interval_ms=50,
        fetch_max_wait_ms=50,
    )
    consumer.subscribe([topic], listener=listener)
    return consumer


@pytest.mark.parametrize("at_once", [True, False], ids=["at-once", "later"])
@pytest.mark.parametrize("leads", [True, False], ids=["leader", "follower"])
async def test_a_static_member_is_back_without_a_rebalance(
    kafka: KafkaHandle, *, at_once: bool, leads: bool
) -> None:
    topic, group = await kafka.create_topic(partitions=2), unique("group")

    told, seen = Told(), Told()
    leaver = member(kafka, group, "leaver", topic, told)
    watcher = member(kafka, group, "watcher", topic, seen)
    first, second = (leaver, watcher) if leads else (watcher, leaver)
    async with first, second:
        await until(lambda: len(leaver.assignment()) == len(watcher.assignment()) == 1)
        await until(lambda: told.calls[-1:] == [("assigned", frozenset(leaver.assignment()))])
        await until(lambda: seen.calls[-1:] == [("assigned", frozenset(watcher.assignment()))])
        mine, before = leaver.assignment(), list(seen.calls)
        generation = inside.generation(watcher)
        told.calls.clear()
        leaver.unsubscribe()
        assert leaver.assignment() == set()
        if not at_once:
            await until(lambda: inside.generation(leaver) == -1)
        leaver.subscribe([topic], listener=told)
        await until(lambda: ("assigned", frozenset(mine)) in told.calls)
        assert leaver.assignment() == mine
        (tp,) = mine
        await kafka.produce(topic, tp.partition, rows(0, 1))
        assert (await leaver.getone()).partition == tp.partition
        # A rebalance would be told with the next beats' answers.
        enough = int(str(watcher.metrics()["heartbeats_total"])) + 3
        await until(lambda: int(str(watcher.metrics()["heartbeats_total"])) >= enough)
        assert seen.calls == before
        assert inside.generation(watcher) == inside.generation(leaver) == generation


@pytest.mark.parametrize("at_once", [True, False], ids=["at-once", "later"])
@pytest.mark.parametrize("leads", [True, False], ids=["leader", "follower"])
async def test_a_static_member_that_comes_back_for_another_topic_gets_it(
    kafka: KafkaHandle, *, at_once: bool, leads: bool
) -> None:
    topic, group = await kafka.create_topic(partitions=2), unique("group")
    other = await kafka.create_topic()
    leaver = member(kafka, group, "leaver", topic, Told())
    watcher = member(kafka, group, "watcher", topic, Told())
    first, second = (leaver, watcher) if leads else (watcher, leaver)
    async with first, second:
        await until(lambda: len(leaver.assignment()) == len(watcher.assignment()) == 1)
        leaver.unsubscribe()
        if not at_once:
            await until(lambda: inside.generation(leaver) == -1)
        leaver.subscribe([other])
        await until(lambda: leaver.assignment() == {TopicPartition(other, 0)})
        await until(lambda: len(watcher.assignment()) == 2)
