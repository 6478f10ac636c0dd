"""Joining, syncing, heartbeats, leaving: the same answers from this broker and from Kafka 4.3."""

from __future__ import annotations

import asyncio

import pytest

from aiokafka_lite import errors
from tests.support.cluster import KafkaHandle
from tests.support.group_requests import GroupRequests, MemberOf, subscription

NONE = 0
UNKNOWN_SERVER_ERROR = -1
ILLEGAL_GENERATION = errors.IllegalGenerationError.errno
INCONSISTENT_GROUP_PROTOCOL = errors.InconsistentGroupProtocolError.errno
INVALID_GROUP_ID = errors.InvalidGroupIdError.errno
UNKNOWN_MEMBER_ID = errors.UnknownMemberIdError.errno
INVALID_SESSION_TIMEOUT = errors.InvalidSessionTimeoutError.errno
REBALANCE_IN_PROGRESS = errors.RebalanceInProgressError.errno
MEMBER_ID_REQUIRED = errors.MemberIdRequired.errno
FENCED_INSTANCE_ID = errors.FencedInstanceIdError.errno

NOBODY = MemberOf("nobody", 1)


# -- join ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4))
async def test_old_join_needs_no_id(group: GroupRequests, version: int) -> None:
    joined = await group.join(version=version)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (NONE, 1, "range")
    assert joined.leader == joined.member_id
    assert joined.member_id.startswith("raw-")
    assert [member.member_id for member in joined.members] == [joined.member_id]


@pytest.mark.parametrize("version", range(4, 10))
async def test_join_without_an_id_gets_one(group: GroupRequests, version: int) -> None:
    refused = await group.join(version=version)
    assert (refused.error_code, refused.generation_id) == (MEMBER_ID_REQUIRED, -1)
    assert refused.protocol_name == (None if version >= 7 else "")
    assert (refused.leader, refused.members) == ("", [])
    joined = await group.join(refused.member_id, version=version)
    assert (joined.error_code, joined.generation_id) == (NONE, 1)
    assert joined.leader == joined.member_id == refused.member_id
    assert joined.protocol_type == ("consumer" if version >= 7 else None)
    assert not joined.skip_assignment
    (listed,) = joined.members
    assert (listed.group_instance_id, bytes(listed.metadata)) == (None, subscription("some-topic"))


async def test_group_exists_from_the_first_join_on(group: GroupRequests) -> None:
    await group.join()
    # Kafka lists what is in its log's committed part, which follows a moment later.
    for _ in range(200):
        if (listed := await group.listed()) is not None:
            break
        await asyncio.sleep(0.05)
    assert listed is not None
    assert (listed.group_state, listed.protocol_type) == ("Empty", "")


@pytest.mark.parametrize(
    ("session_ms", "error"),
    [
        (5_999, INVALID_SESSION_TIMEOUT),
        (6_000, MEMBER_ID_REQUIRED),
        (1_800_000, MEMBER_ID_REQUIRED),
        (1_800_001, INVALID_SESSION_TIMEOUT),
    ],
)
async def test_session_timeout_has_bounds(
    group: GroupRequests, session_ms: int, error: int
) -> None:
    assert (await group.join(session_ms=session_ms)).error_code == error


async def test_refused_session_timeout_echoes_the_id(group: GroupRequests) -> None:
    refused = await group.join("me", session_ms=1)
    assert (refused.error_code, refused.member_id) == (INVALID_SESSION_TIMEOUT, "me")


@pytest.mark.parametrize("api", ["join", "sync", "heartbeat", "leave"])
async def test_empty_group_id_is_invalid(cluster: KafkaHandle, api: str) -> None:
    group = GroupRequests(cluster, "")
    if api == "join":
        error = (await group.join()).error_code
    elif api == "sync":
        error = (await group.sync(NOBODY)).error_code
    elif api == "heartbeat":
        error = await group.heartbeat(NOBODY)
    else:
        error = (await group.leave(("nobody", None))).error_code
    assert error == INVALID_GROUP_ID


async def test_join_with_an_unknown_id_creates_no_group(group: GroupRequests) -> None:
    refused = await group.join("nobody")
    assert (refused.error_code, refused.member_id) == (UNKNOWN_MEMBER_ID, "nobody")
    assert await group.listed() is None


