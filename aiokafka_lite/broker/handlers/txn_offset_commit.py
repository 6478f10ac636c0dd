"""TxnOffsetCommit (key 28), versions 0 to 6.

2 leader epochs (KIP-320); 3 flexible, the member says who it is (KIP-447); 4 TRANSACTION_ABORTABLE;
5 adds the group's partition to the transaction (KIP-890); 6 names topics by id (KIP-1319).
"""

from __future__ import annotations

from typing import Final

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.groups.offsets.cache import OffsetCommitEntry
from aiokafka_lite.broker.groups.offsets.transactions import Committer
from aiokafka_lite.broker.groups.values import ErrorType
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.log.producers import ProducerIdentity
from aiokafka_lite.broker.topics import GROUP_METADATA_TOPIC
from aiokafka_lite.broker.transactions.verification import Verification, verify
from aiokafka_lite.errors import (
    InvalidGroupIdError,
    NoError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.transactions import (
    FIRST_BY_TOPIC_ID,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from aiokafka_lite.structs import TopicPartition

FIRST_ABORTABLE: Final = 4
FIRST_THAT_ADDS: Final = 5


@handler(TxnOffsetCommitRequest, is_by_element=True)
def handle(ctx: RequestContext, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
    """Store what a group has consumed, as a part of the transaction that produces from it."""
    offsets: list[OffsetCommitEntry] = []
    # Answers in the order of the request; those of `offsets` are filled in afterwards.
    accepted: list[TxnOffsetCommitResponsePartition] = []
    response = TxnOffsetCommitResponse()
    for item in request.topics:
        answer = TxnOffsetCommitResponseTopic(name=item.name, topic_id=item.topic_id)
        response.topics.append(answer)
        is_by_id = ctx.api_version >= FIRST_BY_TOPIC_ID
        topic = ctx.cluster.topic_by_id(item.topic_id) if is_by_id else ctx.cluster.topic(item.name)
        for partition in item.partitions:
            index = partition.partition_index
            result = TxnOffsetCommitResponsePartition(partition_index=index)
            answer.partitions.append(result)
            if topic is None and is_by_id:
                result.error_code = UnknownTopicIdError.errno
                continue
            if topic is None or topic.partition(index) is None:
                result.error_code = UnknownTopicOrPartitionError.errno
                continue
            accepted.append(result)
            offsets.append(
                OffsetCommitEntry(
                    tp=TopicPartition(topic.name, index),
                    topic_id=item.topic_id,
                    offset=partition.committed_offset,
                    leader_epoch=partition.committed_leader_epoch,
                    metadata=partition.committed_metadata,
                )
            )
    if offsets:
        for result, error in zip(accepted, _commit(ctx, request, offsets), strict=True):
            result.error_code = error.errno
    return response


def _commit(
    ctx: RequestContext, request: TxnOffsetCommitRequest, offsets: list[OffsetCommitEntry]
) -> list[ErrorType]:
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)
    error = _verify(ctx, request, producer)
    if error is not NoError:
        return [error] * len(offsets)
    return ctx.groups.transactional.commit(
        request.group_id,
        offsets,
        producer,
        Committer(request.member_id, request.group_instance_id, request.generation_id),
    )


def _verify(
    ctx: RequestContext, request: TxnOffsetCommitRequest, producer: ProducerIdentity
) -> ErrorType:
    """Check that the group's partition is part of the transaction, or make it one."""
    if not request.group_id:
        return InvalidGroupIdError
    error = ctx.groups.availability(request.group_id)
    if error is not NoError:
        return error
    tp = TopicPartition(GROUP_METADATA_TOPIC, ctx.groups.partition_for(request.group_id))
    producers = ctx.cluster.partition(*tp).log.producers
    if producers.has_open_transaction(producer.producer_id, producer.epoch):
        return NoError
    verification = Verification.OLD
    if ctx.api_version >= FIRST_ABORTABLE:
        verification = Verification.ABORTABLE
    if ctx.api_version >= FIRST_THAT_ADDS:
        verification = Verification.ADDS
    return verify(ctx.cluster.transactions, request.transactional_id, producer, tp, verification)
