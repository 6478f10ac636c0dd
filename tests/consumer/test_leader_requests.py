"""Which node is asked about which partition, and when again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import pytest

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.backoff import LONGEST_BACKOFF_S
from aiokafka_lite.client.view import ClusterView, Node, PartitionView, TopicView
from aiokafka_lite.consumer.positions.leader_requests import (
    OVERDUE_S,
    LeaderRequests,
    RequestKind,
)
from aiokafka_lite.errors import KafkaError, LeaderNotAvailableError, UnknownTopicOrPartitionError
from aiokafka_lite.structs import TopicPartition
from tests.support.virtual_time import VirtualTimeLoop

pytestmark = pytest.mark.virtual_time

A, B, C = (TopicPartition("t", number) for number in range(3))
FIRST_S = 0.125
Answers = tuple[dict[TopicPartition, str], dict[TopicPartition, KafkaError]]


def seen(*leaders: int, epoch: int = 5) -> ClusterView:
    """Metadata of nodes 1 and 2, and of a topic whose partitions these lead."""
    partitions = {n: PartitionView(leader, epoch) for n, leader in enumerate(leaders)}
    return ClusterView(
        nodes={id: Node(id, "host", 9092) for id in (1, 2)},
        topics={"t": TopicView("t", partitions=partitions)},
    )


class Even(random.Random):
    """No jitter."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


