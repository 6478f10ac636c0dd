"""Answers of leaders about offsets and epochs: what is found, and what has to be asked again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.view import (
    GONE_AFTER_S,
    ClusterView,
    Node,
    PartitionView,
    TopicView,
)
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.positions.leader_requests import (
    EpochEnd,
    EpochEndLookup,
    FoundOffset,
    OffsetLookup,
)
from aiokafka_lite.consumer.positions.resolver import STALE_S, LogEnds
from aiokafka_lite.errors import (
    ClientClosedError,
    CoordinatorNotAvailableError,
    KafkaError,
    KafkaTimeoutError,
    NotLeaderForPartitionError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.offsets import (
    EpochEndOffset,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from aiokafka_lite.protocol.schema import Request
from aiokafka_lite.structs import TopicPartition
from tests.support.states import State

pytestmark = pytest.mark.virtual_time

A, B, C = (TopicPartition("t", number) for number in range(3))
Listener = Callable[[ClusterView], None]


def seen(count: int) -> ClusterView:
    """Metadata of a node, and of a topic whose partitions it leads."""
    partitions = {number: PartitionView(1, 5) for number in range(count)}
    return ClusterView(
        nodes={1: Node(1, "host", 9092)},
        topics={"t": TopicView("t", partitions=partitions)},
    )


class Leaders:
    """A cluster whose node 1 leads all partitions, and its answers to each request."""

    def __init__(self) -> None:
        self.view = seen(2)
        self.pool = self
        self.refreshed = self.listed_after = 0
        self.requests: list[Request[Any]] = []
        self.answers: list[object] = []
        self.invalidated = 0
        self.is_closed = False
        self.listeners: list[Listener] = []

    async def request(self, node_id: int, request: Request[Any]) -> object:
        assert node_id == 1
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, asyncio.Future):
            answer = await answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def refresh(self, topics: set[str]) -> None:
        assert topics == {"t"}
        self.refreshed += 1
        if self.refreshed == self.listed_after:
            self.view = seen(3)

    def invalidate(self) -> None:
        self.invalidated += 1

    def suspect(self, owner: object, nodes: frozenset[int]) -> None:
        """Suspect no node."""

    def add_listener(self, listener: Listener) -> None:
        self.listeners.append(listener)

    def remove_listener(self, listener: Listener) -> None:
        self.listeners.remove(listener)

    def raise_if_closed(self) -> None:
        if self.is_closed:
            raise ClientClosedError("closed")


@pytest.fixture
async def leaders() -> Leaders:
    return Leaders()


@pytest.fixture
async def scope() -> AsyncIterator[TaskScope]:
    scope = TaskScope("test")
    yield scope
    await scope.close()


@pytest.fixture
def offsets(leaders: Leaders, scope: TaskScope) -> OffsetLookup:
    config = ConsumerConfig(retry_backoff_ms=100, isolation_level="read_committed")
    return OffsetLookup(config, cast("Any", leaders), scope, random.Random(1))


@pytest.fixture
async def log_ends(leaders: Leaders, offsets: OffsetLookup, scope: TaskScope) -> LogEnds:
    """Ends of logs of which partition 1 is being fetched."""
    config = ConsumerConfig(isolation_level="read_committed")
    return LogEnds(
        State().core(config),
        cast("Any", leaders),
        offsets,
        cast("Any", SimpleNamespace(is_asking_for=lambda cursor: cursor.tp == B)),
        scope,
    )


def started(tp: TopicPartition) -> Cursor:
    cursor = Cursor(tp)
    cursor.start_at(0, -1, -1, is_in_work=False)
    return cursor


def listed(*answers: tuple[int, int, int]) -> ListOffsetsResponse:
    """An answer with the partition, the offset, and the error code of each."""
    partitions = [
        ListOffsetsPartitionResponse(
            partition_index=number,
            offset=offset,
            error_code=code,
            timestamp=7,
            leader_epoch=5,
        )
        for number, offset, code in answers
    ]
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=partitions)])


def types(
    failures: dict[TopicPartition, KafkaError],
) -> dict[TopicPartition, type[KafkaError]]:
    return {tp: type(error) for tp, error in failures.items()}


async def test_each_partition_is_found_or_fails_for_a_reason(
    leaders: Leaders, offsets: OffsetLookup
) -> None:
    leaders.answers = [
        listed((7, 5, 0), (0, 20, 0), (1, 0, TopicAuthorizationFailedError.errno)),
    ]
    found, failures = await offsets.ask(1, {A: -1, B: -2, C: 100})
    assert found == {A: FoundOffset(20, 7, 5)}
    assert types(failures) == {B: TopicAuthorizationFailedError, C: KafkaTimeoutError}
    assert [error.tp for error in failures.values()] == [B, C]
    assert leaders.invalidated == 1
    (request,) = leaders.requests
    assert isinstance(request, ListOffsetsRequest)
    assert (request.replica_id, request.isolation_level) == (-1, 1)
    (topic,) = request.topics
    assert [
        (each.partition_index, each.current_leader_epoch, each.timestamp)
        for each in topic.partitions
    ] == [(0, 5, -1), (1, 5, -2), (2, -1, 100)]


@pytest.mark.parametrize(
    ("timestamp", "offset", "is_found"),
    [(100, -1, True), (0, -1, True), (-1, -1, False), (-2, -1, False), (-1, 0, True)],
)
async def test_only_a_time_may_have_no_offset(
    leaders: Leaders,
    offsets: OffsetLookup,
    timestamp: int,
    offset: int,
    *,
    is_found: bool,
) -> None:
    leaders.answers = [listed((0, offset, 0))]
    found, failures = await offsets.ask(1, {A: timestamp})
    assert (A in found, A in failures) == (is_found, not is_found)


@pytest.mark.parametrize("is_of_all", [True, False])
async def test_metadata_are_asked_for_when_a_node_leads_no_more(
    leaders: Leaders, offsets: OffsetLookup, *, is_of_all: bool
) -> None:
    code = NotLeaderForPartitionError.errno
    leaders.answers = [
        NotLeaderForPartitionError() if is_of_all else listed((0, 20, 0), (1, 0, code))
    ]
    found, failures = await offsets.ask(1, {A: -1, B: -1})
    assert found.keys() == (set() if is_of_all else {A})
    assert set(types(failures).values()) == {NotLeaderForPartitionError}
    assert leaders.invalidated == 1


async def test_what_fails_is_looked_up_again_until_all_is_found(
    leaders: Leaders, offsets: OffsetLookup
) -> None:
    leaders.answers = [
        listed((0, 20, 0), (1, 0, CoordinatorNotAvailableError.errno)),
        listed((1, 30, 0)),
    ]
    found = await offsets.find({A: -1, B: -1}, asyncio.get_running_loop().time() + 1)
    assert found == {A: FoundOffset(20, 7, 5), B: FoundOffset(30, 7, 5)}
    assert len(leaders.requests) == 2
    assert leaders.listeners == []


async def test_a_look_up_of_nothing_asks_nobody(leaders: Leaders, offsets: OffsetLookup) -> None:
    assert await offsets.find({}, 0.0) == {}
    assert leaders.requests == []


async def test_what_is_not_found_in_time_is_told_with_its_reason(
    leaders: Leaders, offsets: OffsetLookup
) -> None:
    hanging = asyncio.get_running_loop().create_future()
    leaders.answers = [hanging]
    with pytest.raises(KafkaTimeoutError, match=r"of 2 partitions .*t/0: the leader, node 1, has"):
        await offsets.find({A: -1, C: -1}, asyncio.get_running_loop().time() + 1)
    assert leaders.listeners == []
    await asyncio.sleep(0)
    assert hanging.cancelled()


async def test_a_refusal_that_does_not_pass_ends_the_look_up(
    leaders: Leaders, offsets: OffsetLookup
) -> None:
    leaders.answers = [listed((0, 20, 0), (1, 0, TopicAuthorizationFailedError.errno))]
    with pytest.raises(TopicAuthorizationFailedError):
        await offsets.find({A: -1, B: -1}, asyncio.get_running_loop().time() + 1)
    assert len(leaders.requests) == 1


async def test_the_end_of_the_client_ends_the_look_up(
    leaders: Leaders, offsets: OffsetLookup
) -> None:
    leaders.is_closed = True
    with pytest.raises(ClientClosedError):
        await offsets.find({A: -1}, asyncio.get_running_loop().time() + 1)
    assert leaders.requests == []


async def test_a_bug_in_a_task_ends_the_look_up(leaders: Leaders, offsets: OffsetLookup) -> None:
    leaders.answers = [ZeroDivisionError("a bug")]
    with pytest.raises(ZeroDivisionError, match="a bug"):
        await offsets.find({A: -1}, asyncio.get_running_loop().time() + 1)


async def test_a_leader_that_becomes_known_is_asked_at_once(
    leaders: Leaders, offsets: OffsetLookup
) -> None:
    known = leaders.view
    leaders.view = known._replace(nodes={})
    leaders.answers = [listed((0, 20, 0))]
    loop = asyncio.get_running_loop()
    looking = asyncio.create_task(offsets.find({A: -1}, loop.time() + 1))
    await asyncio.sleep(0.01)
    leaders.view = known
    for listener in leaders.listeners:
        listener(known)
    assert await looking == {A: FoundOffset(20, 7, 5)}
    assert loop.time() < 0.05


async def test_a_partition_that_a_broker_lists_late_is_waited_for(
    leaders: Leaders, offsets: OffsetLookup
) -> None:
    await offsets.until_listed([A, B, TopicPartition("u", 0)])
    assert leaders.refreshed == 0
    leaders.listed_after = 2
    await offsets.until_listed([A, C])
    assert leaders.refreshed == 2
    assert asyncio.get_running_loop().time() < GONE_AFTER_S


async def test_a_partition_that_stays_away_is_unknown_after_a_while(
    leaders: Leaders, offsets: OffsetLookup
) -> None:
    with pytest.raises(
        UnknownTopicOrPartitionError, match="no partition 2: the topic has 2"
    ) as caught:
        await offsets.until_listed([A, C])
    assert caught.value.tp == C
    assert GONE_AFTER_S <= asyncio.get_running_loop().time() < 2 * GONE_AFTER_S


@pytest.mark.parametrize(
    ("heard_at", "is_stale"), [(None, True), (100.0 - STALE_S, False), (99.0 - STALE_S, True)]
)
async def test_the_end_of_a_log_is_stale_unless_a_broker_has_named_it_lately_or_will(
    log_ends: LogEnds, *, heard_at: float | None, is_stale: bool
) -> None:
    cursor = started(A)
    if heard_at is not None:
        cursor.heard_at(heard_at)
    assert log_ends.is_stale(cursor, 100.0) is is_stale
    asked_for = started(B)
    assert not log_ends.is_stale(asked_for, 100.0)
    cursor.await_reset(-1, "")
    assert not log_ends.is_stale(cursor, 100.0)


async def test_the_end_of_a_log_is_taken_unless_a_broker_has_named_it_meanwhile(
    leaders: Leaders, log_ends: LogEnds
) -> None:
    leaders.view = seen(4)
    loop = asyncio.get_running_loop()
    heard, stale, gone = (started(TopicPartition("t", number)) for number in (0, 2, 3))
    no_leader = started(TopicPartition("u", 0))
    asked = loop.create_future()
    leaders.answers = [asked]
    log_ends.ask([heard, stale, gone, no_leader])
    await asyncio.sleep(0.1)
    log_ends.ask([stale])  # the first question is not answered yet
    await asyncio.sleep(0.1)
    assert len(leaders.requests) == 1
    heard.answered(loop.time(), 9, 9, 0)
    gone.end_assignment()
    asked.set_result(listed((0, 20, 0), (2, 30, 0), (3, 50, 0)))
    await asyncio.sleep(0.1)
    ends = [cursor.high_watermark for cursor in (heard, stale, gone, no_leader)]
    assert ends == [9, 30, None, None]
    assert stale.last_stable_offset == 30  # read_committed


async def test_ends_of_epochs_are_found_or_fail(leaders: Leaders) -> None:
    ends = EpochEndLookup(ConsumerConfig(), cast("Any", leaders))
    partitions = [
        EpochEndOffset(partition=0, leader_epoch=3, end_offset=9),
        EpochEndOffset(partition=1, error_code=NotLeaderForPartitionError.errno),
    ]
    leaders.answers = [
        OffsetForLeaderEpochResponse(
            topics=[OffsetForLeaderTopicResult(topic="t", partitions=partitions)]
        )
    ]
    found, failures = await ends.ask(1, {A: 3, B: 4})
    assert found == {A: EpochEnd(3, 9)}
    assert types(failures) == {B: NotLeaderForPartitionError}
    (request,) = leaders.requests
    assert isinstance(request, OffsetForLeaderEpochRequest)
    assert request.replica_id == -1
    asked = [(each.partition, each.leader_epoch) for each in request.topics[0].partitions]
    assert asked == [(0, 3), (1, 4)]


@pytest.mark.parametrize(
    ("leader_epoch", "end_offset", "is_defined"),
    [(3, 9, True), (-1, 9, False), (3, -1, False), (-1, -1, False), (0, 0, True)],
)
def test_an_end_is_defined_by_an_epoch_and_an_offset(
    leader_epoch: int, end_offset: int, *, is_defined: bool
) -> None:
    assert EpochEnd(leader_epoch, end_offset).is_defined is is_defined
