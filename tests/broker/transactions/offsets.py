"""Offsets that are committed within transactions."""

from __future__ import annotations

from aiokafka_lite.errors import UnstableOffsetCommitError
from aiokafka_lite.protocol.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from aiokafka_lite.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.broker.transactions.requests import Producer, once_settled
from tests.support.group_requests import GroupRequests, MemberOf
from tests.support.wire import RawClient

OK = 0
BEFORE_ADDING = 4


async def try_commit(
    producer: Producer,
    group: GroupRequests,
    topic: str,
    offset: int,
    *,
    partition: int = 0,
    version: int = BEFORE_ADDING,
    member: MemberOf | None = None,
    metadata: str = "",
) -> int:
    """Commit one offset within the transaction and return the error code."""
    member = member or MemberOf("", -1)
    item = TxnOffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_metadata=metadata
    )
    request = TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id=group.group_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        generation_id=member.generation,
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[item])],
    )

    async def attempt() -> int:
        answer = await producer.client.request(request, version)
        return answer.topics[0].partitions[0].error_code

    return await once_settled(attempt, lambda code: code)


async def fetched(
    client: RawClient, group: GroupRequests, topic: str, *, stable: bool = True
) -> tuple[int, int]:
    """Return the error code and the offset that a fetch brings, once no marker is on its way."""
    wanted = OffsetFetchRequestTopics(name=topic, partition_indexes=[0])
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group.group_id, topics=[wanted])],
        require_stable=stable,
    )
    answer = await client.request(request, 9)
    (partition,) = answer.groups[0].topics[0].partitions
    return partition.error_code, partition.committed_offset


async def commit(producer: Producer, group: GroupRequests, topic: str, offset: int) -> None:
    """Commit one offset within the transaction, to which the group is added."""
    assert await producer.add_offsets(group.group_id) == OK
    assert await try_commit(producer, group, topic, offset) == OK


async def settled(client: RawClient, group: GroupRequests, topic: str) -> int:
    """Return the committed offset when no transaction is open any more."""
    found = await once_settled(
        lambda: fetched(client, group, topic),
        lambda found: found[0],
        [UnstableOffsetCommitError.errno],
    )
    assert found[0] == OK
    return found[1]
