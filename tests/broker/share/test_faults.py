"""Faults that refuse single partitions of a share session's requests."""

from __future__ import annotations

import pytest

from aiokafka_lite.broker.server import Broker
from aiokafka_lite.errors import (
    BrokerResponseError,
    InvalidShareSessionEpochError,
    NotLeaderForPartitionError,
    ShareSessionNotFoundError,
    UnknownTopicOrPartitionError,
)
from tests.broker.share.requests import (
    ACCEPT,
    NO_ERROR,
    ShareGroup,
    acquired,
    answered,
    produce,
    share_group,
)
from tests.support.cluster import KafkaHandle
from tests.support.group_requests import await_coordinator

NOT_LEADER, UNKNOWN_PARTITION, UNUSUAL = 6, 3, 999


async def started(broker: Broker) -> ShareGroup:
    """Return a group that may fetch two partitions, each with three records."""
    kafka = KafkaHandle("embedded", broker.bootstrap_servers)
    await await_coordinator(kafka)
    group = await share_group(kafka, 2)
    for partition in range(2):
        await produce(group, 3, partition=partition)
    await group.start()
    return group


async def test_refused_partition_of_a_share_session_is_acquired_later() -> None:
    async with Broker() as broker:
        group = await started(broker)
        async with group.member() as member:
            with broker.on("ShareFetch", partition=1).fail(NotLeaderForPartitionError):
                answer = await member.ask(partitions=[0, 1])
            assert acquired(answer).ranges == [(0, 2, 1)]
            refused = answered(answer)[1]
            assert (refused.error_code, refused.acquired_records) == (NOT_LEADER, [])
            assert refused.current_leader.leader_id == 1
            assert [each.node_id for each in answer.node_endpoints] == [1]
            # The session has both partitions, and its next epoch.
            assert acquired(await member.ask(), 1).ranges == [(0, 2, 1)]


@pytest.mark.parametrize("code", [NOT_LEADER, UNUSUAL])
async def test_fault_refuses_a_partition_that_only_the_session_has(code: int) -> None:
    async with Broker() as broker:
        group = await started(broker)
        async with group.member() as member:
            await member.ask(partitions=[0, 1])
            rule = broker.on("ShareFetch", topic=group.topic, partition=0).fail(code)
            answer = await member.ask(max_wait_ms=60_000)
            assert {part: each.error_code for part, each in answered(answer).items()} == {0: code}
            assert rule.is_over


@pytest.mark.parametrize("api", ["ShareFetch", "ShareAcknowledge"])
async def test_refused_acknowledgement_leaves_the_records_locked(api: str) -> None:
    async with Broker() as broker:
        group = await started(broker)
        async with group.member() as member:
            await member.ask(partitions=[0, 1])
            acks = {partition: [(0, 2, ACCEPT)] for partition in range(2)}
            broker.on(api, partition=1).fail(UnknownTopicOrPartitionError)
            if api == "ShareFetch":
                parts = answered(await member.ask(acks)).items()
                codes = {part: each.acknowledge_error_code for part, each in parts}
            else:
                (topic,) = (await member.acknowledge_as_is(acks)).responses
                codes = {each.partition_index: each.error_code for each in topic.partitions}
            assert codes == {0: NO_ERROR, 1: UNKNOWN_PARTITION}
            (topic,) = (await member.acknowledge_as_is({1: [(0, 2, ACCEPT)]})).responses
            assert topic.partitions[0].error_code == NO_ERROR


@pytest.mark.parametrize("error", [ShareSessionNotFoundError, InvalidShareSessionEpochError])
async def test_error_of_the_session_refuses_the_whole_request(
    error: type[BrokerResponseError],
) -> None:
    async with Broker() as broker:
        group = await started(broker)
        async with group.member() as member:
            broker.on("ShareFetch").fail(error)
            answer = await member.ask(partitions=[0, 1])
            assert (answer.error_code, answer.responses) == (error.errno, [])
            assert acquired(await member.ask(partitions=[0])).ranges == [(0, 2, 1)]
