"""Processed offsets are committed to a group that has no members, and failures fail nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from typing import TypeVar

import pytest

from aiokafka_lite.broker import BrokerConfig
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.config import ClientConfig
from aiokafka_lite.client.view import Node
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import (
    CoordinatorNotAvailableError,
    GroupAuthorizationFailedError,
    NotCoordinatorError,
    TopicAuthorizationFailedError,
)
from aiokafka_lite.protocol.messages.offsets import OffsetCommitRequest
from aiokafka_lite.protocol.prepared import AnyRequest
from aiokafka_lite.protocol.schema import Request, Response
from aiokafka_lite.spark.micro_batches import (
    COMMITTED_AGAIN_AFTER_S,
    TRIED_FOR_S,
    GroupCommits,
)
from aiokafka_lite.structs import TopicPartition
from tests.support.cluster import KafkaHandle, unique
from tests.support.java import JavaTools
from tests.support.threads import wait

R = TypeVar("R", bound=Response)

LOG = "aiokafka_lite.spark"
TP = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)


class Clock:
    """A clock that sleeping moves."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, delay_s: float) -> None:
        self.now += delay_s


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    with BrokerThread(BrokerConfig(nodes=2)) as thread:
        thread.create_topic("t", 2)
        yield thread


@pytest.fixture
def cluster(broker: BrokerThread) -> Iterator[BlockingCluster]:
    cluster = BlockingCluster(ClientConfig(bootstrap_servers=broker.bootstrap_servers))
    yield cluster
    cluster.close()


def commit_count(broker: BrokerThread) -> int:
    return len(broker.requests.of(OffsetCommitRequest))


def group_commits(cluster: BlockingCluster, clock: Clock) -> GroupCommits:
    return GroupCommits("g", cluster, clock=clock, sleep=clock.sleep)


@pytest.mark.real_if_long
async def test_lag_shows_in_kafka_s_own_tool(kafka: KafkaHandle, java_tools: JavaTools) -> None:
    topic, group = await kafka.create_topic(partitions=2), unique("lag")
    for partition in range(2):
        await kafka.produce(topic, partition, [(None, b"value")] * 10)
    cluster = BlockingCluster(ClientConfig(bootstrap_servers=kafka.bootstrap_servers))
    try:
        commits = GroupCommits(group, cluster)
        await wait(commits.commit, {TopicPartition(topic, 0): 3, TopicPartition(topic, 1): 9})
        await wait(commits.commit, {TopicPartition(topic, 0): 4, TopicPartition(topic, 1): 9})
    finally:
        await wait(cluster.close)
    described = await java_tools.run(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", kafka.bootstrap_servers, "--describe", "--group", group),
    )
    rows = [line.split() for line in described.stdout.splitlines() if topic in line]
    # Group, topic, partition, current offset, log end offset, lag.
    assert sorted(row[2:6] for row in rows) == [["0", "4", "10", "6"], ["1", "9", "10", "1"]]


async def test_group_with_members_refuses_and_the_warning_says_so(
    kafka: KafkaHandle, caplog: pytest.LogCaptureFixture
) -> None:
    topic, group = await kafka.create_topic(), unique("members")
    cluster = BlockingCluster(ClientConfig(bootstrap_servers=kafka.bootstrap_servers))
    consumer = AIOKafkaConsumer(
        topic, group_id=group, bootstrap_servers=kafka.bootstrap_servers, enable_auto_commit=False
    )
    async with consumer:
        await consumer.getmany(timeout_ms=100)
        while not consumer.assignment():
            await consumer.getmany(timeout_ms=100)
        try:
            with caplog.at_level(logging.WARNING, LOG):
                await wait(GroupCommits(group, cluster).commit, {TopicPartition(topic, 0): 1})
        finally:
            await wait(cluster.close)
    (warning,) = [record.getMessage() for record in caplog.records if record.name == LOG]
    assert group in warning
    assert f"{topic}/0" in warning
    assert "commitOffsetsToGroup" in warning


