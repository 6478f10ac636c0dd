"""Without a group id: all partitions of what is subscribed, as they come and go."""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator, Callable
from typing import cast

import pytest

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.config import ClientConfig
from aiokafka_lite.client.view import ClusterView, PartitionView, TopicView
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.membership.none import NoGroup
from aiokafka_lite.events import Assigned
from aiokafka_lite.structs import TopicPartition
from tests.support.events import events_so_far
from tests.support.rows import tps
from tests.support.scripted_group import ScriptedBroker
from tests.support.states import State
from tests.support.waiting import until


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker({"t": 2, "u": 1, "tail": 1}) as broker:
        yield broker


class Loner:
    """A consumer's part that stands for the group, without a group."""

    def __init__(self, cluster: Cluster) -> None:
        self.state = State()
        self.state.observers.subscription_changed.add(lambda: self.state.watch_topics(cluster))
        self.no_group = NoGroup(self.state.core(ConsumerConfig()), cluster)

    @property
    def partitions(self) -> set[TopicPartition]:
        return set(self.state.assignment)

    async def start(self) -> None:
        await self.no_group.start()
        await self.no_group.wait_assigned()


@pytest.fixture
async def loner(broker: ScriptedBroker) -> AsyncIterator[Loner]:
    scope = TaskScope("loner")
    config = ClientConfig(bootstrap_servers=f"127.0.0.1:{broker.port}", metadata_max_age_s=0.05)
    cluster = Cluster(config, scope=scope, rng=random.Random(0))
    await cluster.start()
    yield Loner(cluster)
    await cluster.close()
    await scope.close()


def becomes(loner: Loner, partitions: set[TopicPartition]) -> Callable[[], bool]:
    return lambda: loner.partitions == partitions


async def test_all_partitions_of_the_topics_are_assigned(loner: Loner) -> None:
    loner.state.subscribe(["t", "u"])

    await loner.start()

    assert loner.partitions == tps("t", 0, 1) | tps("u", 0)
    assert loner.no_group.is_settled


async def test_a_subscription_made_later_is_followed(loner: Loner) -> None:
    loner.state.subscribe(["t"])
    await loner.start()

    loner.state.subscribe(["u"])

    await until(becomes(loner, tps("u", 0)))


async def test_new_partitions_are_added_and_the_others_keep_their_position(
    broker: ScriptedBroker, loner: Loner
) -> None:
    loner.state.subscribe(["t"])
    await loner.start()
    loner.state.seek(loner.state.assignment[TopicPartition("t", 0)], 42)

    broker.topics["t"] = 3

    await until(becomes(loner, tps("t", 0, 1, 2)))
    assert loner.state.assignment[TopicPartition("t", 0)].position == 42


async def test_a_pattern_takes_in_new_topics(broker: ScriptedBroker, loner: Loner) -> None:
    loner.state.subscribe_pattern(re.compile("t"))
    await loner.start()
    assert loner.partitions == tps("t", 0, 1) | tps("tail", 0)

    broker.topics["two"] = 1

    await until(becomes(loner, tps("t", 0, 1) | tps("tail", 0) | tps("two", 0)))


async def test_partitions_of_assign_are_left_alone(broker: ScriptedBroker, loner: Loner) -> None:
    loner.state.assign_from_user(tps("t", 1))

    await loner.start()

    assert loner.partitions == tps("t", 1)
    assert await loner.no_group.leave(deadline=0.0, offsets={}) == {}


# --- Without a broker -------------------------------------------------------------------------
class Metadata:
    """The metadata of a cluster, which the test changes."""

    def __init__(self, **counts: int) -> None:
        self.listeners = list[Callable[[ClusterView], None]]()
        self.refresh_count = 0
        self.change(**counts)

    def change(self, **counts: int) -> None:
        """Have topics with so many partitions, and no others."""
        self.view = ClusterView(
            topics={
                topic: TopicView(topic, partitions={n: PartitionView(1) for n in range(count)})
                for topic, count in counts.items()
            }
        )
        for listener in self.listeners:
            listener(self.view)

    def watch(self, owner: object, topics: object) -> None: ...

    def add_listener(self, listener: Callable[[ClusterView], None], *, on_moves: object) -> None:
        self.listeners.append(listener)

    def remove_listener(self, listener: Callable[[ClusterView], None]) -> None:
        self.listeners.remove(listener)

    async def refresh(self) -> ClusterView:
        self.refresh_count += 1
        return self.view


@pytest.mark.parametrize(
    ("topics", "is_settled", "refresh_count"),
    [(["t"], True, 0), (["t", "u"], False, 1), ([], False, 1), (None, True, 0)],
)
async def test_metadata_are_asked_for_if_they_do_not_cover_what_is_subscribed(
    topics: list[str] | None, is_settled: bool, refresh_count: int
) -> None:
    metadata = Metadata(t=1)
    loner = Loner(cast("Cluster", metadata))
    if topics is not None:
        loner.state.subscribe(topics)
    assert loner.no_group.is_settled is is_settled
    await loner.start()
    assert metadata.refresh_count == refresh_count
    assert loner.partitions == (tps("t", 0) if topics else set())


async def test_each_change_is_an_event_with_all_partitions() -> None:
    metadata = Metadata(t=1, u=1)
    loner = Loner(cast("Cluster", metadata))
    loner.state.subscribe(["t"])
    with loner.state.events.subscribe() as events:
        await loner.start()
        assert events_so_far(events) == [Assigned(frozenset(tps("t", 0)))]
        metadata.change(t=1, u=2)
        assert events_so_far(events) == []
        metadata.change(t=2)
        assert events_so_far(events) == [Assigned(frozenset(tps("t", 0, 1)))]
        metadata.change(t=1)
        assert events_so_far(events) == [Assigned(frozenset(tps("t", 0)))]
        # It was unsubscribed for a moment.
        loner.state.withhold(tps("t", 0))
        metadata.change(t=1)
        assert events_so_far(events) == [Assigned(frozenset(tps("t", 0)))]
        assert not loner.state.assignment[TopicPartition("t", 0)].is_withheld
        await loner.no_group.leave(deadline=0.0, offsets={})
        metadata.change(t=3)
        assert events_so_far(events) == []