async def test_join_with_an_unknown_id_is_refused_by_a_stable_group(group: GroupRequests) -> None:
    await group.member()
    refused = await group.join("nobody")
    assert (refused.error_code, refused.member_id) == (UNKNOWN_MEMBER_ID, "nobody")


@pytest.mark.parametrize(("protocol_type", "protocols"), [("", [("range", b"")]), ("consumer", [])])
async def test_join_without_a_protocol_is_inconsistent(
    group: GroupRequests, protocol_type: str, protocols: list[tuple[str, bytes]]
) -> None:
    refused = await group.join(protocol_type=protocol_type, protocols=protocols)
    assert (refused.error_code, refused.member_id) == (INCONSISTENT_GROUP_PROTOCOL, "")


@pytest.mark.parametrize(
    ("protocol_type", "protocols"), [("connect", [("range", b"")]), ("consumer", [("x", b"")])]
)
async def test_join_that_fits_no_member_is_inconsistent(
    group: GroupRequests, protocol_type: str, protocols: list[tuple[str, bytes]]
) -> None:
    member = await group.member()
    refused = await group.join(protocol_type=protocol_type, protocols=protocols)
    assert refused.error_code == INCONSISTENT_GROUP_PROTOCOL
    assert await group.heartbeat(member) == NONE


async def test_rebalance_whose_members_all_left_takes_any_protocol(group: GroupRequests) -> None:
    for _ in range(2):
        first = await group.member()
        pending = await group.join()
        joining = asyncio.create_task(group.join_with_id())
        await group.until_state("PreparingRebalance")
        assert (await group.leave((first.member_id, None))).error_code == NONE
        second = (await group.describe()).members[0].member_id
        assert (await group.leave((second, None))).error_code == NONE
        assert (await joining).error_code == UNKNOWN_MEMBER_ID
        described = await group.describe()
        assert (described.group_state, described.members) == ("PreparingRebalance", [])
        other = [("of-nobody-before", b"")]
        refused = await group.join(pending.member_id, protocol_type="connect", protocols=other)
        assert refused.error_code == INCONSISTENT_GROUP_PROTOCOL  # the type stays the group's
        refused = await group.join(pending.member_id, protocols=[])
        assert refused.error_code == INCONSISTENT_GROUP_PROTOCOL
        joined = await group.join(pending.member_id, protocols=other)
        assert (joined.error_code, joined.protocol_name) == (NONE, "of-nobody-before")
        assert joined.leader == joined.member_id
        await group.leave((joined.member_id, None))


async def test_pending_id_with_an_instance_id_is_refused(group: GroupRequests) -> None:
    pending = await group.join()
    refused = await group.join(pending.member_id, instance_id="static")
    assert refused.error_code == UNKNOWN_SERVER_ERROR


async def test_members_vote_and_the_leader_gets_what_they_say(group: GroupRequests) -> None:
    first = await group.member(protocols=[("a", b"a1"), ("b", b"b1")])
    second = asyncio.create_task(group.join_with_id(protocols=[("b", b"b2"), ("a", b"a2")]))
    await group.until_state("PreparingRebalance")
    third = await group.join(protocols=[("b", b"b3")])
    assert third.error_code == MEMBER_ID_REQUIRED
    third_joined = asyncio.create_task(group.join(third.member_id, protocols=[("b", b"b3")]))
    leader = await group.join(first.member_id, protocols=[("a", b"a1"), ("b", b"b1")])
    followers = [await second, await third_joined]
    assert {answer.protocol_name for answer in (leader, *followers)} == {"b"}
    assert {bytes(member.metadata) for member in leader.members} == {b"b1", b"b2", b"b3"}
    assert {answer.leader for answer in followers} == {leader.member_id}
    assert [answer.members for answer in followers] == [[], []]
    assert {answer.generation_id for answer in (leader, *followers)} == {2}


async def test_leader_that_joins_again_starts_a_generation(group: GroupRequests) -> None:
    member = await group.member()
    joined = await group.join(member.member_id)
    assert (joined.error_code, joined.generation_id) == (NONE, 2)


async def test_join_is_answered_again_before_the_assignment(group: GroupRequests) -> None:
    joined = await group.join_with_id()
    again = await group.join(joined.member_id)
    assert again == joined


