"""Where partitions start: which offsets are looked up, and what is told of a reset."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.offsets import EARLIEST, LATEST, CommittedOffset
from aiokafka_lite.client.view import ClusterView
from aiokafka_lite.consumer.assignment.cursor import Cursor, Range
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.positions.leader_requests import FoundOffset
from aiokafka_lite.consumer.positions.resolver import (
    NOTHING_COMMITTED,
    TRUNCATED,
    PositionResolver,
)
from aiokafka_lite.errors import (
    CoordinatorLoadInProgressError,
    GroupAuthorizationFailedError,
    KafkaError,
    OffsetOutOfRangeError,
    UnknownLeaderEpochError,
    UnsupportedVersionError,
)
from aiokafka_lite.events import OffsetRange, OffsetReset
from aiokafka_lite.protocol.messages.offsets import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.support.buffers import A, B, Buffers
from tests.support.scripted_sources import view
from tests.support.states import NotedGate

pytestmark = pytest.mark.virtual_time

BACKOFF_S = 0.1
MOMENT_S = 0.001
OUT_OF_RANGE = "out of range"
Timestamps = Mapping[TopicPartition, int]
Committed = Mapping[TopicPartition, CommittedOffset | KafkaError | None]


class Starting:
    """A resolver of two partitions, led by nodes 1 and 2, and the answers to its questions."""

    def __init__(self, policy: str, *, commits_starts: bool) -> None:
        buffers = Buffers(A, B)
        self.state, self.buffer = buffers.state, buffers.buffer
        self.state.unsubscribe()
        self.state.subscribe(["t"])
        self.state.change((), [A, B])
        self.view = view({0: 1, 1: 2}, epoch=5)
        self.pool = self
        self.scope = TaskScope("test")
        self.committed: dict[TopicPartition, CommittedOffset | KafkaError | None] = {}
        self.read: list[list[TopicPartition]] = []
        self.offsets: dict[tuple[TopicPartition, int], list[int]] = {}
        self.listed: list[Timestamps] = []
        self.refusal: KafkaError | None = None
        self.epochs: list[int] = []
        self.ends: list[tuple[int, int]] = []
        self.invalidated = 0
        self.came_later: set[TopicPartition] = set()
        self.state.gate = gate = NotedGate()
        self.posted = gate.posted
        self.commits: list[Mapping[TopicPartition, OffsetAndMetadata]] = []
        self.may_commit = asyncio.Event()
        config = ConsumerConfig(
            group_id="g",
            auto_offset_reset=policy,
            enable_auto_commit=commits_starts,
            retry_backoff_ms=int(BACKOFF_S * 1000),
        )
        self.resolver = PositionResolver(
            self.state.core(config, buffer=self.buffer),
            cast("Any", self),
            cast("Any", self),
            cast(
                "Any",
                SimpleNamespace(
                    positions=self._read_committed, commit_by_itself=self._commit_starts
                ),
            ),
            cast("Any", SimpleNamespace(came_later=self.came_later.__contains__)),
            self.scope,
        )
        self.scope.spawn(self.resolver.run(), name="positions")

    @property
    def cursors(self) -> tuple[Cursor, Cursor]:
        return self.state.partition(A), self.state.partition(B)

    @property
    def positions(self) -> tuple[int | None, int | None]:
        return self.cursors[0].position, self.cursors[1].position

    # --- What it asks of others ---------------------------------------------------------------
    def invalidate(self) -> None:
        self.invalidated += 1

    def suspect(self, owner: object, nodes: frozenset[int]) -> None:
        """Suspect no node."""

    async def _read_committed(self, tps: Iterable[TopicPartition]) -> Committed:
        self.read.append(list(tps))
        await asyncio.sleep(MOMENT_S / 4)
        if self.refusal is not None:
            raise self.refusal
        return {tp: self.committed.get(tp) for tp in tps}

    async def ask(
        self, node_id: int, timestamps: Timestamps
    ) -> tuple[dict[TopicPartition, FoundOffset], dict[TopicPartition, KafkaError]]:
        assert {self.view.topics["t"].partitions[tp.partition].leader for tp in timestamps} == {
            node_id
        }
        self.listed.append(dict(timestamps))
        found = {}
        for tp, timestamp in timestamps.items():
            answers = self.offsets[tp, min(timestamp, 0)]
            offset = answers.pop(0) if len(answers) > 1 else answers[0]
            found[tp] = FoundOffset(offset, timestamp, 5)
        return found, {}

    async def request(self, node_id: int, request: OffsetForLeaderEpochRequest) -> object:
        """Say where an epoch ends, or refuse to."""
        await a_moment()
        if self.refusal is not None:
            raise self.refusal
        ((asked,),) = (topic.partitions for topic in request.topics)
        self.epochs.append(asked.leader_epoch)
        epoch, offset = self.ends.pop(0)
        end = EpochEndOffset(partition=asked.partition, leader_epoch=epoch, end_offset=offset)
        return OffsetForLeaderEpochResponse(
            topics=[OffsetForLeaderTopicResult(topic="t", partitions=[end])]
        )

    async def _commit_starts(self, starts: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.commits.append(starts)
        await self.may_commit.wait()

    async def reset(self, tp: TopicPartition, position: int) -> None:
        """Have a position be reset by the policy."""
        self.state.start_at(self.state.partition(tp), position)
        error = OffsetOutOfRangeError({tp: position})
        self.resolver.reset_by_policy(self.state.partition(tp), error, OUT_OF_RANGE)
        await a_moment()


async def a_moment() -> None:
    await asyncio.sleep(MOMENT_S)


@asynccontextmanager
async def starting(policy: str, *, commits_starts: bool = False) -> AsyncIterator[Starting]:
    started = Starting(policy, commits_starts=commits_starts)
    yield started
    await a_moment()
    started.scope.raise_if_failed()
    await started.scope.close()


# --- From committed offsets --------------------------------------------------------------------
async def test_partitions_start_from_their_committed_offsets_or_as_the_policy_says() -> None:
    async with starting("earliest") as started:
        started.committed[A] = CommittedOffset(7, "", 5)
        started.offsets[B, EARLIEST] = [4]
        with started.state.events.subscribe() as events:
            await a_moment()
            started.state.events.close()
            told = [event async for event in events]
        assert started.positions == (7, 4)
        assert [cursor.leader_epoch for cursor in started.cursors] == [5, 5]
        assert [cursor.validated_epoch for cursor in started.cursors] == [-1, 5]
        assert (started.read, started.listed) == ([[A, B]], [{B: EARLIEST}])
        assert told == [OffsetReset(B, None, 4, NOTHING_COMMITTED)]


async def test_a_committed_offset_that_is_not_known_is_read_again_after_a_pause() -> None:
    async with starting("earliest") as started:
        started.committed = {A: CoordinatorLoadInProgressError(), B: CommittedOffset(3, "", 5)}
        await a_moment()
        assert started.positions == (None, 3)
        assert not started.buffer.can_serve(())
        assert started.cursors[0].retry_reason == "CoordinatorLoadInProgressError"
        started.committed[A] = CommittedOffset(7, "", 5)
        await asyncio.sleep(BACKOFF_S / 2)
        started.resolver.wake()
        await a_moment()
        assert started.read == [[A, B]]
        await asyncio.sleep(BACKOFF_S)
        assert started.read == [[A, B], [A]]
        assert started.positions == (7, 3)
        assert not started.buffer.can_serve(())


async def test_a_position_found_meanwhile_is_not_replaced_by_the_committed_offset() -> None:
    async with starting("earliest") as started:
        started.committed = {A: CommittedOffset(7, "", 5), B: CommittedOffset(3, "", 5)}
        for _ in range(10):
            if started.read:
                break
            await asyncio.sleep(0)
        started.state.seek(started.cursors[0], 1)
        await a_moment()
        assert started.positions == (1, 3)
        assert started.read == [[A, B]]


async def test_a_partition_that_comes_later_starts_at_once() -> None:
    async with starting("earliest") as started:
        started.committed = {A: CommittedOffset(7, "", 5), B: CommittedOffset(3, "", 5)}
        await a_moment()
        started.state.change([B], [B])
        await a_moment()
        assert started.read == [[A, B], [B]]


async def test_committed_offsets_that_are_refused_are_told_and_read_again() -> None:
    async with starting("earliest") as started:
        started.refusal = refusal = GroupAuthorizationFailedError()
        await asyncio.sleep(2 * BACKOFF_S)
        assert len(started.read) > 1
        assert started.posted == [refusal] * len(started.read)
        started.refusal = None
        started.committed = {A: CommittedOffset(7, "", 5), B: CommittedOffset(3, "", 5)}
        await asyncio.sleep(4 * BACKOFF_S)
        assert started.positions == (7, 3)


async def test_without_a_commit_a_partition_returns_to_its_first_record() -> None:
    async with starting("latest") as started:
        started.committed = {A: CommittedOffset(7, "", 5), B: CommittedOffset(3, "", 5)}
        await a_moment()
        started.state.reads.hand_out(started.cursors[0], 7, 12, ())
        started.committed = {}
        started.state.return_to_committed([started.cursors[0]])
        await a_moment()
        assert started.positions == (7, 3)
        assert started.listed == []


async def test_metadata_are_asked_for_when_a_leader_does_not_know_its_epoch_yet() -> None:
    async with starting("latest") as started:
        started.refusal = UnknownLeaderEpochError()
        for cursor in started.cursors:
            started.state.start_at(cursor, 7, 3)
            started.state.request_validation(cursor)
        await asyncio.sleep(MOMENT_S / 2)
        started.state.seek(started.cursors[1], 1)
        await a_moment()
        assert started.invalidated == 2  # the leader of each
        reasons = [cursor.retry_reason for cursor in started.cursors]
        assert reasons == ["UnknownLeaderEpochError", ""]
        started.state.seek(started.cursors[0], 1)


async def test_a_position_that_no_broker_can_compare_is_good_in_the_leaders_epoch() -> None:
    async with starting("latest") as started:
        started.refusal = UnsupportedVersionError()
        for cursor in started.cursors:
            started.state.start_at(cursor, 7, 3)
            started.state.request_validation(cursor)
        await asyncio.sleep(10 * MOMENT_S)
        assert [cursor.search for cursor in started.cursors] == [None, None]
        assert [cursor.validated_epoch for cursor in started.cursors] == [5, 5]


async def test_an_error_that_does_not_pass_is_raised_by_the_next_read() -> None:
    async with starting("earliest") as started:
        started.committed = {A: GroupAuthorizationFailedError(), B: CommittedOffset(3, "", 5)}
        await a_moment()
        assert started.buffer.can_serve((A,))
        assert not started.buffer.can_serve((B,))


# --- Positions that are compared with the leader's log -----------------------------------------
@pytest.mark.parametrize(
    ("epoch", "ahead_epoch", "ends", "position", "left"),
    [
        pytest.param(3, None, [(3, 10)], 10, [], id="it has all"),
        pytest.param(3, None, [(3, 9)], 9, [], id="it lacks the last record"),
        pytest.param(3, None, [(2, 8)], 8, [], id="it lacks the epoch"),
        pytest.param(3, None, [(2, 12)], 10, [], id="its older epoch is longer"),
        pytest.param(3, None, [(-1, -1)], 20, [], id="it knows no epoch so old"),
        pytest.param(-1, 3, [(3, 13)], 10, [(12, 13)], id="it has some of what is finished"),
        pytest.param(-1, 3, [(3, 8)], 8, [], id="it lacks what is finished, and more"),
        pytest.param(-1, 3, [(2, 13)], 10, [], id="it lacks the epoch of what is finished"),
        pytest.param(-1, 3, [(-1, -1)], 10, [], id="it does not know of what is finished"),
        pytest.param(4, 3, [(3, 20), (4, 13)], 10, [(12, 13)], id="it has both"),
        pytest.param(4, 3, [(3, 20), (4, 9)], 9, [], id="it has what is finished"),
        pytest.param(3, 3, [(3, 11)], 10, [], id="it has what lies before the position"),
    ],
)
async def test_a_position_is_good_as_far_as_the_leader_has_what_was_read(
    epoch: int,
    ahead_epoch: int | None,
    ends: list[tuple[int, int]],
    position: int,
    left: list[tuple[int, int]],
) -> None:
    async with starting("latest") as started:
        started.committed[B] = CommittedOffset(0, "", 5)
        started.offsets = {(A, LATEST): [20], (A, EARLIEST): [0]}
        started.ends = list(ends)
        state, cursor = started.state, started.cursors[0]
        state.start_at(cursor, 10, epoch)
        if ahead_epoch is not None:
            state.start_behind(cursor, [Range(12, 14)], ahead_epoch)
        state.request_validation(cursor)
        with state.events.subscribe() as events:
            await asyncio.sleep(10 * MOMENT_S)
            state.events.close()
            resets = [event async for event in events if isinstance(event, OffsetReset)]
        assert (cursor.position, cursor.search, cursor.validated_epoch) == (position, None, 5)
        assert started.epochs == [3, 4][: len(ends)]
        assert [(each.to_offset, each.reason) for each in resets] == (
            [] if position == 10 else [(position, TRUNCATED)]
        )
        finished = [] if cursor.progress is None else cursor.progress.finished_ranges(10)
        assert list(finished) == left


async def test_new_leaders_are_asked_whether_they_have_what_was_read() -> None:
    async with starting("latest") as started:
        started.committed = {A: CommittedOffset(7, "", 5), B: CommittedOffset(3, "", 5)}
        await a_moment()
        started.resolver.view_changed(view({0: -1, 1: -1}, epoch=6))
        started.resolver.leaders_moved(started.view, [TopicPartition("u", 0)])
        started.view = view({0: 1, 1: 2}, epoch=6)
        started.ends = [(5, 20)] * 2
        started.resolver.view_changed(started.view)
        await asyncio.sleep(10 * MOMENT_S)
        assert started.epochs == [5, 5]
        assert started.positions == (7, 3)
        assert [cursor.validated_epoch for cursor in started.cursors] == [6, 6]


async def test_a_partition_that_is_given_back_gets_a_position_and_is_not_compared() -> None:
    async with starting("latest") as started:
        started.committed = {A: CommittedOffset(7, "", 5), B: CommittedOffset(3, "", 5)}
        started.state.withhold([A])
        await a_moment()
        assert started.positions == (7, 3)
        started.state.request_validation(started.cursors[0])
        await asyncio.sleep(3 * MOMENT_S)
        assert started.epochs == []


async def test_committed_offsets_that_are_not_known_yet_are_read_again_without_a_word() -> None:
    async with starting("latest") as started:
        started.refusal = CoordinatorLoadInProgressError()
        started.committed = {A: CommittedOffset(7, "", 5), B: CommittedOffset(3, "", 5)}
        await a_moment()
        started.refusal = None
        await asyncio.sleep(2 * BACKOFF_S)
        assert started.positions == (7, 3)
        assert started.posted == []


async def test_the_resolver_looks_again_when_it_is_woken() -> None:
    async with starting("latest") as started:
        started.committed = {A: CommittedOffset(7, "", 5), B: CommittedOffset(3, "", 5)}
        await a_moment()
        started.cursors[0].await_committed()
        await a_moment()
        assert started.read == [[A, B]]
        started.resolver.wake()
        await a_moment()
        assert started.read == [[A, B], [A]]


# --- Resets ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("policy", "before", "log_start", "end", "lost", "skipped"),
    [
        ("latest", 5, 12, 20, (5, 20), (12, 20)),
        ("latest", 5, 2, 20, (5, 20), (5, 20)),
        ("latest", 5, 20, 20, (5, 20), None),
        ("latest", 30, 12, 20, None, None),
        ("latest", 20, 12, 20, None, None),
        ("earliest", 5, 12, 20, (5, 12), None),
    ],
)
async def test_a_reset_tells_which_offsets_are_lost_and_which_are_skipped(
    policy: str,
    before: int,
    log_start: int,
    end: int,
    lost: tuple[int, int] | None,
    skipped: tuple[int, int] | None,
) -> None:
    async with starting(policy) as started:
        state = started.state
        started.offsets = {(A, LATEST): [end], (A, EARLIEST): [log_start]}
        started.committed[B] = CommittedOffset(0, "", 5)
        batch = started.cursors[0].next_truncation
        with state.events.subscribe() as events:
            await started.reset(A, before)
            state.events.close()
            told = [event async for event in events]
        after = end if policy == "latest" else log_start
        assert started.positions[0] == after
        assert told == [
            OffsetReset(
                A,
                before,
                after,
                OUT_OF_RANGE,
                None if lost is None else OffsetRange(*lost),
                None if skipped is None else OffsetRange(*skipped),
            )
        ]
        counts = tuple(0 if each is None else each[1] - each[0] for each in (lost, skipped))
        assert state.events.lost_offsets == counts
        both = [{A: LATEST}, {A: EARLIEST}]
        assert started.listed == (both if policy == "latest" else both[1:])
        assert list(batch.end_offsets()) == [after]


async def test_an_end_that_is_sought_is_looked_up_once_and_tells_nothing() -> None:
    async with starting("latest") as started:
        started.offsets = {(A, LATEST): [20]}
        started.committed[B] = CommittedOffset(0, "", 5)
        started.state.start_at(started.cursors[0], 5)
        batch = started.cursors[0].next_truncation
        await a_moment()
        started.state.request_reset(started.cursors[0], LATEST)
        await a_moment()
        assert (started.positions[0], started.listed) == (20, [{A: LATEST}])
        assert started.state.events.lost_offsets == (0, 0)
        assert list(batch.end_offsets()) == []


async def test_partitions_that_came_later_are_read_from_their_beginning() -> None:
    async with starting("latest") as started:
        started.came_later.add(B)
        started.offsets = {(A, LATEST): [20], (B, EARLIEST): [0]}
        await a_moment()
        assert started.positions == (20, 0)


@pytest.mark.parametrize(("again", "position"), [(-1, 20), (18, 18)])
async def test_the_end_is_where_no_record_is_as_new_as_the_policy_wants(
    again: int, position: int
) -> None:
    async with starting("by_duration:PT1H") as started:
        started.offsets = {(A, 0): [-1, again], (A, LATEST): [20], (B, 0): [6]}
        await a_moment()
        assert started.positions == (position, 6)
        (first, end, second), of_b = (
            [each[tp] for each in started.listed if tp in each] for tp in (A, B)
        )
        assert (first, end) == (second, LATEST)
        assert len(of_b) == 1


async def test_a_partition_whose_leader_becomes_known_is_looked_up_at_once() -> None:
    async with starting("earliest") as started:
        led: ClusterView = started.view
        started.view = view({0: 1, 1: -1}, epoch=5)
        started.offsets = {(tp, EARLIEST): [4] for tp in (A, B)}
        await a_moment()
        assert started.positions == (4, None)
        assert started.cursors[1].retry_reason == "UnknownTopicOrPartitionError"
        started.view = led
        started.resolver.leaders_moved(led, [B])
        await a_moment()
        assert started.positions == (4, 4)


# --- Starts that are committed -----------------------------------------------------------------
async def test_a_start_is_taken_once_it_is_committed() -> None:
    async with starting("latest", commits_starts=True) as started:
        started.offsets = {(tp, LATEST): [20] for tp in (A, B)}
        started.committed[B] = CommittedOffset(3, "", 5)
        await a_moment()
        assert started.positions == (None, 3)
        started.resolver.wake()
        await a_moment()
        assert started.listed == [{A: LATEST}]
        started.state.request_reset(started.cursors[1], LATEST, reason=OUT_OF_RANGE)
        started.offsets[B, EARLIEST] = [20]
        await a_moment()
        assert started.commits == [{A: OffsetAndMetadata(20, "")}]
        started.may_commit.set()
        await a_moment()
        assert started.commits[1:] == [{B: OffsetAndMetadata(20, "")}]
        assert started.positions == (20, 20)


async def test_a_start_is_not_taken_if_the_application_seeks_while_it_is_committed() -> None:
    async with starting("latest", commits_starts=True) as started:
        started.offsets = {(tp, LATEST): [20] for tp in (A, B)}
        await a_moment()
        started.state.seek(started.cursors[0], 1)
        started.may_commit.set()
        await a_moment()
        assert started.positions == (1, 20)


@pytest.mark.parametrize("why", ["begins at the beginning", "is sought"])
async def test_a_start_that_everybody_finds_is_not_committed(why: str) -> None:
    policy = "earliest" if why == "begins at the beginning" else "latest"
    async with starting(policy, commits_starts=True) as started:
        timestamp = EARLIEST if policy == "earliest" else LATEST
        started.offsets = {(A, timestamp): [4]}
        started.committed[B] = CommittedOffset(3, "", 5)
        if why == "is sought":
            started.state.request_reset(started.cursors[0], LATEST)
        await a_moment()
        assert started.positions == (4, 3)
        assert started.commits == []
        if why != "is sought":
            await started.reset(A, 2)
            assert started.commits == [{A: OffsetAndMetadata(4, "")}]
