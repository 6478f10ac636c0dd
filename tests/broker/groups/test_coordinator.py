"""GroupCoordinator and OffsetManager on a log in memory: timers, replay, failures, loading."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from aiokafka_lite import errors
from aiokafka_lite.broker.groups.classic.machine import GroupState
from aiokafka_lite.broker.groups.classic.members import Join
from aiokafka_lite.broker.groups.coordinator import GroupCoordinator
from aiokafka_lite.broker.groups.coordinator_log import CoordinatorLog, CoordinatorRecord
from aiokafka_lite.broker.groups.kip848.group import ConsumerGroup
from aiokafka_lite.broker.groups.offsets import (
    NOTHING_COMMITTED,
    Committer,
    OffsetCommitEntry,
    offset_key,
)
from aiokafka_lite.broker.log.producers import ProducerIdentity
from aiokafka_lite.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    IllegalGenerationError,
    KafkaStorageError,
    MemberIdRequired,
    NoError,
    NotCoordinatorError,
    OffsetMetadataTooLargeError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from aiokafka_lite.protocol.messages.coordinator_records import GroupMetadataValue, MemberMetadata
from aiokafka_lite.protocol.messages.group_members import JoinGroupResponse
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.structs import TopicPartition
from tests.broker.groups.committing import TOPIC_ID, TP, commit
from tests.broker.groups.fakes import (
    Services,
    classic_group,
    elect_all,
    leaver,
    run_in_virtual_time,
    sync_call,
    unused_group,
)


@pytest.fixture
async def services() -> AsyncIterator[Services]:
    services = Services()
    yield services
    await services.scope.close()


async def started(services: Services) -> GroupCoordinator:
    coordinator = GroupCoordinator(services)
    elect_all(coordinator, services)
    return coordinator


@pytest.fixture
async def coordinator(services: Services) -> AsyncIterator[GroupCoordinator]:
    coordinator = await started(services)
    yield coordinator
    await coordinator.close()


def a_join(member_id: str = "", *, instance_id: str | None = None, ms: int = 60_000) -> Join:
    return Join(
        protocol_type="consumer",
        protocols=(("range", b"\x00\x00" + b"\x00" * 8),),
        session_timeout_ms=ms,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        instance_id=instance_id,
        needs_known_member_id=False,
    )


async def stable(
    coordinator: GroupCoordinator, *, instance_id: str | None = None, ms: int = 60_000
) -> JoinGroupResponse:
    joined = await coordinator.join("g", a_join(instance_id=instance_id, ms=ms))
    sync = sync_call(joined.member_id, joined.generation_id, assignments={joined.member_id: b"all"})
    assert (await coordinator.sync(sync)).assignment == b"all"
    return joined


async def successor(services: Services) -> GroupCoordinator:
    """A coordinator that reads what another has left in the log."""
    coordinator = GroupCoordinator(services)
    elect_all(coordinator, services)
    await coordinator.until_loaded()
    return coordinator


# -- offsets -----------------------------------------------------------------------------------


async def test_commit_is_in_the_log_before_the_cache(
    coordinator: GroupCoordinator, services: Services
) -> None:
    services.partition("", coordinator.partition_for("g")).failure = OSError("disk full")
    assert commit(coordinator) is NotCoordinatorError
    assert coordinator.offsets.fetch("g", TP, ZERO_UUID) is NOTHING_COMMITTED
    assert "g" not in coordinator.groups
    services.partition("", coordinator.partition_for("g")).failure = None
    assert commit(coordinator) is NoError
    assert coordinator.offsets.fetch("g", TP, ZERO_UUID).offset == 5


async def test_fetch_before_a_commit_by_another_topic_id_gives_nothing(
    coordinator: GroupCoordinator,
) -> None:
    commit(coordinator)
    assert coordinator.offsets.fetch("g", TP, TOPIC_ID).offset == 5
    assert coordinator.offsets.fetch("g", TP, b"\x08" * 16) is NOTHING_COMMITTED


async def test_retention_asked_for_is_kept(
    coordinator: GroupCoordinator, services: Services
) -> None:
    for retention_ms in (500, 0):
        commit(coordinator, retention_ms=retention_ms)
        expires_ms = coordinator.offsets.fetch("g", TP, ZERO_UUID).expire_timestamp
        assert expires_ms == services.now_ms + retention_ms
    commit(coordinator)
    assert coordinator.offsets.fetch("g", TP, ZERO_UUID).expire_timestamp == -1


async def test_metadata_that_is_too_long_refuses_only_its_own_offset(
    coordinator: GroupCoordinator,
) -> None:
    offsets = [
        OffsetCommitEntry(TopicPartition("t", index), TOPIC_ID, 5, -1, metadata)
        for index, metadata in enumerate(["x" * 4097, "m"])
    ]
    results = coordinator.commit("g", offsets, Committer())
    assert results == [OffsetMetadataTooLargeError, NoError]
    assert coordinator.offsets.fetch("g", TopicPartition("t", 1), ZERO_UUID).offset == 5


async def test_deletion_that_cannot_be_stored_deletes_nothing(
    coordinator: GroupCoordinator, services: Services
) -> None:
    commit(coordinator)
    services.partition("", coordinator.partition_for("g")).failure = OSError("disk full")
    assert coordinator.delete_offsets("g", [TP]) == (NotCoordinatorError, ())
    assert coordinator.delete("g") is NotCoordinatorError
    assert coordinator.offsets.fetch("g", TP, ZERO_UUID).offset == 5


async def test_join_that_cannot_be_stored_makes_no_group(
    coordinator: GroupCoordinator, services: Services
) -> None:
    services.partition("", coordinator.partition_for("g")).failure = OSError("disk full")
    assert (await coordinator.join("g", a_join())).error_code == NotCoordinatorError.errno
    assert "g" not in coordinator.groups


async def test_tombstones_that_compaction_has_left_make_no_group(
    services: Services,
) -> None:
    log = CoordinatorLog(
        lambda index: services.partition("", index), partition_count=lambda: 2, clock=services.clock
    )
    log.append("g", [CoordinatorRecord(offset_key("g", TP), None)])
    log.append("h", ConsumerGroup("h").member_tombstones("m"))
    heir = await successor(services)
    assert not heir.groups
    await heir.close()


@pytest.mark.parametrize(
    ("committer", "is_empty", "error"),
    [
        (Committer(), False, NoError),
        (Committer("", None, 0), False, UnknownMemberIdError),
        (Committer("", "one", -1), False, UnknownMemberIdError),
        (Committer("m", None, -1), False, UnknownMemberIdError),
        (Committer("m", None, -1), True, NoError),
        (Committer("m", None, 0), True, UnknownMemberIdError),
        (Committer("m", None, 0), None, IllegalGenerationError),
        (Committer("m", None, -1), None, NoError),
    ],
)
async def test_committer_of_a_transaction_is_checked_as_far_as_it_is_named(
    coordinator: GroupCoordinator,
    committer: Committer,
    is_empty: bool | None,
    error: type[errors.BrokerResponseError],
) -> None:
    if is_empty is not None:
        joined = await stable(coordinator)
        if is_empty:
            coordinator.leave("g", [leaver(joined.member_id)])
    item = OffsetCommitEntry(TP, TOPIC_ID, 5, -1, "")
    producer = ProducerIdentity(7, 0)
    assert coordinator.commit_in_transaction("g", [item], producer, committer) == [error]


async def test_deleted_topic_takes_its_offsets_along_but_not_its_namesakes(
    coordinator: GroupCoordinator,
) -> None:
    commit(coordinator)
    commit(coordinator, group_id="other", topic_id=b"\x08" * 16)
    commit(coordinator, group_id="unsaid", topic_id=ZERO_UUID)
    coordinator.topic_deleted("t", TOPIC_ID)
    offsets = [coordinator.offsets.fetch(g, TP, ZERO_UUID).offset for g in ("g", "other", "unsaid")]
    assert offsets == [-1, 5, -1]


async def test_successor_has_the_same_offsets(
    coordinator: GroupCoordinator, services: Services
) -> None:
    for number in range(20):
        commit(coordinator, number, group_id=f"g{number}")
    commit(coordinator, 99, group_id="g3")
    coordinator.delete_offsets("g4", [TP])
    coordinator.delete("g5")
    heir = await successor(services)
    for number in range(20):
        expected = {3: 99, 4: -1, 5: -1}.get(number, number)
        assert heir.offsets.fetch(f"g{number}", TP, ZERO_UUID).offset == expected
    assert set(heir.groups) == set(coordinator.groups)
    assert "g5" not in heir.groups
    await heir.close()


async def test_nothing_is_promised_before_there_is_a_log(services: Services) -> None:
    coordinator = GroupCoordinator(services)
    assert coordinator.availability("g") is NotCoordinatorError
    assert commit(coordinator) is NotCoordinatorError
    elect_all(coordinator, services)
    assert commit(coordinator) is NoError
    await coordinator.close()


# -- loading -----------------------------------------------------------------------------------


async def test_requests_are_refused_while_the_log_is_read(
    coordinator: GroupCoordinator, services: Services
) -> None:
    commit(coordinator)
    joined = await stable(coordinator)
    heir = GroupCoordinator(services)
    elect_all(heir, services)
    assert heir.availability("g") is CoordinatorLoadInProgressError
    assert commit(heir) is CoordinatorLoadInProgressError
    assert (await heir.join("g", a_join())).error_code == CoordinatorLoadInProgressError.errno
    assert (await heir.sync(sync_call("m", 1))).error_code == CoordinatorLoadInProgressError.errno
    assert heir.leave("g", [leaver("m")]) == (CoordinatorLoadInProgressError, [])
    assert heir.delete("g") is CoordinatorLoadInProgressError
    assert heir.delete_offsets("g", [TP])[0] is CoordinatorLoadInProgressError
    # A heartbeat cannot be wrong yet: sessions start when the log has been read.
    assert heir.heartbeat("g", "whoever", None, 9) is NoError
    await heir.until_loaded()
    assert heir.offsets.fetch("g", TP, ZERO_UUID).offset == 5
    assert heir.heartbeat("g", joined.member_id, None, 1) is NoError
    await heir.close()


async def test_groups_without_records_are_served_at_once(
    coordinator: GroupCoordinator, services: Services
) -> None:
    commit(coordinator, group_id="g")
    other = next(
        name
        for name in map(str, range(99))
        if coordinator.partition_for(name) != coordinator.partition_for("g")
    )
    heir = GroupCoordinator(services)
    elect_all(heir, services)
    assert heir.availability(other) is NoError
    assert heir.availability("g") is CoordinatorLoadInProgressError
    await heir.close()


async def test_damaged_log_is_not_served(services: Services) -> None:
    writer = await started(services)
    commit(writer)
    partition = services.partition("", writer.partition_for("g"))
    offset, batch = partition.batches[0]
    partition.batches[0] = (offset, batch[:-1] + bytes([batch[-1] ^ 1]))
    heir = GroupCoordinator(services)
    elect_all(heir, services)
    with pytest.raises(errors.CorruptRecordException):
        await heir.until_loaded()
    assert isinstance(services.scope.failure, errors.CorruptRecordException)
    assert heir.availability("g") is CoordinatorLoadInProgressError
    await heir.close()
    await writer.close()


async def test_successor_restores_members_and_their_sessions(
    coordinator: GroupCoordinator, services: Services
) -> None:
    joined = await stable(coordinator, instance_id="one")
    heir = await successor(services)
    group = classic_group(heir)
    assert (group.state, group.generation, group.protocol) == (GroupState.STABLE, 1, "range")
    assert group.members.leader_id == joined.member_id
    assert heir.heartbeat("g", joined.member_id, "one", 1) is NoError
    synced = await heir.sync(sync_call(joined.member_id, 1, "one"))
    assert synced.assignment == b"all"
    back = await heir.join("g", a_join(instance_id="one"))
    assert (back.generation_id, back.skip_assignment) == (1, True)
    await heir.close()


def test_restored_member_that_does_not_return_is_removed() -> None:
    async def scenario() -> None:
        services = Services()
        coordinator = await started(services)
        await stable(coordinator, ms=10_000)
        heir = await successor(services)
        await coordinator.close()
        await asyncio.sleep(9.9)
        assert heir.groups["g"].state is GroupState.STABLE
        await asyncio.sleep(0.2)
        assert heir.groups["g"].state is GroupState.EMPTY
        await heir.close()
        await services.scope.close()

    run_in_virtual_time(scenario())


# -- members ------------------------------------------------------------------------------------


def test_session_ends_by_the_loops_time() -> None:
    async def scenario() -> None:
        services = Services()
        coordinator = await started(services)
        joined = await stable(coordinator, ms=10_000)
        for _ in range(5):
            await asyncio.sleep(9)
            assert coordinator.heartbeat("g", joined.member_id, None, 1) is NoError
        await asyncio.sleep(9.9)
        assert coordinator.groups["g"].state is GroupState.STABLE
        await asyncio.sleep(0.2)
        assert coordinator.groups["g"].state is GroupState.EMPTY
        assert coordinator.heartbeat("g", joined.member_id, None, 1) is UnknownMemberIdError
        await coordinator.close()
        await services.scope.close()

    run_in_virtual_time(scenario())


def test_rebalance_ends_without_those_who_do_not_join() -> None:
    async def scenario() -> None:
        services = Services()
        coordinator = await started(services)
        gone = await stable(coordinator, ms=300_000)
        loop = asyncio.get_running_loop()
        begin = loop.time()
        joined = await coordinator.join("g", a_join())
        assert loop.time() - begin == pytest.approx(60, abs=0.1)  # the rebalance timeout
        assert [member.member_id for member in joined.members] == [joined.member_id]
        assert coordinator.heartbeat("g", gone.member_id, None, 2) is UnknownMemberIdError
        await coordinator.close()
        await services.scope.close()

    run_in_virtual_time(scenario())


async def test_cancelled_join_leaves_nothing_parked(coordinator: GroupCoordinator) -> None:
    joined = await stable(coordinator)
    waiting = asyncio.create_task(coordinator.join("g", a_join()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert asyncio.all_tasks() == {asyncio.current_task()}
    _, follower = await asyncio.gather(*(coordinator.join("h", a_join()) for _ in range(2)))
    syncing = asyncio.create_task(coordinator.sync(sync_call(follower.member_id, 1, group_id="h")))
    await asyncio.sleep(0)
    syncing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await syncing
    assert asyncio.all_tasks() == {asyncio.current_task()}
    newcomer = next(
        m.member_id
        for m in classic_group(coordinator).members.values()
        if m.member_id != joined.member_id
    )
    assert coordinator.leave("g", [leaver(newcomer)]) == (NoError, [NoError])


async def test_member_ids_come_from_the_injected_randomness() -> None:
    answers = []
    for _ in range(2):
        services = Services()
        coordinator = await started(services)
        joined = await coordinator.join("g", a_join(instance_id="one"))
        answers.append(joined.member_id)
        await coordinator.close()
        await services.scope.close()
    assert answers[0] == answers[1]
    assert uuid.UUID(answers[0].removeprefix("one-")).version == 4


async def test_assignment_that_cannot_be_stored_is_not_handed_out(
    coordinator: GroupCoordinator, services: Services
) -> None:
    joined = await coordinator.join("g", a_join())
    partition = services.partition("", coordinator.partition_for("g"))
    partition.failure = KafkaStorageError("no")
    sync = sync_call(joined.member_id, 1, assignments={joined.member_id: b"all"})
    assert (await coordinator.sync(sync)).error_code == NotCoordinatorError.errno
    error = coordinator.heartbeat("g", joined.member_id, None, 1)
    assert error is RebalanceInProgressError


async def test_close_answers_what_is_parked(coordinator: GroupCoordinator) -> None:
    await stable(coordinator)
    waiting = asyncio.create_task(coordinator.join("g", a_join()))
    await asyncio.sleep(0)
    await coordinator.close()
    assert (await waiting).error_code == NotCoordinatorError.errno
    assert (await coordinator.join("g", a_join())).error_code == CoordinatorNotAvailableError.errno
    assert coordinator.heartbeat("g", "m", None, 1) is CoordinatorNotAvailableError
    await coordinator.close()


async def test_pending_id_is_asked_for_when_the_client_can(coordinator: GroupCoordinator) -> None:
    call = Join("consumer", (("range", b""),), 60_000, 60_000)
    joined = await coordinator.join("g", call)
    assert joined.error_code == MemberIdRequired.errno


async def test_group_whose_first_member_has_not_joined_yet_starts_with_the_first_generation(
    coordinator: GroupCoordinator, services: Services
) -> None:
    await coordinator.join("g", Join("consumer", (("range", b""),), 60_000, 60_000))
    heir = await successor(services)
    assert (await stable(heir)).generation_id == 1
    await heir.close()


async def test_closed_coordinator_forgets_no_offsets(
    coordinator: GroupCoordinator, services: Services
) -> None:
    commit(coordinator)
    await coordinator.close()
    services.now_ms += 10_000
    for _ in coordinator.expire_offsets(1):
        pass
    assert coordinator.offsets.fetch("g", TP, ZERO_UUID).offset == 5


@pytest.mark.parametrize(("stored_ms", "timeout_ms"), [(-1, 60_000), (0, 0), (7, 7)])
def test_member_of_an_old_record_has_its_session_timeout_to_rejoin(
    stored_ms: int, timeout_ms: int
) -> None:
    group = unused_group()
    member = MemberMetadata(
        member_id="m",
        client_id="c",
        client_host="/h",
        rebalance_timeout=stored_ms,
        session_timeout=60_000,
        subscription=b"",
        assignment=b"",
    )
    value = GroupMetadataValue(
        protocol_type="consumer", generation=1, protocol="p", leader="m", members=[member]
    )
    group.restore(value)
    assert group.members["m"].rebalance_timeout_ms == timeout_ms