# -- sync, heartbeat ---------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
async def test_sync_in_every_version(group: GroupRequests, version: int) -> None:
    joined = await group.join_with_id()
    member = MemberOf(joined.member_id, joined.generation_id)
    named = {} if version >= 5 else {"protocol_type": None, "protocol": None}
    synced = await group.sync(member, {member.member_id: b"x"}, version=version, **named)
    assert (synced.error_code, bytes(synced.assignment)) == (NONE, b"x")
    assert synced.protocol_name == ("range" if version >= 5 else None)
    again = await group.sync(member, version=version, **named)
    assert bytes(again.assignment) == b"x"


async def test_sync_errors(group: GroupRequests) -> None:
    assert (await group.sync(NOBODY)).error_code == UNKNOWN_MEMBER_ID
    member = await group.member()
    assert (await group.sync(NOBODY)).error_code == UNKNOWN_MEMBER_ID
    late = member._replace(generation=9)
    assert (await group.sync(late)).error_code == ILLEGAL_GENERATION
    wrong = await group.sync(member, protocol="sticky")
    assert (wrong.error_code, bytes(wrong.assignment)) == (INCONSISTENT_GROUP_PROTOCOL, b"")
    wrong = await group.sync(member, protocol_type="connect")
    assert wrong.error_code == INCONSISTENT_GROUP_PROTOCOL
    unnamed = await group.sync(member, protocol=None)
    assert unnamed.error_code == INCONSISTENT_GROUP_PROTOCOL


async def test_followers_wait_for_the_leader_and_forgotten_ones_get_nothing(
    group: GroupRequests,
) -> None:
    first = await group.member()
    joining = asyncio.create_task(group.join_with_id())
    await group.until_state("PreparingRebalance")
    leader = await group.join(first.member_id)
    follower = await joining
    waiting = asyncio.create_task(group.sync(MemberOf(follower.member_id, 2)))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    await group.sync(MemberOf(leader.member_id, 2), {leader.member_id: b"all"})
    synced = await waiting
    assert (synced.error_code, bytes(synced.assignment)) == (NONE, b"")


@pytest.mark.parametrize("version", range(5))
async def test_heartbeat_in_every_version(group: GroupRequests, version: int) -> None:
    assert await group.heartbeat(NOBODY, version=version) == UNKNOWN_MEMBER_ID
    member = await group.member()
    assert await group.heartbeat(member, version=version) == NONE
    assert await group.heartbeat(member._replace(generation=0), version=version) == (
        ILLEGAL_GENERATION
    )
    assert await group.heartbeat(NOBODY, version=version) == UNKNOWN_MEMBER_ID


async def test_heartbeat_is_accepted_before_the_assignment(group: GroupRequests) -> None:
    joined = await group.join_with_id()
    assert await group.heartbeat(MemberOf(joined.member_id, joined.generation_id)) == NONE


async def test_members_are_told_of_a_rebalance(group: GroupRequests) -> None:
    member = await group.member()
    joining = asyncio.create_task(group.join_with_id())
    await group.until_state("PreparingRebalance")
    assert await group.heartbeat(member) == REBALANCE_IN_PROGRESS
    assert (await group.sync(member)).error_code == REBALANCE_IN_PROGRESS
    assert (await group.leave((member.member_id, None))).members[0].error_code == NONE
    joined = await joining
    assert (joined.generation_id, joined.leader) == (2, joined.member_id)


# -- leaving -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
async def test_one_member_leaves(group: GroupRequests, version: int) -> None:
    member = await group.member()
    leaver = (member.member_id, None)
    assert (await group.leave(leaver, version=version)).error_code == NONE
    assert (await group.leave(leaver, version=version)).error_code == UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(3, 6))
async def test_several_members_leave(group: GroupRequests, version: int) -> None:
    member = await group.member("one")
    answer = await group.leave(("nobody", None), ("", "one"), ("", "two"), version=version)
    assert answer.error_code == NONE
    assert [(m.member_id, m.group_instance_id, m.error_code) for m in answer.members] == [
        ("nobody", None, UNKNOWN_MEMBER_ID),
        ("", "one", NONE),
        ("", "two", UNKNOWN_MEMBER_ID),
    ]
    assert await group.heartbeat(member) == UNKNOWN_MEMBER_ID


async def test_leaving_an_unknown_group(group: GroupRequests) -> None:
    answer = await group.leave(("nobody", None))
    assert answer.error_code == NONE
    assert [member.error_code for member in answer.members] == [UNKNOWN_MEMBER_ID]


async def test_pending_member_leaves(group: GroupRequests) -> None:
    pending = await group.join()
    answer = await group.leave((pending.member_id, None))
    assert answer.members[0].error_code == NONE
    assert (await group.join(pending.member_id)).error_code == UNKNOWN_MEMBER_ID


