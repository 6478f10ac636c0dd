"""Conversations with a broker that use every request: seeds of the broker's target, recordings.

They run on the embedded broker and on a real Kafka, once for each level of versions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiokafka_lite import records
from aiokafka_lite.errors import IllegalArgumentError, UnsupportedVersionError
from aiokafka_lite.protocol.codec import encode_versioned
from aiokafka_lite.protocol.messages import (
    alter_configs,
    cluster,
    configs,
    consumer_group_describe,
    fetch,
    group_members,
    groups,
    list_transactions,
    metadata,
    offsets,
    produce,
    sasl,
    topics,
    transactions,
)
from aiokafka_lite.protocol.schema import Request
from tests.support import crafted

LEVELS: Final = range(18)
SCRAM_SHA_256: Final = 1
TOPIC_RESOURCE: Final = 2
# Sends a request, and returns its response; None if the version cannot carry the request.
Ask = Callable[[Request[Any]], Awaitable[Any]]


def version_at(level: int, cls: type[Request[Any]]) -> int:
    """Return the version that a conversation of a level uses."""
    return min(cls.min_version + level, cls.max_version)


CANNOT_CARRY: Final = (UnsupportedVersionError, IllegalArgumentError)


async def look(ask: Ask, t: str) -> None:
    """Requests that change nothing."""
    await ask(metadata.ApiVersionsRequest(client_software_name="f", client_software_version="1"))
    known = await ask(metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=t)]))
    await ask(metadata.MetadataRequest(topics=None))
    await ask(metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name="no such")]))
    if known is not None and known.topics and known.topics[0].topic_id != bytes(16):
        by_id = metadata.MetadataRequestTopic(topic_id=known.topics[0].topic_id, name=None)
        await ask(metadata.MetadataRequest(topics=[by_id]))
    await ask(cluster.DescribeClusterRequest())
    await ask(
        cluster.DescribeTopicPartitionsRequest(
            topics=[cluster.TopicRequest(name=t)], response_partition_limit=1
        )
    )
    resource = configs.DescribeConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name=t, configuration_keys=["cleanup.policy"]
    )
    await ask(configs.DescribeConfigsRequest(resources=[resource], include_synonyms=True))
    await ask(groups.ListGroupsRequest())
    await ask(groups.ListGroupsRequest(states_filter=["Stable"], types_filter=["classic"]))
    await ask(list_transactions.ListTransactionsRequest(transactional_id_pattern="f.*"))
    await ask(sasl.DescribeUserScramCredentialsRequest(users=None))
    await ask(cluster.DescribeLogDirsRequest(topics=None))  # the embedded broker disconnects


async def change_topics(ask: Ask, t: str) -> None:
    """Create topics, change them, and delete them again."""
    name = f"{t}-new"
    new = topics.CreatableTopic(
        name=name,
        num_partitions=2,
        replication_factor=1,
        configs=[topics.CreatableTopicConfig(name="cleanup.policy", value="compact")],
    )
    placed = topics.CreatableTopic(
        name=f"{t}-placed",
        num_partitions=-1,
        replication_factor=-1,
        assignments=[topics.CreatableReplicaAssignment(partition_index=0, broker_ids=[1])],
    )
    await ask(topics.CreateTopicsRequest(topics=[new, placed], timeout_ms=10_000))
    grown = topics.CreatePartitionsTopic(name=name, count=3, assignments=None)
    await ask(topics.CreatePartitionsRequest(topics=[grown], timeout_ms=10_000))
    value = configs.AlterableConfig(name="retention.ms", value="1000", config_operation=0)
    await ask(
        configs.IncrementalAlterConfigsRequest(
            resources=[
                configs.AlterConfigsResource(
                    resource_type=TOPIC_RESOURCE, resource_name=name, configs=[value]
                )
            ]
        )
    )
    await ask(
        alter_configs.AlterConfigsRequest(
            resources=[
                alter_configs.AlterConfigsResource(
                    resource_type=TOPIC_RESOURCE,
                    resource_name=name,
                    configs=[alter_configs.AlterableConfig(name="segment.bytes", value="x")],
                )
            ]
        )
    )
    cut = topics.DeleteRecordsPartition(partition_index=0, offset=0)
    await ask(
        topics.DeleteRecordsRequest(
            topics=[topics.DeleteRecordsTopic(name=name, partitions=[cut])], timeout_ms=10_000
        )
    )
    gone = [f"{t}-placed", name, "no such"]
    await ask(
        topics.DeleteTopicsRequest(
            topics=[topics.DeleteTopicState(name=each) for each in gone], timeout_ms=10_000
        )
    )
    await ask(topics.DeleteTopicsRequest(topic_names=gone, timeout_ms=10_000))
    user = sasl.ScramCredentialUpsertion(
        name="f",
        mechanism=SCRAM_SHA_256,
        iterations=4096,
        salt=b"s" * 16,
        salted_password=b"p" * 32,
    )
    await ask(sasl.AlterUserScramCredentialsRequest(upsertions=[user]))
    await ask(
        sasl.AlterUserScramCredentialsRequest(
            deletions=[sasl.ScramCredentialDeletion(name="f", mechanism=SCRAM_SHA_256)]
        )
    )


def _produced(t: str, topic_id: bytes, batch: bytes, **more: Any) -> produce.ProduceRequest:
    data = produce.TopicProduceData(
        name=t,
        topic_id=topic_id,
        partition_data=[produce.PartitionProduceData(index=0, records=batch)],
    )
    return produce.ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data], **more)


async def _topic_id(ask: Ask, t: str) -> bytes:
    known = await ask(metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=t)]))
    found = known.topics[0].topic_id if known is not None and known.topics else bytes(16)
    assert isinstance(found, bytes)
    return found


async def write_and_read(ask: Ask, t: str) -> None:
    """Produce with every codec, and fetch in a session and without."""
    topic_id = await _topic_id(ask, t)
    producer = await ask(transactions.InitProducerIdRequest(transactional_id=None))
    for number, codec in enumerate(records.Codec):
        identity: dict[str, Any] = {}
        if number == 0 and producer is not None:
            identity = {"producer_id": producer.producer_id, "producer_epoch": 0}
            identity["base_sequence"] = 0
        await ask(_produced(t, topic_id, crafted.batch(3, codec=codec.name, **identity)))
    wanted = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=900)
    topic = fetch.FetchTopic(topic=t, topic_id=topic_id, partitions=[wanted])
    await ask(fetch.FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1500, topics=[topic]))
    opened = await ask(
        fetch.FetchRequest(
            max_wait_ms=0, min_bytes=1, session_id=0, session_epoch=0, topics=[topic]
        )
    )
    if opened is not None and opened.session_id:
        forgotten = fetch.ForgottenTopic(topic=t, topic_id=topic_id, partitions=[0])
        await ask(
            fetch.FetchRequest(
                max_wait_ms=0,
                min_bytes=1,
                session_id=opened.session_id,
                session_epoch=1,
                forgotten_topics_data=[forgotten],
            )
        )
    for timestamp in (-1, -2, -3, 1_700_000_000_001):
        part = offsets.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        await ask(
            offsets.ListOffsetsRequest(
                replica_id=-1, topics=[offsets.ListOffsetsTopic(name=t, partitions=[part])]
            )
        )
    epoch = offsets.OffsetForLeaderPartition(partition=0, leader_epoch=0)
    await ask(
        offsets.OffsetForLeaderEpochRequest(
            topics=[offsets.OffsetForLeaderTopic(topic=t, partitions=[epoch])]
        )
    )
    await ask(
        transactions.DescribeProducersRequest(
            topics=[transactions.TopicRequest(name=t, partition_indexes=[0])]
        )
    )


async def find(ask: Ask, key: str, key_type: int = 0) -> None:
    await ask(metadata.FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key]))


async def classic(ask: Ask, t: str) -> None:
    """A group of one member that joins, commits, reads its offsets and leaves."""
    group = f"{t}-classic"
    topic_id = await _topic_id(ask, t)
    await find(ask, group)
    wanted = encode_versioned(group_members.ConsumerProtocolSubscription(topics=[t]), 1)
    join = group_members.JoinGroupRequest(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=[group_members.JoinGroupRequestProtocol(name="range", metadata=wanted)],
    )
    joined = await ask(join)
    if joined is not None and joined.error_code and joined.member_id:
        join.member_id = joined.member_id
        joined = await ask(join)
    if joined is None:
        return
    member, generation = joined.member_id, joined.generation_id
    assigned = encode_versioned(
        group_members.ConsumerProtocolAssignment(
            assigned_partitions=[group_members.TopicPartition(topic=t, partitions=[0])]
        ),
        1,
    )
    await ask(
        group_members.SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[
                group_members.SyncGroupRequestAssignment(member_id=member, assignment=assigned)
            ],
        )
    )
    await ask(
        group_members.HeartbeatRequest(group_id=group, generation_id=generation, member_id=member)
    )
    offset = offsets.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=2, committed_metadata="m"
    )
    await ask(
        offsets.OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member,
            topics=[
                offsets.OffsetCommitRequestTopic(name=t, topic_id=topic_id, partitions=[offset])
            ],
        )
    )
    for chosen in (
        [offsets.OffsetFetchRequestTopics(name=t, topic_id=topic_id, partition_indexes=[0, 7])],
        None,
    ):
        await ask(
            offsets.OffsetFetchRequest(
                groups=[offsets.OffsetFetchRequestGroup(group_id=group, topics=chosen)]
            )
        )
    await ask(groups.DescribeGroupsRequest(groups=[group, "no such"]))
    await ask(groups.ListGroupsRequest())
    await ask(
        group_members.LeaveGroupRequest(
            group_id=group,
            members=[group_members.MemberIdentity(member_id=member)],
        )
    )
    gone = offsets.OffsetDeleteRequestPartition(partition_index=0)
    await ask(
        offsets.OffsetDeleteRequest(
            group_id=group,
            topics=[offsets.OffsetDeleteRequestTopic(name=t, partitions=[gone])],
        )
    )
    await ask(groups.DeleteGroupsRequest(groups_names=[group, "no such"]))


async def consumer(ask: Ask, t: str) -> None:
    """A group of KIP-848: one member that subscribes to a name, and one to an expression."""
    group = f"{t}-consumer"
    topic_id = await _topic_id(ask, t)
    await find(ask, group)
    beat = group_members.ConsumerGroupHeartbeatRequest
    for member, names, regex in (("m1", [t], None), ("m2", None, f"{t}.*")):
        joining = beat(
            group_id=group,
            member_id=member,
            member_epoch=0,
            rebalance_timeout_ms=30_000,
            subscribed_topic_names=names,
            server_assignor="uniform",
            topic_partitions=[],
        )
        if regex is not None:
            joining.subscribed_topic_regex = regex
        answer = await ask(joining)
        if answer is None:
            continue
        member, epoch = answer.member_id or member, answer.member_epoch
        owned = group_members.TopicPartitions(topic_id=topic_id, partitions=[0])
        again = beat(group_id=group, member_id=member, member_epoch=epoch, topic_partitions=[owned])
        await ask(again)
        await ask(consumer_group_describe.ConsumerGroupDescribeRequest(group_ids=[group, "no"]))
        offset = offsets.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=1, committed_metadata=None
        )
        await ask(
            offsets.OffsetCommitRequest(
                group_id=group,
                generation_id_or_member_epoch=epoch,
                member_id=member,
                topics=[
                    offsets.OffsetCommitRequestTopic(name=t, topic_id=topic_id, partitions=[offset])
                ],
            )
        )
        await ask(beat(group_id=group, member_id=member, member_epoch=-1))


async def transact(ask: Ask, t: str) -> None:
    """A transaction that is committed, and one that is aborted."""
    topic_id, name = await _topic_id(ask, t), f"{t}-transactional"
    await find(ask, name, key_type=1)
    begun = await ask(
        transactions.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    )
    if begun is None:
        return
    producer_id, epoch = begun.producer_id, begun.producer_epoch
    for sequence, is_commit in ((0, True), (2, False)):
        topic = transactions.AddPartitionsToTxnTopic(name=t, partitions=[0])
        await ask(
            transactions.AddPartitionsToTxnRequest(
                transactions=[
                    transactions.AddPartitionsToTxnTransaction(
                        transactional_id=name,
                        producer_id=producer_id,
                        producer_epoch=epoch,
                        topics=[topic],
                    )
                ],
            )
        )
        batch = crafted.batch(
            2,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        await ask(_produced(t, topic_id, batch, transactional_id=name))
        await ask(
            transactions.AddOffsetsToTxnRequest(
                transactional_id=name,
                producer_id=producer_id,
                producer_epoch=epoch,
                group_id=f"{t}-g",
            )
        )
        offset = transactions.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=1, committed_metadata=""
        )
        await ask(
            transactions.TxnOffsetCommitRequest(
                transactional_id=name,
                group_id=f"{t}-g",
                producer_id=producer_id,
                producer_epoch=epoch,
                topics=[
                    transactions.TxnOffsetCommitRequestTopic(
                        name=t, topic_id=topic_id, partitions=[offset]
                    )
                ],
            )
        )
        await ask(transactions.DescribeTransactionsRequest(transactional_ids=[name, "x"]))
        await ask(list_transactions.ListTransactionsRequest())
        ended = await ask(
            transactions.EndTxnRequest(
                transactional_id=name,
                producer_id=producer_id,
                producer_epoch=epoch,
                committed=is_commit,
            )
        )
        if ended is not None and ended.producer_epoch > epoch:
            producer_id, epoch = ended.producer_id, ended.producer_epoch
    wanted = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=5_000)
    topic_wanted = fetch.FetchTopic(topic=t, topic_id=topic_id, partitions=[wanted])
    await ask(
        fetch.FetchRequest(max_wait_ms=0, min_bytes=1, isolation_level=1, topics=[topic_wanted])
    )
    marker = transactions.WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=True,
        topics=[transactions.TopicRequest(name=t, partition_indexes=[0])],
    )
    await ask(transactions.WriteTxnMarkersRequest(markers=[marker]))


async def ask_about(ask: Ask, names: list[str]) -> None:
    """Ask for groups and transactional ids of these names, and change them."""
    await ask(groups.DescribeGroupsRequest(groups=names))
    await ask(consumer_group_describe.ConsumerGroupDescribeRequest(group_ids=names))
    await ask(transactions.DescribeTransactionsRequest(transactional_ids=names))
    await ask(
        offsets.OffsetFetchRequest(
            groups=[offsets.OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
        )
    )
    for name in names[:2]:
        await ask(
            group_members.ConsumerGroupHeartbeatRequest(
                group_id=name,
                member_id="another",
                member_epoch=0,
                rebalance_timeout_ms=30_000,
                subscribed_topic_names=["t"],
                topic_partitions=[],
            )
        )
        wanted = encode_versioned(group_members.ConsumerProtocolSubscription(topics=["t"]), 1)
        await ask(
            group_members.JoinGroupRequest(
                group_id=name,
                session_timeout_ms=30_000,
                rebalance_timeout_ms=30_000,
                member_id="ü1",
                protocol_type="consumer",
                protocols=[group_members.JoinGroupRequestProtocol(name="range", metadata=wanted)],
            )
        )
        await ask(transactions.InitProducerIdRequest(transactional_id=name))
    await ask(groups.DeleteGroupsRequest(groups_names=names))


SCENES: Final = (look, change_topics, write_and_read, classic, consumer, transact)
