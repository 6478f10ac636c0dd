"""The client against a real Kafka, on both loops."""

from __future__ import annotations

import asyncio
import random
import uuid

import pytest

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.config import ClientConfig, parse_address
from aiokafka_lite.client.lanes import Lane
from aiokafka_lite.client.versions import FIRST_VERSION
from aiokafka_lite.errors import KafkaConnectionError
from aiokafka_lite.protocol import registry
from aiokafka_lite.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from aiokafka_lite.protocol.messages.group_members import HeartbeatRequest
from aiokafka_lite.protocol.messages.metadata import ApiVersionsRequest
from aiokafka_lite.protocol.prepared import UpTo
from aiokafka_lite.structs import TopicPartition
from tests.client.conftest import TIMEOUT_S, reach_none_but
from tests.support.connecting import connect_to
from tests.support.real_kafka import CLUSTER_ID, KafkaUnavailableError, RealKafka
from tests.support.required import unavailable

API_VERSIONS = ApiVersionsRequest(client_software_name="tests", client_software_version="1")

pytestmark = [pytest.mark.real_kafka, pytest.mark.every_loop]


async def test_every_api_has_a_version_in_common(real_kafka: str) -> None:
    host, port = parse_address(real_kafka)
    connection = await connect_to(host, port)
    for api_key, request_class in registry.REQUESTS.items():
        if api_key in connection.api_versions:
            assert connection.api_versions.choose(request_class) >= request_class.min_version
    response = await connection.request(API_VERSIONS, timeout_s=TIMEOUT_S)
    assert {key.api_key for key in response.api_keys} == set(connection.api_versions)
    connection.close()
    await connection.wait_closed()


async def test_the_version_asked_first_names_the_same_finalized_features(real_kafka: str) -> None:
    host, port = parse_address(real_kafka)
    connection = await connect_to(host, port)
    first, newest = [
        await connection.request(UpTo(API_VERSIONS, version), timeout_s=TIMEOUT_S)
        for version in (FIRST_VERSION, ApiVersionsRequest.max_version)
    ]
    assert first.finalized_features == newest.finalized_features
    assert connection.api_versions.features["group.version"] >= 1
    connection.close()
    await connection.wait_closed()


@pytest.mark.slow
async def test_another_broker_than_the_one_meant_is_refused() -> None:
    try:
        kafka = RealKafka(version="4.4.0")
    except KafkaUnavailableError as error:
        unavailable(error)
    with kafka:
        await reach_none_but(kafka.bootstrap_servers, CLUSTER_ID, 1)


async def test_cluster_is_found_topics_created_and_coordinators_named(real_kafka: str) -> None:
    topic = f"client-{uuid.uuid4().hex}"
    scope = TaskScope("tests")
    config = ClientConfig(bootstrap_servers=real_kafka, retry_backoff_max_s=0.2)
    cluster = Cluster(config, scope=scope, rng=random.Random(1))
    cluster.watch("test", [topic])
    await cluster.start()
    try:
        while cluster.view.leader(TopicPartition(topic, 0)) is None:
            await cluster.refresh()
        topic_id = cluster.view.topic_id(topic)
        assert topic_id is not None
        assert cluster.view.topic_names[topic_id] == topic
        coordinator = await cluster.find_coordinator(f"group-{topic}")
        assert coordinator in cluster.view.nodes
        heartbeat = HeartbeatRequest(group_id=f"group-{topic}", member_id="nobody")
        while (await cluster.request(coordinator, heartbeat)).error_code != 25:
            pass  # a coordinator that is still loading takes any heartbeat
    finally:
        await cluster.close()
        await scope.close()
    scope.raise_if_failed()


async def test_long_poll_holds_up_nothing_else(real_kafka: str) -> None:
    topic = f"client-{uuid.uuid4().hex}"
    tp = TopicPartition(topic, 0)
    scope = TaskScope("tests")
    cluster = Cluster(ClientConfig(bootstrap_servers=real_kafka), scope=scope, rng=random.Random(1))
    cluster.watch("test", [topic])
    try:
        await cluster.start()
        while (leader := cluster.view.leader(tp)) is None:
            await cluster.refresh()
        partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        wanted = FetchTopic(
            topic_id=cluster.view.topic_id(topic) or bytes(16), topic=topic, partitions=[partition]
        )
        fetch = FetchRequest(min_bytes=1, max_bytes=1 << 20, topics=[wanted])
        while True:  # a new topic's leader may be named before it serves
            answer = await cluster.request(leader.leader, fetch, lane=Lane.FETCH)
            if answer.responses == [] or answer.responses[0].partitions[0].error_code == 0:
                break
            await asyncio.sleep(0.05)
        fetch.max_wait_ms = 30_000
        poll = asyncio.ensure_future(
            cluster.request(leader.leader, fetch, lane=Lane.FETCH, timeout_s=40)
        )
        for _ in range(20):
            await cluster.request(leader.leader, API_VERSIONS)
        is_waiting = not poll.done() and cluster.pool.in_flight_request_count(leader.leader) == 1
        assert is_waiting
        await cluster.close()
        with pytest.raises(KafkaConnectionError):
            await poll
    finally:
        await cluster.close()
        await scope.close()