async def test_emptied_group_starts_again_with_the_next_generation(group: GroupRequests) -> None:
    member = await group.member()
    await group.leave((member.member_id, None))
    listed = await group.listed()
    assert listed is not None
    assert (listed.group_state, listed.protocol_type) == ("Empty", "consumer")
    assert (await group.member()).generation == 3


async def test_member_that_leaves_while_joining_is_told(group: GroupRequests) -> None:
    await group.member()
    pending = await group.join()
    joining = asyncio.create_task(group.join(pending.member_id))
    await group.until_state("PreparingRebalance")
    await group.leave((pending.member_id, None))
    joined = await joining
    assert (joined.error_code, joined.member_id) == (UNKNOWN_MEMBER_ID, "")


@pytest.mark.slow
async def test_silent_member_is_removed_and_the_others_rejoin(group: GroupRequests) -> None:
    pending = await group.join(session_ms=6_000)
    joined = await group.join(pending.member_id, session_ms=6_000)
    silent = MemberOf(joined.member_id, joined.generation_id)
    await group.sync(silent, {silent.member_id: b"all"})
    loop = asyncio.get_running_loop()
    begin = loop.time()
    newcomer = await group.join_with_id()  # waits for the silent one
    assert 5.5 < loop.time() - begin < 8
    assert (newcomer.error_code, newcomer.generation_id, len(newcomer.members)) == (NONE, 2, 1)
    assert await group.heartbeat(silent) == UNKNOWN_MEMBER_ID


# -- static members ---------------------------------------------------------------------------


async def test_static_member_joins_at_once(group: GroupRequests) -> None:
    joined = await group.join(instance_id="one")
    assert (joined.error_code, joined.generation_id) == (NONE, 1)
    assert joined.member_id.startswith("one-")
    assert joined.members[0].group_instance_id == "one"


@pytest.mark.parametrize("version", [5, 8, 9])
async def test_static_member_comes_back_without_a_rebalance(
    group: GroupRequests, version: int
) -> None:
    old = await group.member("one")
    back = await group.join(instance_id="one", version=version)
    assert (back.error_code, back.generation_id) == (NONE, 1)
    assert back.member_id != old.member_id
    if version >= 9:
        assert (back.leader, back.skip_assignment) == (back.member_id, True)
        assert len(back.members) == 1
    else:
        assert (back.leader, back.members) == (old.member_id, [])
    new = MemberOf(back.member_id, 1, "one")
    assert bytes((await group.sync(new)).assignment) == b"all"
    assert await group.heartbeat(new) == NONE


async def test_old_id_of_a_static_member_is_fenced(group: GroupRequests) -> None:
    old = await group.member("one")
    await group.join(instance_id="one")
    assert await group.heartbeat(old) == FENCED_INSTANCE_ID
    assert (await group.sync(old)).error_code == FENCED_INSTANCE_ID
    fenced = await group.join(old.member_id, instance_id="one")
    assert (fenced.error_code, fenced.protocol_name) == (FENCED_INSTANCE_ID, None)
    left = await group.leave((old.member_id, "one"))
    assert left.members[0].error_code == FENCED_INSTANCE_ID
    assert await group.heartbeat(old._replace(instance_id=None)) == UNKNOWN_MEMBER_ID


async def test_unknown_instance_is_an_unknown_member(group: GroupRequests) -> None:
    member = await group.member("one")
    stranger = member._replace(instance_id="two")
    assert await group.heartbeat(stranger) == UNKNOWN_MEMBER_ID
    assert (await group.sync(stranger)).error_code == UNKNOWN_MEMBER_ID
    assert (await group.join(member.member_id, instance_id="two")).error_code == UNKNOWN_MEMBER_ID


async def test_static_member_that_comes_back_during_a_join_fences_its_older_self(
    group: GroupRequests,
) -> None:
    member = await group.member("one")
    joining = asyncio.create_task(group.join(instance_id="two"))
    await group.until_state("PreparingRebalance")
    again = asyncio.create_task(group.join(instance_id="two"))
    fenced = await joining
    assert fenced.error_code == FENCED_INSTANCE_ID
    leader = await group.join(member.member_id, instance_id="one")
    assert len(leader.members) == 2
    assert (await again).generation_id == leader.generation_id == 2