def test_only_what_has_changed_is_committed(broker: BrokerThread, cluster: BlockingCluster) -> None:
    clock = Clock()
    commits = group_commits(cluster, clock)
    commits.commit({TP: 1, OTHER: 5})
    commits.commit({TP: 1, OTHER: 5})
    assert commit_count(broker) == 1
    commits.commit({TP: 2, OTHER: 5})
    last = broker.requests.of(OffsetCommitRequest)[-1].request
    assert isinstance(last, OffsetCommitRequest)
    assert [each.partition_index for each in last.topics[0].partitions] == [0]
    assert broker.committed("g") == {TP: 2, OTHER: 5}


def test_quiet_topic_is_committed_again_before_kafka_forgets(
    broker: BrokerThread, cluster: BlockingCluster
) -> None:
    clock = Clock()
    commits = group_commits(cluster, clock)
    commits.commit({TP: 1})
    clock.now += COMMITTED_AGAIN_AFTER_S
    commits.commit({TP: 1})
    commits.commit({TP: 1})
    assert commit_count(broker) == 2


def test_coordinator_that_moves_is_found_again(
    broker: BrokerThread, cluster: BlockingCluster, caplog: pytest.LogCaptureFixture
) -> None:
    commits = group_commits(cluster, Clock())
    commits.commit({TP: 1})
    before = broker.coordinator_of("g")
    assert broker.move_coordinator("g") != before
    commits.commit({TP: 2})
    broker.on(OffsetCommitRequest).fail(NotCoordinatorError)
    commits.commit({TP: 3})
    broker.on(OffsetCommitRequest).disconnect()
    commits.commit({TP: 4})
    assert broker.committed("g") == {TP: 4}
    assert not caplog.records


def test_lookup_and_commit_share_the_time(broker: BrokerThread) -> None:
    clock, timeouts_s = Clock(), list[float | None]()

    class Slow(BlockingCluster):
        def request_any(self, request: Request[R], *, timeout_s: float | None = None) -> R:
            clock.now += 3.0
            timeouts_s.append(timeout_s)
            return super().request_any(request)

        def request(
            self, node: int | Node, request: AnyRequest[R], *, timeout_s: float | None = None
        ) -> R:
            timeouts_s.append(timeout_s)
            return super().request(node, request)

    with closing(Slow(ClientConfig(bootstrap_servers=broker.bootstrap_servers))) as cluster:
        group_commits(cluster, clock).commit({TP: 1})
    assert timeouts_s == [TRIED_FOR_S, TRIED_FOR_S - 3.0]
    assert broker.committed("g") == {TP: 1}


def test_failure_warns_once_and_later_offsets_are_committed(
    broker: BrokerThread, cluster: BlockingCluster, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    commits = group_commits(cluster, clock)
    with broker.on("FindCoordinator").fail(CoordinatorNotAvailableError, times=None):
        begun = clock.now
        commits.commit({TP: 1})
        assert clock.now - begun < 6
        asked = len(broker.requests.of("FindCoordinator"))
        commits.commit({TP: 2})  # left alone for a moment
        assert len(broker.requests.of("FindCoordinator")) == asked
        clock.now += 60
        commits.commit({TP: 3})
        assert len(broker.requests.of("FindCoordinator")) > asked
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    clock.now += 60
    commits.commit({TP: 4})
    assert broker.committed("g") == {TP: 4}
    assert "commits succeed again" in caplog.records[-1].getMessage()


@pytest.mark.parametrize("error", [GroupAuthorizationFailedError, TopicAuthorizationFailedError])
def test_refusal_is_not_tried_again_at_once(
    broker: BrokerThread,
    cluster: BlockingCluster,
    caplog: pytest.LogCaptureFixture,
    error: type[GroupAuthorizationFailedError],
) -> None:
    broker.on(OffsetCommitRequest).fail(error, times=None)
    commits = group_commits(cluster, Clock())
    commits.commit({TP: 1})
    assert commit_count(broker) == 1
    assert "READ" in caplog.text


def test_deleted_topic_keeps_no_other_from_being_committed(
    broker: BrokerThread, cluster: BlockingCluster, caplog: pytest.LogCaptureFixture
) -> None:
    commits = group_commits(cluster, Clock())
    commits.commit({TP: 7, TopicPartition("gone", 0): 3})
    commits.commit({TP: 8, TopicPartition("gone", 0): 3})
    assert broker.committed("g") == {TP: 8}
    assert commit_count(broker) == 2
    assert not caplog.records
