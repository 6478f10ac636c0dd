"""Sessions of share members, failures of the log, and restarts, in the embedded broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aiokafka_lite import errors
from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.configs import ShareGroupSettings
from aiokafka_lite.broker.groups.classic.members import GroupClient
from aiokafka_lite.broker.groups.coordinator import GroupCoordinator
from aiokafka_lite.broker.groups.share.group import ShareGroup
from aiokafka_lite.protocol.messages.metadata import FindCoordinatorRequest
from aiokafka_lite.protocol.messages.share import ShareGroupHeartbeatRequest
from tests.broker.groups.fakes import Services, elect_all, run_in_virtual_time
from tests.broker.groups.share.requests import ShareGroupRequests
from tests.support.cluster import KafkaHandle
from tests.support.group_requests import await_coordinator

CLIENT = GroupClient("c", "/h")
SESSION_S = 45


class Driven:
    """A coordinator whose members do what a test says, in invented time."""

    def __init__(self, **settings: int) -> None:
        self.services = Services()
        self.services.share_settings = ShareGroupSettings(**settings)  # type: ignore[arg-type]
        self.topic_id = self.services.topics.create("t", 2)
        self.coordinator = GroupCoordinator(self.services)
        elect_all(self.coordinator, self.services)

    @property
    def group(self) -> ShareGroup:
        group = self.coordinator.groups["g"]
        assert isinstance(group, ShareGroup)
        return group

    async def beat(self, member_id: str, epoch: int, *topics: str) -> tuple[int, list[int] | None]:
        """Return the member's epoch, and the partitions that the answer assigns."""
        request = ShareGroupHeartbeatRequest(
            group_id="g",
            member_id=member_id,
            member_epoch=epoch,
            subscribed_topic_names=[*topics] or None,
        )
        answer = self.coordinator.share_group_heartbeat(request, CLIENT)
        await asyncio.sleep(0)  # partitions start after the response
        if answer.assignment is None:
            return answer.member_epoch, None
        return answer.member_epoch, [
            partition
            for topic in answer.assignment.topic_partitions
            for partition in topic.partitions
        ]


def test_member_without_heartbeats_for_a_session_is_removed() -> None:
    async def run() -> None:
        driven = Driven()
        await driven.beat("a", 0, "t")
        await driven.beat("b", 0, "t")
        await asyncio.sleep(SESSION_S - 1)
        epoch, _ = await driven.beat("b", 3)
        await asyncio.sleep(2)
        assert driven.group.members.keys() == {"b"}
        assert await driven.beat("b", epoch) == (4, [0, 1])
        with pytest.raises(errors.UnknownMemberIdError):
            await driven.beat("a", 2)
        await asyncio.sleep(SESSION_S + 1)
        assert driven.group.state.value == "Empty"

    run_in_virtual_time(run())


def test_session_that_a_test_expires_ends_at_once() -> None:
    async def run() -> None:
        driven = Driven()
        await driven.beat("a", 0, "t")
        driven.coordinator.expire_session("g", "a")
        assert driven.group.is_empty
        with pytest.raises(errors.UnknownMemberIdError):
            driven.coordinator.expire_session("g", "a")

    run_in_virtual_time(run())


def test_members_join_in_the_old_epoch_until_the_assignment_interval_is_over() -> None:
    async def run() -> None:
        driven = Driven(assignment_interval_ms=1_000)
        assert await driven.beat("a", 0, "t") == (2, [])
        driven.services.now_ms += 999
        assert await driven.beat("a", 2) == (2, None)
        assert await driven.beat("b", 0, "t") == (2, [])
        driven.services.now_ms += 1
        assert await driven.beat("b", 2) == (4, [1])
        assert await driven.beat("a", 2) == (4, [0])

    run_in_virtual_time(run())


def test_partitions_that_are_added_are_assigned() -> None:
    async def run() -> None:
        driven = Driven()
        await driven.beat("a", 0, "t")
        assert await driven.beat("a", 2) == (3, [0, 1])
        driven.services.topics.grow("t", 3)
        assert await driven.beat("a", 3) == (4, None)
        assert await driven.beat("a", 4) == (5, [0, 1, 2])

    run_in_virtual_time(run())


def test_heartbeat_that_cannot_be_stored_has_no_effect() -> None:
    async def run() -> None:
        driven = Driven()
        await driven.beat("a", 0, "t")
        for log in driven.services.logs.values():
            log.failure = OSError("full")
        with pytest.raises(errors.NotCoordinatorError):
            await driven.beat("b", 0, "t")
        assert driven.group.members.keys() == {"a"}

    run_in_virtual_time(run())


def test_share_group_outlives_the_expiry_of_offsets() -> None:
    async def run() -> None:
        driven = Driven()
        await driven.beat("a", 0, "t")
        await driven.beat("a", -1)
        for _ in driven.coordinator.expire_offsets(0):
            pass
        assert driven.group.is_empty
        assert driven.coordinator.delete("g") is errors.NoError
        assert driven.services.share_partitions.started == set()

    run_in_virtual_time(run())


async def test_members_go_on_after_a_restart(tmp_path: Path) -> None:
    async with Broker(data_dir=tmp_path) as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        await await_coordinator(kafka)
        topic = await kafka.create_topic("t", partitions=4)
        group = ShareGroupRequests(kafka, "g")
        first, second = group.of("a", topic, rack_id="r"), group.of("b", topic)
        await first.join()
        await first.until(lambda: first.count == 4)
        await second.join()
        await first.beat()
        before = await group.described()
    async with Broker(data_dir=tmp_path) as broker:
        await broker.node.groups.until_loaded()
        second.group = group = ShareGroupRequests(
            KafkaHandle("embedded", broker.bootstrap_servers), "g"
        )
        epoch, held = second.epoch, second.held
        answer = await second.beat()
        assert (answer.error_code, answer.member_epoch, answer.assignment) == (0, epoch, None)
        assert second.held == held
        assert await group.described() == before
    assert broker.failure is None


async def test_group_goes_on_at_another_node() -> None:
    async with Broker(nodes=2) as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        broker.create_topic("t", 2)
        find = FindCoordinatorRequest(coordinator_keys=["g"])
        async with kafka.raw() as client:
            (old,) = (await client.request(find)).coordinators
        at = KafkaHandle("embedded", broker.nodes[old.node_id].bootstrap_servers)
        member = ShareGroupRequests(at, "g").of("a", "t")
        await member.join()
        await member.until(lambda: member.count == 2)
        await broker.stop_node(old.node_id)
        (other,) = (node for node in broker.nodes.values() if node.id != old.node_id)
        await other.groups.until_loaded()
        member.group = ShareGroupRequests(KafkaHandle("embedded", other.bootstrap_servers), "g")
        answer = await member.beat()
        assert (answer.error_code, answer.member_epoch) == (0, 3)
    assert broker.failure is None
