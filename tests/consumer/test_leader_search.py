"""A leader that is gone, or hangs: who leads instead is asked for in time, and not for ever."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.consumer.fetching.leader_search import SEARCH_S, LeaderSearch
from aiokafka_lite.structs import TopicPartition
from tests.support import tuning
from tests.support.cluster import KafkaHandle
from tests.support.reading import offsets_read, reading
from tests.support.virtual_time import VirtualTimeLoop

TP = TopicPartition("t", 0)


class SuspectingPool:
    """Stands in for Pool."""

    suspects: frozenset[int] = frozenset()

    def suspect(self, owner: object, node_ids: frozenset[int]) -> None:
        self.suspects = node_ids


class Questions:
    """Stands in for Cluster: counts what it is asked to do."""

    def __init__(self) -> None:
        self.searches: list[float] = []
        self.invalidations: list[float] = []
        self.pool = SuspectingPool()

    def look_for_leader(self) -> None:
        self.searches.append(asyncio.get_running_loop().time())

    def invalidate(self) -> None:
        self.invalidations.append(asyncio.get_running_loop().time())


class Node:
    """Stands in for a fetch task."""

    def __init__(self) -> None:
        self.node_id = 1
        self.failing_since: float | None = None
        self.is_late = False

    def is_overdue(self, now: float) -> bool:
        return self.is_late


def new_node() -> Any:
    return Node()


@pytest.mark.virtual_time
async def test_leaders_are_looked_for_often_for_as_long_as_an_election_may_take() -> None:
    questions, node = Questions(), new_node()
    search = LeaderSearch(cast("Cluster", questions), lambda: [node])
    search.start()
    await asyncio.sleep(5)
    assert not questions.searches
    node.failing_since = began = asyncio.get_running_loop().time()
    search.hurry()
    await asyncio.sleep(SEARCH_S + 100)
    assert questions.searches[0] - began < 0.2
    gaps = [b - a for a, b in itertools.pairwise(questions.searches)]
    assert max(gaps) < 0.2
    assert SEARCH_S - 1 < questions.searches[-1] - began <= SEARCH_S
    assert not questions.invalidations
    search.close()


@pytest.mark.virtual_time
async def test_who_is_late_is_under_suspicion_until_he_answers() -> None:
    questions, node = Questions(), new_node()
    search = LeaderSearch(cast("Cluster", questions), lambda: [node])
    search.start()
    node.is_late = True
    await asyncio.sleep(3.5)
    assert len(questions.invalidations) == 3
    assert questions.pool.suspects == {1}
    node.is_late = False
    await asyncio.sleep(3)
    assert len(questions.invalidations) == 3
    assert questions.pool.suspects == frozenset()
    assert not questions.searches
    search.close()
    node.is_late = True
    await asyncio.sleep(10)
    assert len(questions.invalidations) == 3


@pytest.mark.virtual_time
async def test_a_leaderless_partition_has_leaders_looked_for_until_one_is_named() -> None:
    questions, loop = Questions(), asyncio.get_running_loop()
    search = LeaderSearch(cast("Cluster", questions), list)
    search.start()
    search.note_leaderless(is_so=True)
    await asyncio.sleep(SEARCH_S / 2)
    assert questions.searches[0] < 0.2
    search.note_leaderless(is_so=True)  # as before: the search is not prolonged
    await asyncio.sleep(SEARCH_S)
    assert SEARCH_S - 1 < questions.searches[-1] <= SEARCH_S
    search.note_leaderless(is_so=False)
    search.note_leaderless(is_so=True)
    began = loop.time()
    await asyncio.sleep(1.0)
    assert began < questions.searches[-1]
    search.note_leaderless(is_so=False)
    stopped = loop.time()
    await asyncio.sleep(2.0)
    assert questions.searches[-1] < stopped
    search.close()


@pytest.mark.virtual_time
async def test_a_failing_broker_is_looked_for_and_not_suspected() -> None:
    questions, failing, late = Questions(), new_node(), new_node()
    late.node_id = 2
    search = LeaderSearch(cast("Cluster", questions), lambda: [failing, late])
    search.start()
    failing.failing_since = asyncio.get_running_loop().time()
    failing.is_late = late.is_late = True
    await asyncio.sleep(1.5)
    assert questions.pool.suspects == {2}
    assert questions.searches
    assert not questions.invalidations  # a search asks for metadata already
    search.close()


@pytest.mark.virtual_time
async def test_looks_are_neither_put_off_nor_doubled_and_end_with_the_search() -> None:
    looked_at: list[float] = []
    loop = asyncio.get_running_loop()

    def watched() -> list[Any]:
        looked_at.append(loop.time())
        return []

    search = LeaderSearch(cast("Cluster", Questions()), watched)
    search.start()
    await asyncio.sleep(0.5)
    for _ in range(4):
        search.hurry()
        await asyncio.sleep(0.1)
    assert looked_at == pytest.approx([0.65, 0.85], abs=1e-3)
    await asyncio.sleep(1.5)
    assert looked_at[2:] == pytest.approx([1.85], abs=1e-3)
    search.close()
    search.close()
    search.hurry()
    await asyncio.sleep(5.0)
    assert len(looked_at) == 3


@pytest.mark.virtual_time
async def test_the_time_of_an_election_ends_the_search() -> None:
    questions, node = Questions(), new_node()
    loop = asyncio.get_running_loop()

    def watched() -> list[Any]:
        node.failing_since = loop.time() - SEARCH_S
        return [node]

    search = LeaderSearch(cast("Cluster", questions), watched)
    search.start()
    await asyncio.sleep(1.1)
    assert not questions.searches
    search.close()


@pytest.mark.virtual_time
async def test_a_blocked_loop_does_not_make_brokers_late() -> None:
    questions, node = Questions(), new_node()
    node.is_late = True
    search = LeaderSearch(cast("Cluster", questions), lambda: [node])
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    search.start()
    await asyncio.sleep(0.9)
    loop.pass_time(0.5)
    await asyncio.sleep(0.1)  # answers that came meanwhile are read
    assert not questions.invalidations
    await asyncio.sleep(0.1)
    assert len(questions.invalidations) == 1
    search.close()


@pytest.fixture
async def three() -> AsyncIterator[Broker]:
    """Three nodes; node 1 leads the one partition of "t"."""
    async with Broker(nodes=3) as broker:
        broker.create_topic("t", 1)
        broker.move_leader(TP, 1)
        yield broker
    assert broker.failure is None


def metadata_requests(broker: Broker) -> int:
    return sum(seen.api == "Metadata" for seen in broker.requests)


async def test_a_dead_leader_s_follower_is_asked_for_without_growing_pauses(
    three: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning.search_leaders_often(monkeypatch)
    kafka = KafkaHandle("embedded", three.bootstrap_servers)
    three.produce("t", b"0", partition=0)
    async with reading(kafka, "t", fetch_max_wait_ms=50) as consumer:
        assert await offsets_read(consumer, 1) == {0: [0]}
        with three.on("Metadata").stale_metadata():
            before = metadata_requests(three)
            await three.stop_node(1, clean=False)
            # With pauses that grow to 1 s it would be ten within this time.
            await three.wait_until(lambda: metadata_requests(three) >= before + 40, timeout_s=5)
        three.produce("t", b"1", partition=0)
        assert await offsets_read(consumer, 1) == {0: [1]}


async def test_a_leader_that_hangs_is_left_before_its_connection_counts_as_dead(
    three: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only what the watch does can help in time: the connection would live on.
    tuning.doubt_leaders_soon(monkeypatch)
    three.produce("t", b"0", partition=0)
    kafka = KafkaHandle("embedded", three.bootstrap_servers)
    async with reading(kafka, "t", fetch_max_wait_ms=50) as consumer:
        assert await offsets_read(consumer, 1) == {0: [0]}
        with three.on(node=1).silence(times=None):
            await three.wait_until(lambda: any(s.api == "Fetch" for s in three.requests))
            three.move_leader(TP, 2)
            three.produce("t", b"1", partition=0)
            assert await offsets_read(consumer, 1) == {0: [1]}
