"""A membership that goes over from the consumer protocol to the classic one: without a group."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.consumer.assignors import AbstractPartitionAssignor, RangePartitionAssignor
from aiokafka_lite.consumer.assignors.cooperative_sticky import CooperativeStickyPartitionAssignor
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.membership.choice import EitherMembership, member_of
from aiokafka_lite.consumer.membership.classic.member import Member
from aiokafka_lite.consumer.membership.kip848.member import ConsumerMember, MemberState
from aiokafka_lite.consumer.membership.protocol import GroupStatus, Identity, Offsets
from aiokafka_lite.errors import (
    ConsumerStoppedError,
    GroupIdNotFound,
    InconsistentGroupProtocolError,
    KafkaError,
    UnsupportedVersionError,
)
from aiokafka_lite.events import GroupProtocolChanged
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.support.events import events_so_far
from tests.support.for_each import for_each
from tests.support.plain_group import Group, begun
from tests.support.states import State

TP = TopicPartition("t", 0)
OFFSETS = {TP: OffsetAndMetadata(3, "")}


class Played:
    """A membership that notes what it is asked, and has an assignment when the test says so."""

    def __init__(self, name: str, generation: int) -> None:
        self.member_id = name
        self.generation = self.coordinator_id = generation
        self.status = GroupStatus(name, "STABLE", None, False, True, None, None, 0, 0)
        self.is_settled = name == "second"
        self.asked = list[object]()
        self.may_start = asyncio.Event()
        self.has_ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def is_called_by_listener(self) -> bool:
        return self.is_settled

    def wake_waiters(self) -> None:
        self.asked.append("wake_waiters")

    def halt(self) -> None:
        self.asked.append("halt")

    def stop_trying(self) -> None:
        self.asked.append("stop_trying")

    def leave_nowait(self, reason: str) -> None:
        self.asked.append(reason)

    async def leave(
        self, *, deadline: float, offsets: Offsets, leaves: bool | None = None
    ) -> Offsets:
        self.asked.append((deadline, leaves))
        return offsets

    async def start(self) -> None:
        self.asked.append("start")
        await self.may_start.wait()

    async def wait_assigned(self) -> None:
        self.asked.append("wait_assigned")
        await self.has_ended


class Choosing:
    """Both memberships, of which the first may find that its protocol is not offered."""

    def __init__(self) -> None:
        self.first, self.second = Played("first", 1), Played("second", 2)
        self.state = State()
        self.scope = TaskScope("g")
        around = SimpleNamespace(scope=self.scope, events=self.state.events)
        self.group_id = "g"
        self.either = Either(cast("Any", around), cast("Any", self))
        self.fall_back = self.either.fall_back


class Either(EitherMembership):
    """Begins with the memberships of a test; its first member is the test's `Choosing`."""

    def _begin(self, first: Any) -> Any:
        self._choosing = first
        return first.first

    def _take_over(self) -> Any:
        return self._choosing.second


@pytest.mark.parametrize("is_second", [False, True])
async def test_the_membership_of_the_protocol_in_use_is_asked(is_second: bool) -> None:
    it = Choosing()
    if is_second:
        it.fall_back(UnsupportedVersionError("no"))
        await asyncio.sleep(0)
    used, other = (it.second, it.first) if is_second else (it.first, it.second)
    used.may_start.set()
    await it.either.start()
    begun = other.asked.copy(), used.asked.copy()
    either = it.either
    assert (either.member_id, either.generation) == (used.member_id, used.generation)
    assert either.coordinator_id == used.coordinator_id
    assert either.status == used.status
    assert either.is_settled is either.is_called_by_listener() is is_second
    either.wake_waiters()
    either.halt()
    assert await either.leave(deadline=7, offsets=OFFSETS, leaves=False) == OFFSETS
    either.leave_nowait("collected")
    assert used.asked == [*begun[1], "wake_waiters", "halt", (7, False), "collected"]
    assert other.asked == begun[0]


@pytest.mark.parametrize(
    ("error", "is_kept"),
    [
        (UnsupportedVersionError("not here"), False),
        (GroupIdNotFound("not here"), True),
        (InconsistentGroupProtocolError("not here"), True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, KafkaError) else "",
)
async def test_the_classic_protocol_takes_over_and_says_why(
    error: KafkaError, is_kept: bool
) -> None:
    it = Choosing()
    with it.state.events.subscribe() as events:
        it.fall_back(error)
        assert events_so_far(events) == [GroupProtocolChanged("classic", str(error))]
    assert it.first.asked == ["stop_trying"]
    await asyncio.sleep(0)
    assert it.second.asked == ["start"]
    status = it.either.status
    assert status is not None
    assert status.kept_classic_by == (str(error) if is_kept else "")
    await it.scope.close()


@pytest.mark.parametrize("raises", [False, True])
async def test_who_waits_for_an_assignment_waits_for_that_of_the_second_protocol(
    raises: bool,
) -> None:
    it = Choosing()
    waiting = asyncio.create_task(it.either.wait_assigned())
    await asyncio.sleep(0)
    it.fall_back(UnsupportedVersionError("no"))
    if raises:
        it.first.has_ended.set_exception(ConsumerStoppedError("the first has ended"))
    else:
        it.first.has_ended.set_result(None)
    for _ in range(3):
        await asyncio.sleep(0)
    assert it.second.asked == ["start"]  # which is to end first
    it.second.may_start.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert it.second.asked == ["start", "wait_assigned"]
    assert not waiting.done()
    it.second.has_ended.set_result(None)
    await waiting


async def test_a_stop_ends_the_wait_for_an_assignment() -> None:
    it = Choosing()
    it.first.has_ended.set_exception(ConsumerStoppedError("it is stopped"))
    with pytest.raises(ConsumerStoppedError):
        await it.either.wait_assigned()


async def test_commits_ask_the_member_of_the_protocol_in_use() -> None:
    commits, first, second = Group().commits, ConsumerMember("g", member_id="m"), Member("g")
    first.enter(MemberState.JOINING)
    assert first.take_answer(first.identity, Identity("m", 4), frozenset())
    commits.become(first)
    assert commits.assigned_as == Identity("m", 4)
    waiting = await begun(first.wait_for_change())
    commits.become(second)
    await waiting
    assert commits.assigned_as is None


# --- The choice -------------------------------------------------------------------------------
@for_each(
    [
        ("classic", RangePartitionAssignor, Member),
        ("classic", CooperativeStickyPartitionAssignor, Member),
        ("auto", RangePartitionAssignor, Member),  # which is given
        ("auto", None, ConsumerMember),
        ("consumer", None, ConsumerMember),
    ]
)
def test_a_member_is_of_the_protocol_that_was_asked_for_and_keeps_its_id(
    group_protocol: str, assignor: type[AbstractPartitionAssignor] | None, kind: type
) -> None:
    config = ConsumerConfig(group_protocol=group_protocol, group_instance_id="one")
    if assignor is not None:
        config = ConsumerConfig(
            group_protocol=group_protocol,
            group_instance_id="one",
            partition_assignment_strategy=(assignor,),
        )
    member, _ = member_of(config, "g", known_as="me")
    assert type(member) is kind
    assert (member.group_id, member.group_instance_id) == ("g", "one")
    assert member.identity.member_id == "me"
    is_cooperative = assignor is CooperativeStickyPartitionAssignor
    assert getattr(member, "is_cooperative", False) is is_cooperative
