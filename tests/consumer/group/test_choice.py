"""Memberships that go over from the consumer protocol to the classic one: without a group."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.consumer.assignors import AbstractPartitionAssignor, RangePartitionAssignor
from aiokafka_lite.consumer.assignors.cooperative_sticky import CooperativeStickyPartitionAssignor
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.membership.choice import member_of
from aiokafka_lite.consumer.membership.classic.member import Member
from aiokafka_lite.consumer.membership.classic.membership import ClassicMembership
from aiokafka_lite.consumer.membership.kip848.member import ConsumerMember, MemberState
from aiokafka_lite.consumer.membership.kip848.membership import ConsumerMembership
from aiokafka_lite.consumer.membership.protocol import Identity, Surroundings
from aiokafka_lite.consumer.parts import Running
from aiokafka_lite.errors import (
    ConsumerStoppedError,
    GroupIdNotFound,
    InconsistentGroupProtocolError,
    KafkaError,
    UnsupportedVersionError,
)
from aiokafka_lite.events import GroupProtocolChanged
from tests.support.events import events_so_far
from tests.support.for_each import for_each
from tests.support.plain_group import Group, begun


class Played:
    """A membership that notes what it is asked, and has an assignment when the test says so."""

    def __init__(self) -> None:
        self.asked = list[str]()
        self.may_start = asyncio.Event()
        self.has_ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        self.asked.append("start")
        await self.may_start.wait()

    async def wait_assigned(self) -> None:
        self.asked.append("wait_assigned")
        await self.has_ended


class Choosing(Running):
    """The parts of a consumer whose first membership may find that its protocol is not offered."""

    def __init__(self) -> None:
        self.first, self.second = Played(), Played()
        self.membership: Any = self.first
        self._starting = None
        self.scopes = cast("Any", SimpleNamespace(grouping=TaskScope("g")))

    def fall_back(self) -> None:
        self._replace_membership(cast("Any", self.second))


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
    config, group, scope = ConsumerConfig(group_id="g"), Group(), TaskScope("g")
    replaced = list[Any]()
    _, make = member_of(config, "g")
    around = Surroundings(
        group.state.core(config),
        cast("Any", SimpleNamespace(remove_listener=lambda _: None)),
        cast("Any", SimpleNamespace(node_id=None)),
        group.commits,
        scope,
        replace=replaced.append,
    )
    first = make(around)
    assert isinstance(first, ConsumerMembership)
    assert first.fall_back is not None
    with group.state.events.subscribe() as events:
        first.fall_back(error)
        assert events_so_far(events) == [GroupProtocolChanged("classic", str(error))]
    (second,) = replaced
    assert isinstance(second, ClassicMembership)
    assert second.status.kept_classic_by == (str(error) if is_kept else "")
    assert isinstance(group.commits.member, Member)
    await scope.close()


async def test_the_second_membership_is_started() -> None:
    it = Choosing()
    it.fall_back()
    assert it.membership is it.second
    await asyncio.sleep(0)
    assert (it.first.asked, it.second.asked) == ([], ["start"])
    await it.scopes.grouping.close()


@pytest.mark.parametrize("raises", [False, True])
async def test_who_waits_for_an_assignment_waits_for_that_of_the_second_protocol(
    raises: bool,
) -> None:
    it = Choosing()
    waiting = asyncio.create_task(it.wait_assigned())
    await asyncio.sleep(0)
    it.fall_back()
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
        await it.wait_assigned()


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
