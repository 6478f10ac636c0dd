"""Offsets committed in transactions: the same outcome here and on a real Kafka."""

from __future__ import annotations

import pytest

from aiokafka_lite.errors import (
    IllegalGenerationError,
    InvalidGroupIdError,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    NoError,
    OffsetMetadataTooLargeError,
    TransactionAbortableError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from aiokafka_lite.protocol.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from aiokafka_lite.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.broker.transactions.offsets import (
    BEFORE_ADDING,
    OK,
    commit,
    fetched,
    settled,
    try_commit,
)
from tests.broker.transactions.requests import VERSION_1, VERSION_2, Producer
from tests.support.cluster import KafkaHandle, unique
from tests.support.group_requests import GroupRequests, MemberOf, await_coordinator
from tests.support.wire import RawClient

NEWEST = 5
BEFORE_ABORTABLE = 3


@pytest.fixture
async def group(cluster: KafkaHandle) -> GroupRequests:
    await await_coordinator(cluster)
    return GroupRequests(cluster)


@pytest.mark.parametrize("version", [BEFORE_ADDING, NEWEST])
@pytest.mark.parametrize("is_commit", [True, False])
async def test_offset_counts_when_its_transaction_commits(
    client: RawClient,
    producer: Producer,
    group: GroupRequests,
    topic: str,
    version: int,
    is_commit: bool,
) -> None:
    assert await group.commit(topic, 5) == OK
    if version < NEWEST:
        assert await producer.add_offsets(group.group_id) == OK
    assert await try_commit(producer, group, topic, 9, version=version) == OK
    assert await fetched(client, group, topic) == (UnstableOffsetCommitError.errno, -1)
    assert await fetched(client, group, topic, stable=False) == (OK, 5)
    await producer.end(commit=is_commit, version=VERSION_2 if version == NEWEST else VERSION_1)
    assert await settled(client, group, topic) == (9 if is_commit else 5)


async def test_later_commit_outlives_the_transaction(
    client: RawClient, producer: Producer, group: GroupRequests, topic: str
) -> None:
    await commit(producer, group, topic, 9)
    assert await group.commit(topic, 3) == OK
    assert await fetched(client, group, topic) == (UnstableOffsetCommitError.errno, -1)
    await producer.end(commit=True)
    assert await settled(client, group, topic) == 3


async def test_offset_committed_last_wins_whichever_transaction_ends_last(
    client: RawClient, group: GroupRequests, topic: str
) -> None:
    first, second = await Producer(client).init(), await Producer(client).init()
    await commit(first, group, topic, 1)
    await commit(second, group, topic, 2)
    await second.end(commit=True)
    await second.until_state("CompleteCommit")
    assert await fetched(client, group, topic) == (UnstableOffsetCommitError.errno, -1)
    await first.end(commit=True)
    assert await settled(client, group, topic) == 2


async def test_latest_offset_of_a_transaction_counts(
    client: RawClient, producer: Producer, group: GroupRequests, topic: str
) -> None:
    await commit(producer, group, topic, 1)
    assert await try_commit(producer, group, topic, 2) == OK
    await producer.end(commit=True)
    assert await settled(client, group, topic) == 2


async def test_other_partitions_stay_stable(
    client: RawClient, producer: Producer, group: GroupRequests, topic: str
) -> None:
    assert await producer.add_offsets(group.group_id) == OK
    assert await try_commit(producer, group, topic, 9, partition=1) == OK
    assert await fetched(client, group, topic) == (OK, -1)
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group.group_id, topics=None)],
        require_stable=True,
    )
    everything = await client.request(request, 9)
    assert everything.groups[0].error_code == OK
    await producer.end(commit=True)


@pytest.mark.parametrize(
    ("version", "error"),
    [
        (BEFORE_ABORTABLE, InvalidTxnState),
        (BEFORE_ADDING, TransactionAbortableError),
        (NEWEST, NoError),
    ],
)
async def test_group_has_to_be_added_first(
    producer: Producer, group: GroupRequests, topic: str, version: int, error: type[NoError]
) -> None:
    await producer.add(topic)
    assert await try_commit(producer, group, topic, 9, version=version) == error.errno


async def test_commit_is_checked(producer: Producer, group: GroupRequests, topic: str) -> None:
    assert await producer.add_offsets(group.group_id) == OK
    nobody = await try_commit(producer, group, topic, 9, member=MemberOf("nobody", 1))
    assert nobody == IllegalGenerationError.errno
    missing = await try_commit(producer, group, unique("missing"), 9)
    assert missing == UnknownTopicOrPartitionError.errno
    too_long = await try_commit(producer, group, topic, 9, metadata="x" * 4097)
    assert too_long == OffsetMetadataTooLargeError.errno
    nameless = GroupRequests(group.kafka, "")
    assert await try_commit(producer, nameless, topic, 9) == InvalidGroupIdError.errno


async def test_offsets_are_committed_next_to_those_of_unknown_partitions(
    client: RawClient, producer: Producer, group: GroupRequests, topic: str
) -> None:
    assert await producer.add_offsets(group.group_id) == OK
    request = TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id=group.group_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=name,
                partitions=[
                    TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=9)
                    for index in indexes
                ],
            )
            for name, indexes in ((unique("missing"), (0, 1)), (topic, (7, 0)))
        ],
    )
    answer = await client.request(request, BEFORE_ADDING)
    codes = [partition.error_code for each in answer.topics for partition in each.partitions]
    assert codes == [UnknownTopicOrPartitionError.errno] * 3 + [OK]


async def test_fenced_producer_commits_nothing(
    client: RawClient, producer: Producer, group: GroupRequests, topic: str
) -> None:
    newer = await Producer(client, producer.transactional_id).init()
    for version in (BEFORE_ADDING, NEWEST):
        code = await try_commit(producer, group, topic, 9, version=version)
        assert code == InvalidProducerEpoch.errno
    await commit(newer, group, topic, 1)
    assert await try_commit(producer, group, topic, 9) == InvalidProducerEpoch.errno
    stranger = Producer(client)
    stranger.take(123_456_789_012, 0)
    assert await try_commit(stranger, group, topic, 9) == InvalidProducerIdMapping.errno
    await newer.end(commit=True)
    assert await settled(client, group, topic) == 1


async def test_member_is_checked_if_the_client_says_which(
    client: RawClient, producer: Producer, group: GroupRequests, topic: str
) -> None:
    member = await group.member()
    assert await producer.add_offsets(group.group_id) == OK
    later = MemberOf(member.member_id, member.generation + 1)
    stranger = MemberOf("nobody", member.generation)
    codes = [
        await try_commit(producer, group, topic, 9, member=one)
        for one in (None, member, later, stranger)
    ]
    assert codes == [OK, OK, IllegalGenerationError.errno, UnknownMemberIdError.errno]
    await producer.end(commit=True)
    assert await settled(client, group, topic) == 9


async def test_deleted_group_takes_pending_offsets_along(
    client: RawClient, producer: Producer, group: GroupRequests, topic: str
) -> None:
    await commit(producer, group, topic, 9)
    assert await group.delete() == OK
    await producer.end(commit=True)
    await producer.until_state("CompleteCommit")
    assert await fetched(client, group, topic) == (OK, -1)
