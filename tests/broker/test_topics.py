"""Metadata and topic administration, on the embedded broker and on a real one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.errors import (
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidReplicationAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    KafkaStorageError,
    MismatchedEndpointTypeError,
    PolicyViolationError,
    TopicAlreadyExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    UnsupportedEndpointTypeError,
)
from aiokafka_lite.protocol.messages.cluster import DescribeClusterRequest
from aiokafka_lite.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from aiokafka_lite.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from aiokafka_lite.protocol.schema import ZERO_UUID
from tests.broker.wire import topic_metadata
from tests.support.cluster import KafkaHandle, unique
from tests.support.wire import RawClient


# --- Metadata --------------------------------------------------------------------------------
async def test_every_version_describes_a_topic(kafka: KafkaHandle) -> None:
    for version in range(14):
        topic = await kafka.create_topic(partitions=3)
        async with kafka.raw() as client:
            request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
            answer = await client.request(request, version)
        (node,) = answer.brokers
        assert f"{node.host}:{node.port}" == kafka.bootstrap_servers
        assert answer.controller_id == (node.node_id if version >= 1 else -1)
        assert (answer.cluster_id is not None) == (version >= 2)
        (described,) = answer.topics
        assert (described.error_code, described.name, described.is_internal) == (0, topic, False)
        assert (described.topic_id != ZERO_UUID) == (version >= 10)
        partitions = sorted(described.partitions, key=lambda each: each.partition_index)
        assert [each.partition_index for each in partitions] == [0, 1, 2]
        for each in partitions:
            assert (each.error_code, each.leader_id) == (0, node.node_id)
            assert each.leader_epoch == (0 if version >= 7 else -1)
            assert each.replica_nodes == each.isr_nodes == [node.node_id]
            assert each.offline_replicas == []


async def names(client: RawClient, request: MetadataRequest, version: int) -> set[str | None]:
    return {topic.name for topic in (await client.request(request, version)).topics}


async def test_all_topics_and_none(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with kafka.raw() as client:
        assert topic in await names(client, MetadataRequest(topics=None), 13)
        assert topic in await names(client, MetadataRequest(topics=None), 0)
        assert await names(client, MetadataRequest(topics=[]), 1) == set()


@pytest.mark.parametrize("version", [12, 13])
async def test_topic_by_id(kafka: KafkaHandle, version: int) -> None:
    topic = await kafka.create_topic()
    nobody = b"0123456789abcdef"
    async with kafka.raw() as client:
        known = (await topic_metadata(client, topic)).topic_id
        wanted = [MetadataRequestTopic(topic_id=each, name=None) for each in (known, nobody)]
        answer = await client.request(MetadataRequest(topics=wanted), version)
    by_id = {each.topic_id: each for each in answer.topics}
    assert (by_id[known].error_code, by_id[known].name) == (0, topic)
    assert (by_id[nobody].error_code, by_id[nobody].name) == (UnknownTopicIdError.errno, None)


async def test_topic_that_is_named_twice_is_described_once(kafka: KafkaHandle) -> None:
    topics = [await kafka.create_topic() for _ in range(2)]
    named = [topics[0], topics[0], topics[1]]
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in named])
    async with kafka.raw() as client:
        described = (await client.request(request)).topics
    assert sorted(topic.name or "" for topic in described) == sorted(topics)


async def test_unknown_topic_is_not_created_unless_allowed(kafka: KafkaHandle) -> None:
    topic = unique("auto")
    async with kafka.raw() as client:
        for _ in range(2):
            unknown = await topic_metadata(client, topic)
            assert unknown.error_code == UnknownTopicOrPartitionError.errno
            assert (unknown.partitions, unknown.topic_id) == ([], ZERO_UUID)
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
        described = await until_described(client, request)
    assert described.topics[0].name == topic
    assert described.topics[0].partitions


async def until_described(client: RawClient, request: MetadataRequest) -> MetadataResponse:
    for _ in range(200):
        answer = await client.request(request)
        if not any(topic.error_code for topic in answer.topics):
            return answer
        await asyncio.sleep(0.02)
    raise TimeoutError(f"{request} stays unanswered")


@pytest.mark.parametrize("name", ["", ".", "..", "with space", "a" * 250, "ümlaut", "a/b"])
async def test_impossible_name_is_invalid_not_unknown(kafka: KafkaHandle, name: str) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
    async with kafka.raw() as client:
        answer = await client.request(request)
    assert [topic.error_code for topic in answer.topics] == [InvalidTopicError.errno]


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
async def test_topic_of_coordinators_is_internal(kafka: KafkaHandle, name: str) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
    async with kafka.raw() as client:
        (topic,) = (await until_described(client, request)).topics
    assert topic.is_internal
    assert topic.partitions


async def test_operations_are_told_when_asked_for(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    not_asked = -(2**31)
    async with kafka.raw() as client:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
        quiet = await client.request(request, 10)
        request.include_topic_authorized_operations = True
        request.include_cluster_authorized_operations = True
        told = await client.request(request, 10)
        cluster = await client.request(
            DescribeClusterRequest(include_cluster_authorized_operations=True)
        )
    assert quiet.topics[0].topic_authorized_operations == not_asked
    assert quiet.cluster_authorized_operations == not_asked
    assert told.topics[0].topic_authorized_operations == 0b1101_1111_1000
    assert told.cluster_authorized_operations == cluster.cluster_authorized_operations
    assert cluster.cluster_authorized_operations == 0b11_1111_1010_0000 & 0b1_1111_1010_0000


async def test_cluster_is_described(kafka: KafkaHandle) -> None:
    for version in range(3):
        async with kafka.raw() as client:
            answer = await client.request(DescribeClusterRequest(), version)
            metadata = await client.request(MetadataRequest(topics=[]))
        (node,) = answer.brokers
        assert (answer.error_code, answer.error_message) == (0, None)
        assert f"{node.host}:{node.port}" == kafka.bootstrap_servers
        assert (answer.cluster_id, answer.controller_id) == (metadata.cluster_id, node.broker_id)


async def test_only_brokers_can_be_described(kafka: KafkaHandle) -> None:
    async with kafka.raw() as client:
        controllers = await client.request(DescribeClusterRequest(endpoint_type=2))
        nothing = await client.request(DescribeClusterRequest(endpoint_type=3))
    assert controllers.error_code == MismatchedEndpointTypeError.errno
    assert nothing.error_code == UnsupportedEndpointTypeError.errno


# --- CreateTopics ----------------------------------------------------------------------------
async def create(
    client: RawClient,
    *topics: CreatableTopic,
    version: int | None = None,
    validate_only: bool = False,
) -> list[CreatableTopicResult]:
    request = CreateTopicsRequest(topics=[*topics], timeout_ms=10_000, validate_only=validate_only)
    return (await client.request(request, version)).topics


def new_topic(
    name: str | None = None,
    partitions: int = 1,
    replication: int = 1,
    assignments: dict[int, list[int]] | None = None,
    **configs: str | None,
) -> CreatableTopic:
    return CreatableTopic(
        name=unique("new") if name is None else name,
        num_partitions=partitions,
        replication_factor=replication,
        assignments=[
            CreatableReplicaAssignment(partition_index=partition, broker_ids=brokers)
            for partition, brokers in (assignments or {}).items()
        ],
        configs=[
            CreatableTopicConfig(name=name.replace("_", "."), value=value)
            for name, value in configs.items()
        ],
    )


async def test_every_version_creates(kafka: KafkaHandle) -> None:
    for version in range(2, 8):
        topic = new_topic(partitions=2, retention_ms="1000")
        async with kafka.raw() as client:
            (result,) = await create(client, topic, version=version)
            named = MetadataRequest(
                topics=[MetadataRequestTopic(name=topic.name)], allow_auto_topic_creation=False
            )
            (described,) = (await until_described(client, named)).topics
        assert (result.error_code, result.error_message) == (0, None)
        if version >= 5:
            assert (result.num_partitions, result.replication_factor) == (2, 1)
            configs = {each.name: each for each in result.configs or []}
            assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == (
                "1000",
                1,
            )
            assert configs["retention.bytes"].value == "-1"
            assert configs["cleanup.policy"].value == "delete"
        if version >= 7:
            assert result.topic_id == described.topic_id != ZERO_UUID


async def test_defaults_are_the_brokers(kafka: KafkaHandle) -> None:
    async with kafka.raw() as client:
        (result,) = await create(client, new_topic(partitions=-1, replication=-1))
    assert (result.error_code, result.replication_factor) == (0, 1)
    assert result.num_partitions >= 1


async def test_all_config_names_of_the_broker_are_known(kafka: KafkaHandle) -> None:
    async with kafka.raw() as client:
        (result,) = await create(client, new_topic())
    names = {each.name for each in result.configs or []}
    from aiokafka_lite.broker.configs import TOPIC_CONFIGS

    since_kafka_4_4 = {"errors.deadletterqueue.group.enable"}
    assert names | since_kafka_4_4 == set(TOPIC_CONFIGS)


async def test_validate_only_creates_nothing(kafka: KafkaHandle) -> None:
    topic = new_topic(partitions=3)
    async with kafka.raw() as client:
        (result,) = await create(client, topic, validate_only=True)
        described = await topic_metadata(client, topic.name)
    assert (result.error_code, result.num_partitions) == (0, 3)
    assert described.error_code == UnknownTopicOrPartitionError.errno


REFUSED = {
    "empty name": (new_topic(""), InvalidTopicError),
    "dot": (new_topic("."), InvalidTopicError),
    "long": (new_topic("a" * 250), InvalidTopicError),
    "illegal": (new_topic("no spaces"), InvalidTopicError),
    "no partitions": (new_topic(partitions=0), InvalidPartitionsError),
    "negative partitions": (new_topic(partitions=-2), InvalidPartitionsError),
    "no replicas": (new_topic(replication=0), InvalidReplicationFactorError),
    "negative replicas": (new_topic(replication=-2), InvalidReplicationFactorError),
    "too many replicas": (new_topic(replication=3), InvalidReplicationFactorError),
    "too many partitions": (new_topic(partitions=1_000_000), PolicyViolationError),
    "unknown config": (new_topic(no_such="1"), InvalidConfigurationError),
    "wrong number": (new_topic(retention_ms="soon"), InvalidConfigurationError),
    "wrong choice": (new_topic(cleanup_policy="burn"), InvalidConfigurationError),
    "too small": (new_topic(segment_bytes="5"), InvalidConfigurationError),
    "null config": (new_topic(retention_ms=None), InvalidConfigurationError),
    "assignments and partitions": (
        new_topic(partitions=1, replication=-1, assignments={0: [1]}),
        InvalidRequestError,
    ),
    "assignments and replicas": (
        new_topic(partitions=-1, replication=1, assignments={0: [1]}),
        InvalidRequestError,
    ),
    "gap in assignments": (
        new_topic(partitions=-1, replication=-1, assignments={0: [1], 2: [1]}),
        InvalidReplicationAssignmentError,
    ),
    "unknown broker": (
        new_topic(partitions=-1, replication=-1, assignments={0: [77]}),
        InvalidReplicationAssignmentError,
    ),
    "broker twice": (
        new_topic(partitions=-1, replication=-1, assignments={0: [1, 1]}),
        InvalidReplicationAssignmentError,
    ),
    "nowhere": (
        new_topic(partitions=-1, replication=-1, assignments={0: []}),
        InvalidReplicationAssignmentError,
    ),
}


@pytest.mark.parametrize("fault", REFUSED)
async def test_impossible_topic_is_refused_with_a_reason(kafka: KafkaHandle, fault: str) -> None:
    topic, error = REFUSED[fault]
    async with kafka.raw() as client:
        (result,) = await create(client, topic)
    assert result.error_code == error.errno, result.error_message
    assert result.error_message


async def test_existing_and_colliding_names_are_refused(kafka: KafkaHandle) -> None:
    name = unique("a.b").replace("-", "_")
    async with kafka.raw() as client:
        (first,) = await create(client, new_topic(name))
        (again,) = await create(client, new_topic(name))
        (colliding,) = await create(client, new_topic(name.replace(".", "_")))
    assert first.error_code == 0
    assert again.error_code == TopicAlreadyExistsError.errno
    assert colliding.error_code == InvalidTopicError.errno


async def test_name_given_twice_is_refused_and_the_others_created(kafka: KafkaHandle) -> None:
    twice, once = new_topic(), new_topic()
    async with kafka.raw() as client:
        results = await create(client, twice, once, twice)
    codes = {result.name: result.error_code for result in results}
    assert codes == {twice.name: InvalidRequestError.errno, once.name: 0}


async def test_assignments_are_followed(kafka: KafkaHandle) -> None:
    async with kafka.raw() as client:
        node = (await client.request(MetadataRequest(topics=[]))).brokers[0].node_id
        topic = new_topic(partitions=-1, replication=-1, assignments={0: [node], 1: [node]})
        (result,) = await create(client, topic)
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 2, 1)


# --- DeleteTopics ----------------------------------------------------------------------------
async def delete(
    client: RawClient, *states: DeleteTopicState, version: int | None = None
) -> list[DeletableTopicResult]:
    request = DeleteTopicsRequest(topics=[*states], timeout_ms=10_000)
    return (await client.request(request, version)).responses


async def test_every_version_deletes(kafka: KafkaHandle) -> None:
    for version in range(1, 7):
        topic = await kafka.create_topic()
        async with kafka.raw() as client:
            (result,) = await delete(client, DeleteTopicState(name=topic), version=version)
            assert (result.name, result.error_code) == (topic, 0)
            await until_unknown(client, topic)
            (again,) = await delete(client, DeleteTopicState(name=topic), version=version)
        assert again.error_code == UnknownTopicOrPartitionError.errno


async def until_unknown(client: RawClient, topic: str) -> None:
    for _ in range(200):
        described = await topic_metadata(client, topic)
        if described.error_code == UnknownTopicOrPartitionError.errno:
            return
        await asyncio.sleep(0.02)  # a real broker hears of it from the controller
    raise TimeoutError(f"{topic} is still there")


async def test_topic_is_deleted_by_id_and_made_anew_with_another(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, [(b"k", b"v")])
    async with kafka.raw() as client:
        old = (await topic_metadata(client, topic)).topic_id
        (result,) = await delete(client, DeleteTopicState(topic_id=old))
        assert (result.error_code, result.name, result.topic_id) == (0, topic, old)
        (unknown,) = await delete(client, DeleteTopicState(topic_id=old))
        assert (unknown.error_code, unknown.name) == (UnknownTopicIdError.errno, None)
        await kafka.create_topic(topic)
        assert (await topic_metadata(client, topic)).topic_id not in (old, ZERO_UUID)
    assert await kafka.produce(topic, 0, [(b"k", b"v")]) == 0


async def test_deletion_that_names_nothing_or_too_much_is_refused(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with kafka.raw() as client:
        topic_id = (await topic_metadata(client, topic)).topic_id
        (both,) = await delete(client, DeleteTopicState(name=topic, topic_id=topic_id))
        (neither,) = await delete(client, DeleteTopicState())
        twice = await delete(client, DeleteTopicState(name=topic), DeleteTopicState(name=topic))
        assert both.error_code == neither.error_code == InvalidRequestError.errno
        assert {result.error_code for result in twice} == {InvalidRequestError.errno}
        assert (await topic_metadata(client, topic)).error_code == 0


# --- CreatePartitions ------------------------------------------------------------------------
async def add_partitions(
    client: RawClient,
    topic: str,
    count: int,
    *,
    assignments: list[list[int]] | None = None,
    version: int | None = None,
    validate_only: bool = False,
    times: int = 1,
) -> list[CreatePartitionsTopicResult]:
    replicas = (
        None
        if assignments is None
        else [CreatePartitionsAssignment(broker_ids=ids) for ids in assignments]
    )
    wanted = CreatePartitionsTopic(name=topic, count=count, assignments=replicas)
    request = CreatePartitionsRequest(
        topics=[wanted] * times, timeout_ms=10_000, validate_only=validate_only
    )
    return (await client.request(request, version)).results


async def partition_count(client: RawClient, topic: str) -> int:
    return len((await topic_metadata(client, topic)).partitions)


async def test_every_version_adds_partitions(kafka: KafkaHandle) -> None:
    for version in range(4):
        topic = await kafka.create_topic(partitions=2)
        async with kafka.raw() as client:
            (checked,) = await add_partitions(client, topic, 5, version=version, validate_only=True)
            assert (checked.error_code, await partition_count(client, topic)) == (0, 2)
            (result,) = await add_partitions(client, topic, 5, version=version)
            assert (result.error_code, result.error_message) == (0, None)
            for _ in range(100):
                if await partition_count(client, topic) == 5:
                    break
                await asyncio.sleep(0.02)
            assert await partition_count(client, topic) == 5


async def test_impossible_partitions_are_refused(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    async with kafka.raw() as client:
        results = [
            await add_partitions(client, unique("missing"), 3),
            await add_partitions(client, topic, 2),
            await add_partitions(client, topic, 1),
            await add_partitions(client, topic, -1),
            await add_partitions(client, topic, 3, assignments=[[1], [1]]),
            await add_partitions(client, topic, 3, assignments=[[77]]),
            await add_partitions(client, topic, 3, times=2),
        ]
        assert await partition_count(client, topic) == 2
    assert [result.error_code for (result,) in results] == [
        UnknownTopicOrPartitionError.errno,
        InvalidPartitionsError.errno,
        InvalidPartitionsError.errno,
        InvalidPartitionsError.errno,
        InvalidReplicationAssignmentError.errno,
        InvalidReplicationAssignmentError.errno,
        InvalidRequestError.errno,
    ]


async def test_disk_that_fails_is_no_bug_of_the_broker(tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device")

    broker = Broker(data_dir=tmp_path)
    await broker.start()
    broker.disk.submit(fail)
    async with RawClient(broker.bootstrap_servers) as client:
        with pytest.raises(asyncio.IncompleteReadError):
            await client.request(CreateTopicsRequest(topics=[CreatableTopic(name="t")]))
    assert broker.failure is None
    with pytest.raises(KafkaStorageError, match="No space left"):
        await broker.stop()


async def test_topics_whose_files_cannot_be_written_end_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KafkaStorageError("disk full")

    new = CreatableTopic(name="new", num_partitions=1, replication_factor=1)
    async with Broker(data_dir=tmp_path) as broker:
        broker.create_topic("t")
        for name in ("create", "add_partitions", "delete"):
            monkeypatch.setattr(broker.catalog, name, fail)
        for request in (
            CreateTopicsRequest(topics=[new]),
            CreatePartitionsRequest(
                topics=[CreatePartitionsTopic(name="t", count=2, assignments=None)]
            ),
            DeleteTopicsRequest(topics=[DeleteTopicState(name="t")]),
        ):
            async with RawClient(broker.bootstrap_servers) as client:
                with pytest.raises(asyncio.IncompleteReadError):
                    await client.request(request)
        assert broker.failure is None
