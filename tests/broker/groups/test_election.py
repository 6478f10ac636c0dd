"""Partitions of the offsets topic come and go, and with them the groups that live there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from aiokafka_lite.broker.groups.classic.machine import GroupState
from aiokafka_lite.broker.groups.classic.members import Join
from aiokafka_lite.broker.groups.coordinator import GroupCoordinator
from aiokafka_lite.broker.groups.offsets import (
    NOTHING_COMMITTED,
    Committer,
    OffsetCommitEntry,
)
from aiokafka_lite.broker.log.producers import ProducerIdentity
from aiokafka_lite.errors import (
    CoordinatorLoadInProgressError,
    GroupIdNotFound,
    NoError,
    NotCoordinatorError,
    UnknownMemberIdError,
)
from aiokafka_lite.protocol.messages.group_members import JoinGroupResponse
from aiokafka_lite.structs import TopicPartition
from tests.broker.groups.fakes import Services, elect_all, leaver, run_in_virtual_time, sync_call

TP = TopicPartition("t", 0)
TOPIC_ID = b"\x07" * 16


@pytest.fixture
async def services() -> AsyncIterator[Services]:
    services = Services()
    yield services
    await services.scope.close()


@pytest.fixture
async def coordinator(services: Services) -> AsyncIterator[GroupCoordinator]:
    coordinator = await started(services)
    yield coordinator
    await coordinator.close()


async def started(services: Services) -> GroupCoordinator:
    coordinator = GroupCoordinator(services)
    elect_all(coordinator, services)
    return coordinator


def a_join(*, ms: int = 60_000) -> Join:
    return Join("consumer", (("range", b""),), ms, 60_000, needs_known_member_id=False)


async def stable(
    coordinator: GroupCoordinator, group_id: str = "g", *, ms: int = 60_000
) -> JoinGroupResponse:
    joined = await coordinator.join(group_id, a_join(ms=ms))
    sync = sync_call(
        joined.member_id,
        joined.generation_id,
        assignments={joined.member_id: b"all"},
        group_id=group_id,
    )
    assert (await coordinator.sync(sync)).assignment == b"all"
    return joined


def commit(coordinator: GroupCoordinator, group_id: str, offset: int) -> type:
    (error,) = coordinator.commit(
        group_id,
        [OffsetCommitEntry(TP, TOPIC_ID, offset, -1, "")],
        Committer(),
    )
    return error


def elsewhere(coordinator: GroupCoordinator, group_id: str) -> str:
    """A group of the other partition."""
    home = coordinator.partition_for(group_id)
    return next(name for name in map(str, range(99)) if coordinator.partition_for(name) != home)


async def test_resigned_partition_is_forgotten_and_others_are_not(
    coordinator: GroupCoordinator,
) -> None:
    other = elsewhere(coordinator, "g")
    for group_id in ("g", other):
        assert commit(coordinator, group_id, 5) is NoError
    coordinator.resign([coordinator.partition_for("g")])
    assert list(coordinator.groups) == [other]
    assert coordinator.offsets.fetch("g", TP, TOPIC_ID) is NOTHING_COMMITTED
    assert coordinator.offsets.fetch(other, TP, TOPIC_ID).offset == 5
    assert commit(coordinator, other, 6) is NoError
    assert commit(coordinator, "g", 6) is NotCoordinatorError
    assert (await coordinator.join("g", a_join())).error_code == NotCoordinatorError.errno
    assert (await coordinator.sync(sync_call("m", 1))).error_code == NotCoordinatorError.errno
    assert coordinator.heartbeat("g", "m", None, 1) is NotCoordinatorError
    assert coordinator.leave("g", [leaver("m")]) == (NotCoordinatorError, [])
    assert coordinator.delete("g") is NotCoordinatorError
    with pytest.raises(NotCoordinatorError):
        coordinator.expire_session("g", "m")


async def test_parked_requests_are_answered_not_coordinator(coordinator: GroupCoordinator) -> None:
    joined = await stable(coordinator)
    joining = asyncio.create_task(coordinator.join("g", a_join()))
    await asyncio.sleep(0)
    coordinator.resign([coordinator.partition_for("g")])
    assert (await joining).error_code == NotCoordinatorError.errno
    coordinator.elect([coordinator.partition_for("g")])
    await coordinator.until_loaded()
    assert coordinator.heartbeat("g", joined.member_id, None, 1) is NoError
    follower = asyncio.create_task(coordinator.join("g", a_join()))
    await asyncio.sleep(0)
    again = await coordinator.join("g", _known(joined.member_id))
    await follower
    syncing = asyncio.create_task(
        coordinator.sync(sync_call((await follower).member_id, again.generation_id))
    )
    await asyncio.sleep(0)
    assert not syncing.done()
    coordinator.resign([coordinator.partition_for("g")])
    assert (await syncing).error_code == NotCoordinatorError.errno
    assert asyncio.all_tasks() == {asyncio.current_task()}


def _known(member_id: str) -> Join:
    return Join("consumer", (("range", b""),), 60_000, 60_000, member_id=member_id)


async def test_elected_coordinator_has_what_the_one_before_stored(services: Services) -> None:
    before = await started(services)
    joined = await stable(before)
    assert commit(before, "g", 5) is UnknownMemberIdError  # only members commit for a busy group
    partition = before.partition_for("g")
    assert commit(before, elsewhere(before, "g"), 7) is NoError
    before.resign([partition])

    after = GroupCoordinator(services)
    assert after.availability("g") is NotCoordinatorError
    after.elect([partition])
    assert after.availability("g") is CoordinatorLoadInProgressError
    await after.until_loaded()
    assert after.groups["g"].state is GroupState.STABLE
    assert after.heartbeat("g", joined.member_id, None, 1) is NoError
    assert list(after.groups) == ["g"]
    after.elect([partition])  # once more does no harm
    assert after.availability("g") is NoError
    assert after.groups["g"].state is GroupState.STABLE
    for coordinator in (before, after):
        await coordinator.close()


async def test_offsets_of_open_transactions_go_with_their_partition(
    coordinator: GroupCoordinator,
) -> None:
    other = elsewhere(coordinator, "g")
    for group_id in ("g", other):
        item = OffsetCommitEntry(TP, TOPIC_ID, 5, -1, "")
        coordinator.commit_in_transaction(group_id, [item], ProducerIdentity(7, 0), Committer())
    coordinator.resign([coordinator.partition_for("g")])
    assert not coordinator.offsets.is_unstable("g", TP)
    assert coordinator.offsets.is_unstable(other, TP)


async def test_groups_go_to_and_fro(services: Services) -> None:
    nodes = [await started(services), GroupCoordinator(services)]
    partition = nodes[0].partition_for("g")
    for offset in range(1, 6):
        here, there = nodes[offset % 2 - 1], nodes[offset % 2]
        assert commit(here, "g", offset) is NoError
        here.resign([partition])
        there.elect([partition])
        await there.until_loaded()
        assert there.offsets.fetch("g", TP, TOPIC_ID).offset == offset
        assert commit(here, "g", 99) is NotCoordinatorError
    for node in nodes:
        await node.close()


async def test_partition_that_goes_while_it_is_loaded_leaves_nothing(services: Services) -> None:
    before = await started(services)
    for offset in range(20):
        commit(before, "g", offset)
    partition = before.partition_for("g")
    before.resign([partition])
    after = GroupCoordinator(services)
    after.elect([partition])
    for _ in range(5):  # some batches are replayed, not all
        await asyncio.sleep(0)
    assert 0 < after.offsets.fetch("g", TP, TOPIC_ID).offset < 19
    after.resign([partition])
    assert after.offsets.fetch("g", TP, TOPIC_ID) is NOTHING_COMMITTED
    after.elect([partition])
    after.resign([partition])
    after.elect([partition])
    await after.until_loaded()
    assert after.offsets.fetch("g", TP, TOPIC_ID).offset == 19
    for coordinator in (before, after):
        await coordinator.close()


def test_sessions_start_again_with_the_election() -> None:
    async def scenario() -> None:
        services = Services()
        coordinator = await started(services)
        joined = await stable(coordinator, ms=10_000)
        partition = coordinator.partition_for("g")
        await asyncio.sleep(9)
        coordinator.resign([partition])
        await asyncio.sleep(9)
        coordinator.elect([partition])
        await coordinator.until_loaded()
        await asyncio.sleep(9.9)
        assert coordinator.groups["g"].state is GroupState.STABLE
        await asyncio.sleep(0.2)
        assert coordinator.groups["g"].state is GroupState.EMPTY
        assert coordinator.heartbeat("g", joined.member_id, None, 1) is UnknownMemberIdError
        await coordinator.close()
        await services.scope.close()

    run_in_virtual_time(scenario())


# -- expire_session -----------------------------------------------------------------------------


async def test_expired_session_takes_the_member_out_at_once(coordinator: GroupCoordinator) -> None:
    joined = await stable(coordinator)
    coordinator.expire_session("g", joined.member_id)
    assert coordinator.groups["g"].state is GroupState.EMPTY
    assert coordinator.heartbeat("g", joined.member_id, None, 1) is UnknownMemberIdError


async def test_expired_session_lets_the_others_rebalance(coordinator: GroupCoordinator) -> None:
    gone = await stable(coordinator)
    joining = asyncio.create_task(coordinator.join("g", a_join()))
    await asyncio.sleep(0)
    assert not joining.done()
    coordinator.expire_session("g", gone.member_id)
    joined = await joining
    assert (joined.generation_id, joined.leader) == (2, joined.member_id)


async def test_session_of_nobody_cannot_expire(coordinator: GroupCoordinator) -> None:
    with pytest.raises(GroupIdNotFound, match="there is no group 'g'"):
        coordinator.expire_session("g", "m")
    await stable(coordinator)
    with pytest.raises(UnknownMemberIdError, match="group 'g' has no member 'm'"):
        coordinator.expire_session("g", "m")
