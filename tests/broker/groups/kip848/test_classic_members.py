"""Members of the classic protocol in a group of KIP-848, and groups that change their kind."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine

import pytest

from aiokafka_lite.broker.groups.classic.machine import GroupState
from aiokafka_lite.broker.groups.kip848.machine import ConsumerGroupSettings
from aiokafka_lite.broker.groups.modern.group import MemberTimer
from aiokafka_lite.errors import (
    FencedInstanceIdError,
    GroupIdNotFound,
    GroupMaxSizeReachedError,
    NoError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from aiokafka_lite.protocol.messages.group_members import JoinGroupResponse
from tests.broker.groups.fakes import classic_group, leaver, run_in_virtual_time
from tests.broker.groups.kip848.driven import Driven, assigned_by

# A session and a rebalance timeout that end after the test.
LONG_MS = 1_000_000


def in_virtual_time(
    test: Callable[[], Coroutine[object, None, None]],
) -> Callable[[], None]:
    @functools.wraps(test)
    def run() -> None:
        run_in_virtual_time(test())

    return run


async def beside(
    driven: Driven, *, session_ms: int = LONG_MS, rebalance_ms: int = LONG_MS
) -> JoinGroupResponse:
    """Join a group with a member of the new protocol, and return when the group is stable."""
    driven.join("a")
    first = await driven.classic_join(session_ms=session_ms, rebalance_ms=rebalance_ms)
    await driven.classic_sync(first)
    driven.beat("a")
    driven.beat("a")
    assert driven.classic_heartbeat(first) is RebalanceInProgressError
    joined = await driven.classic_join(
        first.member_id, session_ms=session_ms, rebalance_ms=rebalance_ms
    )
    assert driven.state == "Stable"
    return joined


async def stays_for(driven: Driven, member_id: str, seconds: float) -> None:
    """Check that a member is removed at that moment."""
    await asyncio.sleep(seconds - 0.1)
    assert member_id in driven.group.members
    await asyncio.sleep(0.2)
    assert member_id not in driven.group.members


# -- timers -------------------------------------------------------------------------------------


@in_virtual_time
async def test_member_that_joins_and_falls_silent_is_removed_after_its_session() -> None:
    driven = Driven()
    driven.join("a")
    joined = await driven.classic_join(session_ms=10_000)
    await stays_for(driven, joined.member_id, 10)
    await driven.close()


@in_virtual_time
async def test_member_that_does_not_sync_is_removed_after_its_rebalance_timeout() -> None:
    driven = Driven()
    driven.join("a")
    joined = await driven.classic_join(session_ms=LONG_MS, rebalance_ms=12_000)
    await stays_for(driven, joined.member_id, 12)
    await driven.close()


@in_virtual_time
async def test_sync_and_heartbeats_keep_a_member() -> None:
    driven = Driven()
    joined = await beside(driven, session_ms=10_000, rebalance_ms=12_000)
    await asyncio.sleep(6)
    await driven.classic_sync(joined)
    await asyncio.sleep(8)
    assert driven.classic_heartbeat(joined) is NoError
    await stays_for(driven, joined.member_id, 10)
    await driven.close()


@pytest.mark.parametrize("asks_by", ["heartbeat", "sync"])
def test_member_that_is_to_join_again_has_its_rebalance_timeout_for_it(asks_by: str) -> None:
    async def scenario() -> None:
        driven = Driven()
        joined = await beside(driven, rebalance_ms=12_000)
        await driven.classic_sync(joined)
        driven.join("b")
        for _ in range(2):
            if asks_by == "heartbeat":
                assert driven.classic_heartbeat(joined) is RebalanceInProgressError
            else:
                assert (
                    await driven.classic_sync(joined)
                ).error_code == RebalanceInProgressError.errno
            await asyncio.sleep(3)
        await stays_for(driven, joined.member_id, 6)
        await driven.close()

    run_in_virtual_time(scenario())


@in_virtual_time
async def test_member_that_joins_again_in_time_stays() -> None:
    driven = Driven()
    joined = await beside(driven, rebalance_ms=12_000)
    await driven.classic_sync(joined)
    driven.join("b")
    assert driven.classic_heartbeat(joined) is RebalanceInProgressError
    await asyncio.sleep(11)
    joined = await driven.classic_join(joined.member_id, session_ms=LONG_MS, rebalance_ms=12_000)
    await driven.classic_sync(joined)
    await asyncio.sleep(13)
    assert joined.member_id in driven.group.members
    assert (MemberTimer.REBALANCE, joined.member_id) not in driven.group.deadlines
    await driven.close()


# -- assignments --------------------------------------------------------------------------------


async def test_member_gives_up_what_it_owns_before_it_gets_to_its_next_generation() -> None:
    driven = Driven()
    joined = await beside(driven)
    held = assigned_by(await driven.classic_sync(joined))
    assert len(held) == 2
    driven.join("b")
    driven.join("c")
    # It keeps one, and is in its old generation until it has joined without the other.
    assert driven.classic_heartbeat(joined) is RebalanceInProgressError
    member_id = joined.member_id
    revoking = await driven.classic_join(member_id, owned=held, rebalance_ms=LONG_MS)
    assert revoking.generation_id == joined.generation_id
    kept = assigned_by(await driven.classic_sync(revoking))
    assert len(kept) == 1
    assert driven.classic_heartbeat(revoking) is RebalanceInProgressError
    assert (MemberTimer.REBALANCE, member_id) not in driven.group.deadlines
    settled = await driven.classic_join(member_id, owned=kept, rebalance_ms=LONG_MS)
    assert settled.generation_id == driven.group.epoch
    assert assigned_by(await driven.classic_sync(settled)) == kept
    assert driven.classic_heartbeat(settled) is NoError
    await driven.close()


# -- who may join, who leaves -------------------------------------------------------------------


async def test_static_member_is_known_by_its_instance_id() -> None:
    driven = Driven()
    driven.join("a")
    joined = await driven.classic_join(instance_id="one")
    assert driven.classic_heartbeat(joined, "one") is NoError
    assert driven.classic_heartbeat(joined, "two") is UnknownMemberIdError
    again = await driven.classic_join(joined.member_id, instance_id="one")
    assert again.error_code == NoError.errno
    assert (
        await driven.classic_join("other", instance_id="one")
    ).error_code == FencedInstanceIdError.errno
    heir = await driven.classic_join(instance_id="one")
    assert heir.error_code == NoError.errno
    assert driven.classic_heartbeat(joined, "one") is FencedInstanceIdError
    assert {member_id for _, member_id in driven.group.deadlines} == {"a", heir.member_id}
    await driven.close()


async def test_member_may_say_its_rack_once() -> None:
    driven = Driven()
    driven.join("a")
    joined = await driven.classic_join(rack_id="r")
    await driven.classic_join(joined.member_id)
    assert driven.group.members[joined.member_id].rack_id == "r"
    await driven.close()


async def test_full_group_takes_no_classic_member_either() -> None:
    driven = Driven(ConsumerGroupSettings(max_size=1))
    driven.join("a")
    assert (await driven.classic_join()).error_code == GroupMaxSizeReachedError.errno
    await driven.close()


@pytest.mark.parametrize(
    ("can_upgrade", "can_downgrade"), [(True, False), (False, True), (True, True)]
)
async def test_classic_members_may_join_if_groups_may_change_in_one_direction(
    can_upgrade: bool, can_downgrade: bool
) -> None:
    settings = ConsumerGroupSettings(can_upgrade=can_upgrade, can_downgrade=can_downgrade)
    driven = Driven(settings)
    driven.join("a")
    assert (await driven.classic_join()).error_code == NoError.errno
    await driven.close()


async def test_members_of_either_protocol_leave_by_one_request() -> None:
    driven = Driven()
    driven.join("a")
    driven.join("b", instance_id="two")
    one = await driven.classic_join(instance_id="one")
    stays = await driven.classic_join()
    epoch = driven.group.epoch
    leave = driven.coordinator.leave
    assert leave("g", [leaver("nobody"), leaver("", "three")]) == (
        NoError,
        [UnknownMemberIdError] * 2,
    )
    assert driven.group.epoch == epoch
    assert leave("g", [leaver("nobody"), leaver("older", "one"), leaver("", "two")]) == (
        NoError,
        [UnknownMemberIdError, FencedInstanceIdError, NoError],
    )
    assert (driven.group.epoch, len(driven.group.members)) == (epoch + 1, 3)
    assert leave("g", [leaver(one.member_id, "one"), leaver("a")]) == (NoError, [NoError] * 2)
    assert [member.member_id for member in classic_group(driven.coordinator).members.values()] == [
        stays.member_id
    ]
    await driven.close()


# -- from one kind to the other -----------------------------------------------------------------


async def old_group(driven: Driven, *, session_ms: int) -> JoinGroupResponse:
    """Be the only member of a classic group."""
    joined = await driven.classic_join(session_ms=session_ms)
    await driven.classic_sync(joined, assigned=[0, 1, 2, 3])
    return joined


@in_virtual_time
async def test_upgraded_group_still_times_its_classic_members() -> None:
    driven = Driven()
    joined = await old_group(driven, session_ms=10_000)
    await asyncio.sleep(7)
    driven.join("a")
    await stays_for(driven, joined.member_id, 10)
    await driven.close()


async def test_static_member_that_upgrades_its_group_is_timed_alone() -> None:
    driven = Driven()
    joined = await driven.classic_join(instance_id="one")
    await driven.classic_sync(joined, instance_id="one", assigned=[0, 1, 2, 3])
    driven.join("a", instance_id="one")
    assert {member_id for _, member_id in driven.group.deadlines} == {"a"}
    assert driven.count("a") == 4
    await driven.close()


@pytest.mark.parametrize(("count", "error"), [(1, GroupMaxSizeReachedError), (2, GroupIdNotFound)])
async def test_group_is_not_upgraded_beyond_its_maximum(count: int, error: type[Exception]) -> None:
    driven = Driven(ConsumerGroupSettings(max_size=1))
    await asyncio.gather(*(driven.classic_join() for _ in range(count)))
    with pytest.raises(error):
        driven.join("a")
    assert len(classic_group(driven.coordinator).members) == count
    await driven.close()


@in_virtual_time
async def test_group_that_a_session_has_downgraded_keeps_the_time_of_its_members() -> None:
    driven = Driven(ConsumerGroupSettings(session_timeout_ms=12_000))
    driven.join("a")
    joined = await driven.classic_join(session_ms=10_000)
    await driven.classic_sync(joined)
    for _ in range(2):
        await asyncio.sleep(5.5)
        driven.classic_heartbeat(joined)
    await asyncio.sleep(1.1)
    group = classic_group(driven.coordinator)
    assert group.state is GroupState.PREPARING_REBALANCE
    await asyncio.sleep(9.8)
    assert group.state is GroupState.PREPARING_REBALANCE
    await asyncio.sleep(0.2)
    assert group.state is GroupState.EMPTY
    await driven.close()


@pytest.mark.parametrize(("max_size", "is_classic"), [(1, True), (0, False)])
async def test_group_whose_last_static_member_changes_back_is_stable_at_once(
    max_size: int, is_classic: bool
) -> None:
    driven = Driven(ConsumerGroupSettings(classic_max_size=max_size))
    driven.join("a", instance_id="one")
    joined = await driven.classic_join(instance_id="one")
    if is_classic:
        assert classic_group(driven.coordinator).state is GroupState.STABLE
    else:
        assert driven.state == "Stable"
    synced = await driven.classic_sync(joined, instance_id="one")
    assert assigned_by(synced) == [0, 1, 2, 3]
    assert driven.classic_heartbeat(joined, "one") is NoError
    await driven.close()
