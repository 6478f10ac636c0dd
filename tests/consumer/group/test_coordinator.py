"""How the coordinator of a group is found, left, and given up: on a scripted cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from aiokafka_lite import errors
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.lanes import Lane
from aiokafka_lite.client.view import Node
from aiokafka_lite.consumer.events import Events
from aiokafka_lite.consumer.membership.coordinator import Coordinator
from aiokafka_lite.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError
from aiokafka_lite.events import CoordinatorChanged
from aiokafka_lite.protocol.messages.group_members import HeartbeatRequest, HeartbeatResponse
from tests.support.events import events_so_far

pytestmark = pytest.mark.virtual_time

Answer = int | KafkaError | Callable[[], Awaitable[None]]


async def hang() -> None:
    await asyncio.sleep(1_000)


class ScriptedCluster:
    """Answers what the test says, otherwise that all is well; has two nodes."""

    def __init__(self) -> None:
        self.nodes = {n: Node(n, "host", 9000 + n) for n in (0, 1)}
        self.view = self.pool = self
        self.found = 0
        self.find_count = 0
        self.finding: Answer = 0
        self.script = list[Answer]()
        self.sent_to = list[int]()
        self.left_s = list[float]()
        self.invalidate_count = 0
        self.given_up = list[tuple[int, Lane, str]]()
        self.last_errors: dict[int, KafkaError] = {}
        self.sent_nowait = list[tuple[int, object]]()

    async def find_coordinator(self, group_id: str) -> int:
        self.find_count += 1
        await asyncio.sleep(0)
        if callable(self.finding):
            await self.finding()
        return self.found

    async def request(
        self, node_id: int, request: HeartbeatRequest, *, left_s: float, **_: object
    ) -> HeartbeatResponse:
        self.sent_to.append(node_id)
        self.left_s.append(left_s)
        answer = self.script.pop(0) if self.script else 0
        if isinstance(answer, KafkaError):
            raise answer
        if callable(answer):
            await answer()
        return HeartbeatResponse(error_code=answer if isinstance(answer, int) else 0)

    def invalidate(self) -> None:
        self.invalidate_count += 1

    def give_up(self, node_id: int, lane: Lane, error: KafkaError) -> None:
        self.given_up.append((node_id, lane, str(error)))

    def node_ids(self) -> list[int]:
        return list(self.nodes)

    def last_error(self, node_id: int) -> KafkaError | None:
        return self.last_errors.get(node_id)

    def send_nowait(self, node_id: int, request: object) -> None:
        self.sent_nowait.append((node_id, request))


class Group:
    def __init__(self) -> None:
        self.cluster = ScriptedCluster()
        self.events = Events()
        self.coordinator = Coordinator(cast("Cluster", self.cluster), "g", self.events)

    async def ask(
        self, *, within_s: float = 10, answer_s: float | None = None
    ) -> HeartbeatResponse:
        return await self.coordinator.request(
            HeartbeatRequest(),
            error_code=lambda response: response.error_code,
            deadline=asyncio.get_running_loop().time() + within_s,
            answer_s=answer_s,
            lane=Lane.GROUP,
        )


async def test_it_is_found_once_for_all_who_ask_and_told() -> None:
    it = Group()
    assert (it.coordinator.node_id, it.coordinator.node) == (None, None)
    await asyncio.sleep(100)
    with it.events.subscribe() as events:
        await asyncio.gather(*(it.ask() for _ in range(3)))
        told = events_so_far(events)
    assert it.cluster.find_count == 1
    assert it.coordinator.node == it.cluster.nodes[0]
    assert it.cluster.left_s == pytest.approx([10, 10, 10])
    (changed,) = told
    assert isinstance(changed, CoordinatorChanged)
    assert (changed.node_id, changed.previous_node_id) == (0, None)


@pytest.mark.parametrize(
    ("answer", "is_left"),
    [
        (errors.NotCoordinatorError.errno, True),
        (KafkaConnectionError("lost"), True),
        (errors.CoordinatorLoadInProgressError.errno, False),
        (errors.UnknownMemberIdError.errno, False),
    ],
)
async def test_it_is_looked_for_anew_if_it_may_have_moved(answer: Answer, is_left: bool) -> None:
    it = Group()
    it.cluster.script.append(answer)
    with pytest.raises(KafkaError):
        await it.ask()
    assert it.coordinator.node_id == (None if is_left else 0)
    it.cluster.found = 1
    with it.events.subscribe() as events:
        await it.ask()
        told = events_so_far(events)
    assert it.cluster.sent_to == [0, 1 if is_left else 0]
    assert [event.name for event in told] == (["coordinator_changed"] if is_left else [])


async def test_news_of_another_coordinator_and_one_that_comes_back_change_nothing() -> None:
    it = Group()
    await it.ask()
    it.coordinator.forget(1, "it is not that one")
    assert it.coordinator.node_id == 0
    it.coordinator.forget(0, "it may have moved")
    with it.events.subscribe() as events:
        await it.ask()
        assert events_so_far(events) == []
    assert it.cluster.find_count == 2


async def test_a_silent_coordinator_is_left_and_its_connection_given_up() -> None:
    it = Group()
    it.cluster.script.append(hang)
    with pytest.raises(KafkaTimeoutError, match=r"did not answer HeartbeatRequest in time$"):
        await it.ask(within_s=5, answer_s=5)
    assert it.coordinator.node_id is None
    assert it.cluster.invalidate_count == 1
    ((node_id, lane, reason),) = it.cluster.given_up
    assert (node_id, lane) == (0, Lane.GROUP)
    assert "node 0 stopped answering" in reason


@pytest.mark.parametrize(
    ("within_s", "answer_s", "is_given_up"), [(5, None, False), (1, 5, False), (4.5, 5, True)]
)
async def test_a_connection_is_kept_if_the_coordinator_had_less_time_than_it_may_take(
    within_s: float, answer_s: float | None, is_given_up: bool
) -> None:
    it = Group()
    await asyncio.sleep(100)
    it.cluster.script.append(hang)
    with pytest.raises(KafkaTimeoutError):
        await it.ask(within_s=within_s, answer_s=answer_s)
    assert bool(it.cluster.given_up) is is_given_up
    assert it.coordinator.node_id is None


@pytest.mark.parametrize(
    ("failed", "cause"), [((), None), ((0,), None), ((0, 1), "node 0 is down")]
)
async def test_one_that_cannot_be_found_is_not_given_up_and_the_reason_is_said(
    failed: tuple[int, ...], cause: str | None
) -> None:
    it = Group()
    it.cluster.finding = hang
    it.cluster.last_errors = {n: KafkaConnectionError(f"node {n} is down") for n in failed}
    with pytest.raises(KafkaTimeoutError) as caught:
        await it.ask(within_s=5, answer_s=5)
    assert (cause in str(caught.value)) if cause else ("down" not in str(caught.value))
    assert (it.cluster.given_up, it.cluster.invalidate_count) == ([], 0)


async def test_of_a_silent_coordinator_only_its_own_error_is_the_reason() -> None:
    it = Group()
    it.cluster.last_errors = {1: KafkaConnectionError("node 1 is down")}
    it.cluster.script += [hang, hang]
    with pytest.raises(KafkaTimeoutError, match=r"in time$"):
        await it.ask(within_s=5)
    it.cluster.last_errors = {0: KafkaConnectionError("node 0 is down")}
    with pytest.raises(KafkaTimeoutError, match="node 0 is down"):
        await it.ask(within_s=5)


async def test_a_last_word_is_sent_only_to_a_coordinator_that_is_known() -> None:
    it = Group()
    word = HeartbeatRequest()
    it.coordinator.send_nowait(word)
    assert it.cluster.sent_nowait == []
    await it.ask()
    it.coordinator.send_nowait(word)
    assert it.cluster.sent_nowait == [(0, word)]
