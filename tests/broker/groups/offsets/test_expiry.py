"""Committed offsets lapse, and groups go with them; in invented wall-clock time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.groups.classic.members import GroupClient, Join
from aiokafka_lite.broker.groups.coordinator import GroupCoordinator
from aiokafka_lite.broker.groups.coordinator_log import decode_record
from aiokafka_lite.broker.groups.offsets import (
    NOTHING_COMMITTED,
    Committer,
    OffsetCommitEntry,
)
from aiokafka_lite.broker.log.producers import ProducerIdentity
from aiokafka_lite.errors import GroupSubscribedToTopicError, NoError
from aiokafka_lite.protocol.codec import encode_versioned
from aiokafka_lite.protocol.messages.coordinator_records import GroupMetadataKey
from aiokafka_lite.protocol.messages.group_members import (
    ConsumerGroupHeartbeatRequest,
    ConsumerProtocolSubscription,
)
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.records import decode_all
from aiokafka_lite.structs import TopicPartition
from tests.broker.groups.committing import commit
from tests.broker.groups.fakes import Services, elect_all, leaver, sync_call

RETENTION_MS = 10_000
CONSUMED, LEFT = TopicPartition("consumed", 0), TopicPartition("left", 3)
SUBSCRIPTION = encode_versioned(ConsumerProtocolSubscription(topics=[CONSUMED.topic]), 0)


@pytest.fixture
async def services() -> AsyncIterator[Services]:
    services = Services()
    yield services
    await services.scope.close()


@pytest.fixture
async def coordinator(services: Services) -> AsyncIterator[GroupCoordinator]:
    coordinator = GroupCoordinator(services)
    elect_all(coordinator, services)
    yield coordinator
    await coordinator.close()


def expire(coordinator: GroupCoordinator) -> None:
    for _ in coordinator.expire_offsets(RETENTION_MS):
        pass


def known(coordinator: GroupCoordinator, *tps: TopicPartition, group_id: str = "g") -> list[bool]:
    return [
        coordinator.offsets.fetch(group_id, tp, ZERO_UUID) is not NOTHING_COMMITTED for tp in tps
    ]


def heartbeat(group_id: str, topic: str) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id=group_id,
        member_id="m",
        rebalance_timeout_ms=9,
        subscribed_topic_names=[topic],
        topic_partitions=[],
    )


async def member(
    coordinator: GroupCoordinator,
    *,
    protocol_type: str = "consumer",
    tps: Sequence[TopicPartition] = (CONSUMED, LEFT),
    metadata: bytes = SUBSCRIPTION,
) -> str:
    """Join as the only member, which consumes one topic; return its id."""
    joined = await coordinator.join(
        "g",
        Join(
            protocol_type=protocol_type,
            protocols=(("range", metadata),),
            session_timeout_ms=60_000,
            rebalance_timeout_ms=60_000,
            member_id="",
            instance_id=None,
            needs_known_member_id=False,
        ),
    )
    sync = sync_call(joined.member_id, joined.generation_id, assignments={joined.member_id: b""})
    await coordinator.sync(sync)
    for tp in tps:
        item = OffsetCommitEntry(tp, ZERO_UUID, 5, -1, "m")
        coordinator.commit("g", [item], Committer(joined.member_id, None, joined.generation_id))
    return joined.member_id


async def test_what_nobody_is_a_member_for_lapses_after_the_commit(
    coordinator: GroupCoordinator, services: Services
) -> None:
    commit(coordinator, tp=CONSUMED)
    services.now_ms += 4_000
    commit(coordinator, tp=LEFT)
    services.now_ms += RETENTION_MS - 4_001
    expire(coordinator)
    assert known(coordinator, CONSUMED, LEFT) == [True, True]
    services.now_ms += 1
    expire(coordinator)
    assert known(coordinator, CONSUMED, LEFT) == [False, True]
    assert "g" in coordinator.groups
    services.now_ms += 4_000
    expire(coordinator)
    assert "g" not in coordinator.groups


async def test_time_that_a_client_asked_for_counts_instead(
    coordinator: GroupCoordinator, services: Services
) -> None:
    commit(coordinator, tp=CONSUMED, retention_ms=500)
    commit(coordinator, tp=LEFT, retention_ms=20_000)
    for after_ms, left in ((499, [True, True]), (1, [False, True]), (19_499, [False, True])):
        services.now_ms += after_ms
        expire(coordinator)
        assert known(coordinator, CONSUMED, LEFT) == left
    services.now_ms += 1
    expire(coordinator)
    assert known(coordinator, LEFT) == [False]


async def test_stable_group_loses_only_what_it_does_not_consume(
    coordinator: GroupCoordinator, services: Services
) -> None:
    await member(coordinator)
    services.now_ms += 100 * RETENTION_MS
    expire(coordinator)
    assert known(coordinator, CONSUMED, LEFT) == [True, False]


async def test_group_whose_members_cannot_be_understood_keeps_everything(
    coordinator: GroupCoordinator, services: Services
) -> None:
    await member(coordinator, metadata=b"?")
    services.now_ms += 100 * RETENTION_MS
    expire(coordinator)
    assert known(coordinator, CONSUMED, LEFT) == [True, True]
    assert coordinator.delete_offsets("g", [LEFT]) == (NoError, [GroupSubscribedToTopicError])


async def test_group_of_kip_848_loses_only_what_it_does_not_consume(
    coordinator: GroupCoordinator, services: Services
) -> None:
    for tp in (CONSUMED, LEFT):
        commit(coordinator, tp=tp)
    beat = heartbeat("g", CONSUMED.topic)
    coordinator.consumer_group_heartbeat(beat, GroupClient("c", "/h"))
    services.now_ms += RETENTION_MS
    expire(coordinator)
    assert known(coordinator, CONSUMED, LEFT) == [True, False]


async def test_offset_that_a_transaction_commits_waits_for_its_end(
    coordinator: GroupCoordinator, services: Services
) -> None:
    neighbour = CONSUMED._replace(partition=1)
    for tp in (CONSUMED, neighbour):
        commit(coordinator, tp=tp)
    for group_id in ("g", "only pending"):
        item = OffsetCommitEntry(CONSUMED, ZERO_UUID, 6, -1, "m")
        producer = ProducerIdentity(7, 0)
        coordinator.commit_in_transaction(group_id, [item], producer, Committer())
    services.now_ms += RETENTION_MS
    expire(coordinator)
    assert known(coordinator, CONSUMED, neighbour) == [True, False]
    assert set(coordinator.groups) == {"g", "only pending"}


async def test_group_that_begins_while_others_are_looked_at_stays(
    coordinator: GroupCoordinator, services: Services
) -> None:
    for group_id in ("g", "h"):
        commit(coordinator, group_id=group_id)
    services.now_ms += RETENTION_MS
    steps = coordinator.expire_offsets(RETENTION_MS)
    next(steps)
    beat = heartbeat("h", "t")
    coordinator.consumer_group_heartbeat(beat, GroupClient("c", "/h"))
    for _ in steps:
        pass
    assert list(coordinator.groups) == ["h"]
    assert not coordinator.groups["h"].is_empty


async def test_members_that_are_no_consumers_keep_everything(
    coordinator: GroupCoordinator, services: Services
) -> None:
    await member(coordinator, protocol_type="connect")
    services.now_ms += 100 * RETENTION_MS
    expire(coordinator)
    assert known(coordinator, CONSUMED, LEFT) == [True, True]


async def test_empty_group_keeps_its_offsets_from_when_its_last_member_left(
    coordinator: GroupCoordinator, services: Services
) -> None:
    member_id = await member(coordinator)
    services.now_ms += 5 * RETENTION_MS
    coordinator.leave("g", [leaver(member_id, None)])
    services.now_ms += RETENTION_MS - 1
    expire(coordinator)
    assert known(coordinator, CONSUMED, LEFT) == [True, True]
    services.now_ms += 1
    expire(coordinator)
    assert known(coordinator, CONSUMED, LEFT) == [False, False]
    assert "g" not in coordinator.groups


async def test_group_whose_offsets_lapsed_goes_with_its_last_member(
    coordinator: GroupCoordinator, services: Services
) -> None:
    member_id = await member(coordinator, tps=[LEFT])
    services.now_ms += RETENTION_MS
    expire(coordinator)
    assert (known(coordinator, LEFT), "g" in coordinator.groups) == ([False], True)
    coordinator.leave("g", [leaver(member_id, None)])
    expire(coordinator)
    assert "g" not in coordinator.groups


async def test_what_lapsed_stays_away_after_a_restart(
    coordinator: GroupCoordinator, services: Services
) -> None:
    commit(coordinator, tp=CONSUMED)
    services.now_ms += RETENTION_MS
    expire(coordinator)
    log = services.partition("", coordinator.partition_for("g"))
    last = decode_all(memoryview(log.batches[-1][1]))[-1]
    decoded = decode_record(last.key, last.value)
    assert decoded is not None
    assert (decoded.key, decoded.value) == (GroupMetadataKey(group="g"), None)
    successor = GroupCoordinator(services)
    elect_all(successor, services)
    await successor.until_loaded()
    assert known(successor, CONSUMED) == [False]
    assert not successor.groups
    await successor.close()


@pytest.mark.parametrize("is_on_disk", [False, True])
async def test_broker_lets_offsets_lapse_after_its_retention(
    tmp_path: Path, is_on_disk: bool
) -> None:
    now_ms = 1_700_000_000_000
    async with Broker(
        data_dir=tmp_path if is_on_disk else None,
        clock=lambda: now_ms,
        offsets_retention_minutes=1,
        offsets_topic_partitions=1,
    ) as broker:
        await broker.open_internal_topic("__consumer_offsets")
        groups = broker.node.groups
        commit(groups, tp=CONSUMED)
        now_ms += 59_999
        await broker.clean_logs()
        assert known(groups, CONSUMED) == [True]
        now_ms += 1
        await broker.clean_logs()
        assert known(groups, CONSUMED) == [False]