class Asked:
    """Requests to the leaders of a cluster, which answer when the test has them do so."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self.view = seen(1, 2, 1)
        self.pool = self
        self.scope = TaskScope("test")
        self.loop = cast("VirtualTimeLoop", asyncio.get_running_loop())
        self.questions: list[tuple[int, dict[TopicPartition, str]]] = []
        self.answered: list[tuple[str, str, int]] = []
        self.failed: list[tuple[str, type[KafkaError]]] = []
        self.ended = 0
        self.invalidated_at: list[float] = []
        self.suspected: list[frozenset[int]] = []
        self._answers: dict[int, asyncio.Future[Answers]] = {}
        kind = RequestKind("ask", self.ask, self.note_answer, self.note_failure, self.end)
        self.requests = LeaderRequests(kind, cast("Any", self), self.scope, rng or Even(), FIRST_S)

    def note_answer(self, wish: str, answer: str, leader_epoch: int) -> None:
        self.answered.append((wish, answer, leader_epoch))

    def note_failure(self, wish: str, error: KafkaError) -> None:
        self.failed.append((wish, type(error)))

    async def ask(self, node_id: int, questions: Mapping[TopicPartition, str]) -> Answers:
        self.questions.append((node_id, dict(questions)))
        self._answers[node_id] = self.loop.create_future()
        return await self._answers[node_id]

    def end(self) -> None:
        self.ended += 1

    def invalidate(self) -> None:
        self.invalidated_at.append(self.loop.time())

    def suspect(self, owner: object, nodes: frozenset[int]) -> None:
        assert owner is self.requests
        self.suspected.append(nodes)

    async def advance(self, **wanted: TopicPartition) -> float | None:
        """Want these, each by a question of its own; let the tasks begin."""
        retry_at = self.requests.advance({wish: (tp, wish) for wish, tp in wanted.items()})
        await asyncio.sleep(0)
        return retry_at

    async def answer(
        self, node_id: int, *found: TopicPartition, failed: tuple[TopicPartition, ...] = ()
    ) -> None:
        """Have a node answer about some partitions, and refuse others."""
        failures: dict[TopicPartition, KafkaError] = {
            tp: LeaderNotAvailableError() for tp in failed
        }
        self._answers[node_id].set_result(({tp: f"of {tp.partition}" for tp in found}, failures))
        for _ in range(3):
            await asyncio.sleep(0)


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    asked = Asked()
    yield asked
    asked.requests.cancel()
    await asked.scope.close()


async def test_a_node_has_one_request_at_a_time_and_others_wait_for_its_answer(
    asked: Asked,
) -> None:
    assert await asked.advance(a=A, b=B) is None
    assert asked.questions == [(1, {A: "a"}), (2, {B: "b"})]
    assert await asked.advance(a=A, b=B, c=C) is None
    assert len(asked.questions) == 2
    assert asked.requests.pending_nodes == {1, 2}
    await asked.answer(1, A)
    assert (asked.answered, asked.ended) == ([("a", "of 0", 5)], 1)
    assert asked.requests.pending_nodes == {2}
    await asked.advance(b=B, c=C)
    assert asked.questions[2:] == [(1, {C: "c"})]
    await asked.answer(2, B)
    assert asked.answered[1:] == [("b", "of 1", 5)]
    assert asked.suspected == []
    assert asked.invalidated_at == []


async def test_pauses_between_failures_grow_until_an_answer(asked: Asked) -> None:
    for pause_s in (FIRST_S, 2 * FIRST_S, 4 * FIRST_S, LONGEST_BACKOFF_S, LONGEST_BACKOFF_S):
        await asked.advance(a=A)
        await asked.answer(1, failed=(A,))
        begun_at, count = asked.loop.time(), len(asked.questions)
        assert await asked.advance(a=A) == begun_at + pause_s
        await asyncio.sleep(pause_s / 2)
        assert await asked.advance(a=A) == begun_at + pause_s
        assert len(asked.questions) == count
        await asyncio.sleep(pause_s / 2)
    assert asked.failed == [("a", LeaderNotAvailableError)] * 5
    assert await asked.advance(a=A) is None
    await asked.answer(1, A)
    await asked.advance(a=A)
    await asked.answer(1, failed=(A,))
    assert await asked.advance(a=A) == asked.loop.time() + FIRST_S


async def test_partitions_that_fail_together_are_asked_about_together() -> None:
    asked = Asked(random.Random(1))
    await asked.advance(a=A, c=C)
    await asked.answer(1, failed=(A, C))
    retry_at = await asked.advance(a=A, c=C)
    assert retry_at is not None
    await asyncio.sleep(retry_at - asked.loop.time())
    assert await asked.advance(a=A, c=C) is None
    assert asked.questions == [(1, {A: "a", C: "c"})] * 2
    asked.requests.cancel()
    await asked.scope.close()


async def test_others_are_asked_about_while_one_pauses(asked: Asked) -> None:
    await asked.advance(a=A)
    await asked.answer(1, failed=(A,))
    await asked.advance(a=A, b=B)
    assert asked.questions[1:] == [(2, {B: "b"})]


@pytest.mark.parametrize("view", [seen(2, 2), seen(1, 2, epoch=6)], ids=["node", "epoch"])
async def test_another_leader_is_asked_at_once(asked: Asked, view: ClusterView) -> None:
    await asked.advance(a=A)
    await asked.answer(1, failed=(A,))
    asked.view = view
    assert await asked.advance(a=A) is not None
    assert [node_id for node_id, _ in asked.questions] == [1, view.topics["t"].partitions[0].leader]


async def test_what_is_not_wanted_for_a_while_begins_without_a_pause(asked: Asked) -> None:
    await asked.advance(a=A)
    await asked.answer(1, failed=(A,))
    assert await asked.advance() is None
    await asked.advance(a=A)
    assert len(asked.questions) == 2


@pytest.mark.parametrize("is_found", [True, False])
async def test_an_answer_of_a_former_leader_counts_for_nothing(
    asked: Asked, *, is_found: bool
) -> None:
    await asked.advance(a=A, c=C)
    asked.view = seen(2, 2, 1)
    await asked.answer(1, *([A, C] if is_found else []), failed=() if is_found else (A, C))
    assert [wish for wish, *_ in (*asked.answered, *asked.failed)] == ["c"]
    assert asked.ended == 1


@pytest.mark.parametrize("is_known", [True, False])
async def test_without_a_leader_metadata_are_asked_for_and_the_partition_fails(
    asked: Asked, *, is_known: bool
) -> None:
    asked.view = seen(-1, 2) if is_known else ClusterView()
    assert await asked.advance(a=A) == FIRST_S
    assert asked.failed == [("a", UnknownTopicOrPartitionError)]
    assert asked.questions == []
    # Metadata about a topic that is not covered yet are on their way.
    assert len(asked.invalidated_at) == is_known
    assert await asked.advance(a=A) == FIRST_S
    assert len(asked.failed) == 1
    asked.view = seen(1)
    await asked.advance(a=A)
    assert asked.questions == [(1, {A: "a"})]


async def test_others_are_asked_for_a_leader_that_does_not_answer_until_it_does(
    asked: Asked,
) -> None:
    await asked.advance(a=A, b=B)
    await asyncio.sleep(OVERDUE_S / 2)
    await asked.answer(2, B)
    await asyncio.sleep(2 * OVERDUE_S)
    assert asked.suspected == [{1}, {1}]
    assert asked.invalidated_at == [OVERDUE_S, 2 * OVERDUE_S]
    await asked.answer(1, A)
    assert asked.suspected[2:] == [frozenset()]
    assert asked.answered[1:] == [("a", "of 0", 5)]
    await asyncio.sleep(2 * OVERDUE_S)
    assert len(asked.invalidated_at) == 2


async def test_a_blocked_loop_makes_no_answer_overdue(asked: Asked) -> None:
    await asked.advance(a=A)
    asked.loop.pass_time(2 * OVERDUE_S)
    await asyncio.sleep(OVERDUE_S / 2)
    assert asked.suspected == []
    await asyncio.sleep(OVERDUE_S)
    assert asked.suspected == [{1}]


async def test_what_is_cancelled_asks_and_applies_nothing_more(asked: Asked) -> None:
    await asked.advance(a=A, b=B)
    asked.requests.cancel()
    await asyncio.sleep(3 * OVERDUE_S)
    assert (asked.answered, asked.failed, asked.invalidated_at) == ([], [], [])
    assert asked.requests.pending_nodes == set()
    asked.scope.raise_if_failed()
