"""How a revocation divides its time, and which partitions of a block it counts as lost."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Set
from typing import Any, cast

import pytest

from aiokafka_lite._tasks import Event
from aiokafka_lite.consumer.assignment.cursor import Range
from aiokafka_lite.consumer.config import HOLD_MARGIN, ConsumerConfig
from aiokafka_lite.consumer.delivery.batch import OpenBatch
from aiokafka_lite.consumer.membership.handover import Handover, ListenerCalls
from aiokafka_lite.consumer.membership.protocol import Offsets, Surroundings
from aiokafka_lite.consumer.membership.stateful import GroupMember
from aiokafka_lite.events import OffsetRange, WorkAwaited
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.support.buffers import A, B, Buffers, batch
from tests.support.events import events_so_far
from tests.support.listeners import Losing
from tests.support.states import State
from tests.support.waiting import is_woken

pytestmark = pytest.mark.virtual_time
TIMEOUT_S = 10.0
C = TopicPartition("t", 2)


class Member:
    """A member of which nothing is heard."""

    group_id = "g"

    def notify(self) -> None: ...

    async def wait_for_change(self, until: float | None = None) -> bool:
        return await Event().wait(until)


class Commits:
    """Notes when a commit is made, and by when it has to be done."""

    def __init__(self) -> None:
        self.began_at = self.deadline = self.departed_by = -1.0
        self.committing = set[TopicPartition]()
        self.offsets: Offsets = {}

    def next_number(self) -> int:
        return 0

    def is_committing(self, partitions: Collection[TopicPartition], before: int) -> bool:
        return not self.committing.isdisjoint(partitions)

    async def settle_departed(self, deadline: float) -> None:
        self.departed_by = deadline

    async def commit_last(self, offsets: Offsets, *, deadline: float) -> Offsets:
        self.began_at, self.deadline = asyncio.get_running_loop().time(), deadline
        self.offsets = offsets
        return {}


def around(config: ConsumerConfig, state: State, commits: Commits) -> Surroundings:
    """The parts of a membership that a revocation uses."""
    none = cast("Any", None)
    return Surroundings(
        state.core(config, rng=none), none, none, cast("Any", commits), none, replace=lambda _: None
    )


@pytest.mark.parametrize("is_batch", [False, True])
async def test_an_application_that_hangs_leaves_time_for_the_commit_and_the_listener(
    is_batch: bool,
) -> None:
    buffers, commits = Buffers(A), Commits()
    buffers.put({A: batch(0, 10)})
    block = OpenBatch(buffers.state.works, 60)
    found = await buffers.gets.many((), 0, 5)
    if is_batch:
        block.open(found)
    config = ConsumerConfig(
        group_id="g", rebalance_timeout_ms=int(TIMEOUT_S * 1000), rebalance_hold_ms=60_000
    )
    buffers.state.listener = None
    handover = Handover(
        around(config, buffers.state, commits), cast(GroupMember, Member()), why_lost=lambda: None
    )
    now = asyncio.get_running_loop().time()
    deadline = now + TIMEOUT_S
    await handover.revoke({A}, "a test", deadline=deadline)
    latest = deadline - HOLD_MARGIN * TIMEOUT_S
    assert now < commits.began_at <= latest < deadline
    assert commits.deadline == pytest.approx((commits.began_at + deadline) / 2)


async def test_a_block_has_lost_only_what_it_had_not_finished() -> None:
    buffers = Buffers(A, B)
    for tp in (A, B):
        buffers.put({tp: batch(0, 3)}, node_id=tp.partition)
    block = OpenBatch(buffers.state.works)
    block.open(await buffers.gets.many((), 0, None))
    buffers.state.finished.note_finished({A: OffsetAndMetadata(3, "")})
    buffers.state.works.give_up({A, B}, 0)
    assert block.held() == {A}
    buffers.state.change({A, B}, ())
    assert block.lost() == {B}
    assert block.held() == frozenset()


# --- Whatever works there are -----------------------------------------------------------------
class Task:
    """Something that an application does with records."""

    def __init__(
        self, *tps: TopicPartition, hold_s: float | None = None, ends_after_s: float = 0
    ) -> None:
        self.tps = set(tps)
        self.hold_s = hold_s
        self.is_open = True
        self.wanted_until = list[float]()
        self.given_up_at: float | None = None
        self._ends_after_s = ends_after_s

    def partitions(self) -> Set[TopicPartition]:
        return self.tps

    def undone(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Range]:
        return dict.fromkeys(self.tps & set(partitions), Range(3, 5)) if self.is_open else {}

    def is_wanted_by(self, until: float) -> None:
        self.wanted_until.append(until)

    def give_up(self, partitions: Collection[TopicPartition], now: float) -> None:
        if self.tps & set(partitions):
            self.given_up_at = now

    def is_of(self, task: object) -> bool:
        return False

    def is_ending(self, partitions: Collection[TopicPartition]) -> bool:
        now = asyncio.get_running_loop().time()
        return self.given_up_at is not None and now < self.given_up_at + self._ends_after_s


class Listening:
    """Calls the listener, and notes that."""

    def __init__(self) -> None:
        self.calls = list[tuple[str, set[TopicPartition], float]]()

    async def call(
        self, name: str, method: object, partitions: set[TopicPartition], *, deadline: float
    ) -> bool:
        self.calls.append((name, partitions, deadline))
        return True


class Going:
    """A revocation of two partitions of which works have records."""

    def __init__(
        self,
        *works: Task,
        hold_ms: int | None = 4_000,
        timeout_ms: int | None = int(TIMEOUT_S * 1000),
    ) -> None:
        self.buffers, self.commits, self.listening = Buffers(A, B, C), Commits(), Listening()
        self.loop = asyncio.get_running_loop()
        self.state = self.buffers.state
        self.state.listener = Losing()
        self.state.works.begun += works
        self.changed = Event()
        self.why_lost: str | None = None
        config = ConsumerConfig(
            group_id="g",
            rebalance_timeout_ms=timeout_ms,
            rebalance_hold_ms=hold_ms,
            session_timeout_ms=int(TIMEOUT_S * 1000),
            heartbeat_interval_ms=100,
        )
        self.handover = Handover(
            around(config, self.state, self.commits),
            cast(GroupMember, self),
            why_lost=lambda: self.why_lost,
        )
        self.handover.calls = cast(ListenerCalls, self.listening)
        self.state.observers.acted.add(self._acted)

    group_id = "g"

    def _acted(self) -> None:
        if self.handover.awaits_application:
            self.notify()

    def notify(self) -> None:
        self.changed.set()
        self.changed.clear()

    async def wait_for_change(self, until: float | None = None) -> bool:
        return await self.changed.wait(until)

    async def revoke(self, *tps: TopicPartition, **options: bool) -> float:
        """Return how long it takes."""
        began_at = self.loop.time()
        await self.handover.revoke(set(tps), "a test", deadline=began_at + TIMEOUT_S, **options)
        return self.loop.time() - began_at


async def test_each_work_is_waited_for_as_long_as_it_may_hold_up_a_rebalance() -> None:
    await asyncio.sleep(5)
    works = [Task(C), Task(A, hold_s=2), Task(A, B), Task(B, hold_s=60)]
    going = Going(*works)
    assert await going.revoke(A, B) == pytest.approx(TIMEOUT_S * (1 - HOLD_MARGIN) - 0.1)
    assert [work.wanted_until for work in works] == [
        [],  # it has nothing that goes
        [5 + 2],
        [5 + 4],
        [pytest.approx(5 + TIMEOUT_S * (1 - HOLD_MARGIN) - 0.1)],  # or the group would go on
    ]


async def test_a_work_is_waited_for_no_longer_than_there_is_time() -> None:
    await asyncio.sleep(5)
    work = Task(A, hold_s=60)
    going = Going(work)
    await going.handover.revoke({A}, "a test", deadline=10)
    assert work.wanted_until == [pytest.approx(10 - HOLD_MARGIN * TIMEOUT_S)]


async def test_a_handler_may_take_as_long_as_the_group_waits_and_the_rest_has_half_a_timeout() -> (
    None
):
    going = Going(Task(A, hold_s=60), timeout_ms=None)
    assert await going.revoke(A) == 60
    assert going.commits.began_at == 60
    assert going.commits.deadline == 60 + TIMEOUT_S / 4


async def test_a_work_that_ends_is_waited_for_no_more() -> None:
    first, second = Task(A), Task(B, hold_s=3)
    going = Going(first, second)
    revoking = asyncio.create_task(going.revoke(A, B))
    await asyncio.sleep(1)
    awaited = going.handover.awaited_work
    assert awaited is not None
    assert awaited.offsets == {A: (3, 5), B: (3, 5)}
    assert awaited.until == 4
    first.is_open = False
    going.state.observers.acted.observers[-1]()  # a get begins
    await asyncio.sleep(0.1)
    awaited = going.handover.awaited_work
    assert awaited is not None
    assert (awaited.offsets, awaited.until) == ({B: (3, 5)}, 3)
    assert await revoking == 3
    assert going.handover.awaited_work is None


async def test_a_commit_of_its_own_is_waited_for_as_well_and_without_works() -> None:
    going = Going()
    going.commits.committing = {A}
    revoking = asyncio.create_task(going.revoke(A))
    await asyncio.sleep(1)
    awaited = going.handover.awaited_work
    assert awaited is not None
    assert (awaited.offsets, awaited.until) == ({}, 4)
    going.commits.committing = set()
    going.notify()
    assert await revoking == 1
    assert going.state.events.counts == {"revoked": 1}  # the application has done it


async def test_a_work_is_waited_for_only_because_of_what_goes() -> None:
    """It is done with what goes, and not with a partition that stays."""
    work = Task(A, C)
    going = Going(work)
    revoking = asyncio.create_task(going.revoke(A, B))
    await asyncio.sleep(1)
    work.tps = {C}
    going.notify()
    assert await revoking == 1


async def test_what_gets_have_returned_of_other_partitions_is_waited_for_next_to_a_work() -> None:
    going = Going(Task(A, C, hold_s=1))
    cursor = going.state.partition(B)
    going.state.reads.hand_out(cursor, 0, 3, ())
    assert await going.revoke(A, B) == 4


async def test_what_a_work_that_has_ended_leaves_is_waited_for_as_what_gets_have_returned() -> None:
    work = Task(A)
    going = Going(work)
    going.state.reads.hand_out(going.state.partition(A), 0, 3, ())

    def end() -> None:
        work.is_open = False
        going.notify()

    going.loop.call_later(1, end)
    assert await going.revoke(A) == 4


async def test_a_get_wakes_no_task_while_no_partition_is_revoked() -> None:
    going = Going(Task(A, ends_after_s=0.5), hold_ms=0)

    def begin_get() -> None:
        going.state.observers.acted.observers[-1]()

    assert not await is_woken(going, begin_get)
    await going.revoke(A)
    assert not await is_woken(going, begin_get)


async def test_what_is_awaited_is_an_event_with_its_limit() -> None:
    await asyncio.sleep(5)
    going = Going(Task(A))
    with going.state.events.subscribe() as events:
        await going.revoke(A)
        awaited, _ = events_so_far(events)
    assert awaited == WorkAwaited({A: OffsetRange(3, 5)}, 4.0)


@pytest.mark.parametrize(
    ("hold_ms", "is_late", "is_logged"),
    [(4_000, True, True), (4_000, False, False), (0, True, False)],
)
async def test_records_that_the_next_owner_reads_again_are_logged_if_they_were_waited_for(
    hold_ms: int, is_late: bool, is_logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    work = Task(A)
    going = Going(work, hold_ms=hold_ms)

    def finish() -> None:
        work.is_open = False
        going.notify()

    if not is_late:
        going.loop.call_later(1, finish)
    await going.revoke(A)
    assert ("will read these offsets again: {'t/0': '3 to 4'}" in caplog.text) is is_logged


async def test_partitions_that_are_lost_wait_for_nothing() -> None:
    going = Going(Task(A))
    revoking = asyncio.create_task(going.revoke(A))
    await asyncio.sleep(1)
    going.why_lost = "the group has forgotten the member"
    going.notify()
    assert await revoking == 1
    assert going.commits.began_at == -1
    assert [(name, tps) for name, tps, _ in going.listening.calls] == [("on_partitions_lost", {A})]
    assert going.state.events.counts["lost"] == 1
    assert going.state.works.begun[0].given_up_at == 1  # type: ignore[attr-defined]
    going = Going(Task(A))
    going.why_lost = ""  # nobody knows why
    assert await going.revoke(A) == 0
    assert going.state.events.counts == {"lost": 1}


async def test_nothing_waits_if_the_application_stays_away() -> None:
    going = Going(Task(A))
    assert await going.revoke(A, waits=False) == 0
    assert going.commits.began_at == 0
    assert going.state.assignment[A].is_withheld
    assert not going.state.assignment[B].is_withheld
    assert going.state.events.counts == {"revoked": 1}


@pytest.mark.parametrize(("ends_after_s", "took_s"), [(0.5, 0.5), (3.0, 1.0)])
async def test_a_work_that_is_given_up_has_a_moment_to_end(
    ends_after_s: float, took_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    going = Going(Task(A, ends_after_s=ends_after_s), hold_ms=0)
    revoking = asyncio.create_task(going.revoke(A))
    await asyncio.sleep(0.5)
    going.state.observers.acted.observers[-1]()  # a get begins
    assert await revoking == took_s
    assert ("were cancelled but have not ended" in caplog.text) is (ends_after_s > took_s)


async def test_the_moment_is_shorter_where_little_time_is_left() -> None:
    await asyncio.sleep(5)
    going = Going(Task(A, ends_after_s=3))
    await going.handover.revoke({A}, "a test", deadline=7, waits=False)
    assert going.loop.time() == 5.5


async def test_the_listener_has_what_the_commit_leaves_of_the_time() -> None:
    going = Going(Task(A))
    await going.revoke(A)
    ((name, tps, deadline),) = going.listening.calls
    assert (name, tps) == ("on_partitions_revoked", {A})
    assert deadline == TIMEOUT_S
    assert going.commits.offsets.keys() == {A}
    assert going.commits.deadline == (4 + TIMEOUT_S) / 2
    assert going.commits.departed_by == (4 + TIMEOUT_S) / 2


@pytest.mark.parametrize("tells", [False, True])
async def test_a_listener_hears_of_nothing_only_where_that_is_asked_for(tells: bool) -> None:
    going = Going()
    await going.revoke(tells_of_none=tells)
    calls = [(name, tps) for name, tps, _ in going.listening.calls]
    assert calls == ([("on_partitions_revoked", set())] if tells else [])
    assert going.state.events.counts == {}
