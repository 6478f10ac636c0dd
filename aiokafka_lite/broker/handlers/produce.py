"""Handler of Produce.

As in Kafka, versions 0 to 2 are advertised and refused: librdkafka derives the broker's features
from them (KAFKA-18659).
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.handlers.replies import answered, code_of, text_of
from aiokafka_lite.broker.log.validation import validated_batch
from aiokafka_lite.broker.topics import NO_LEADER, Partition, Topic
from aiokafka_lite.broker.transactions.verification import verify_batch, why_refused
from aiokafka_lite.errors import (
    BrokerResponseError,
    CorruptRecordException,
    InvalidRequiredAcksError,
    InvalidTopicError,
    KafkaError,
    KafkaProtocolError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    UnsupportedCodecError,
)
from aiokafka_lite.protocol.messages.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.protocol.source import Steps

FIRST_WITH_LEADER_HINTS: Final = 10

NO_ACKS: Final = 0
ALL_REPLICAS: Final = -1
LEGAL_ACKS: Final = (ALL_REPLICAS, NO_ACKS, 1)
NO_OFFSET: Final = -1

# The only client that may write to internal topics.
ADMIN_CLIENT_ID: Final = "__admin_client"


@handler(ProduceRequest, advertised_min_version=0)
def produce(
    ctx: RequestContext, request: ProduceRequest
) -> Steps[ProduceResponse | Awaitable[ProduceResponse] | None]:
    """Append one batch to each partition.

    An appended batch is in the page cache, as in Kafka: it survives the process, but not a power
    failure. The response waits until a new topic would survive, too.

    Raises:
        KafkaProtocolError: A partition failed and the client expects no response (acks=0). Closing
            the connection is the only way to report that.
    """
    outcome = _Outcome((yield from why_refused(request)))
    append = partial(_append, request=request, outcome=outcome)
    answer = yield from answered(ctx, request, append)
    if request.acks != NO_ACKS:
        leaders = (ctx.address_of(ctx.cluster.nodes[node]) for node in outcome.leaders)
        answer.node_endpoints = [
            NodeEndpoint(node_id=at.id, host=at.host, port=at.port, rack=at.rack) for at in leaders
        ]
        return answer if outcome.are_topics_kept else _answer_when_kept(ctx, answer)
    if outcome.failed is not None:
        raise KafkaProtocolError(
            f"a Produce request with acks=0 failed with error code {outcome.failed.error_code}: "
            f"{outcome.failed.error_message}"
        )
    return None


@dataclass(slots=True)
class _Outcome:
    """The outcome of a request for all of its partitions.

    Attributes:
        refused: The error of the whole request.
        failed: The first partition with an error.
        leaders: The nodes that lead moved partitions, in order.
    """

    refused: BrokerResponseError | None
    failed: PartitionProduceResponse | None = None
    leaders: dict[int, None] = field(default_factory=dict)
    are_topics_kept: bool = True


async def _answer_when_kept(ctx: RequestContext, answer: ProduceResponse) -> ProduceResponse:
    await ctx.cluster.disk.settled()
    return answer


def _append(
    ctx: RequestContext,
    data: TopicProduceData,
    item: PartitionProduceData,
    answer: PartitionProduceResponse,
    *,
    request: ProduceRequest,
    outcome: _Outcome,
) -> None:
    acks = request.acks
    try:
        if outcome.refused is not None:
            raise outcome.refused
        if acks not in LEGAL_ACKS:
            raise InvalidRequiredAcksError(f"acks must be one of {LEGAL_ACKS}, not {acks}")
        topic, partition = _find(ctx, data, item.index)
        partition.check_leader(ctx.node.id)
        needed = min(topic.config.min_insync_replicas, len(partition.replicas))
        if acks == ALL_REPLICAS and len(partition.isr) < needed:
            raise NotEnoughReplicasError(
                f"the number of in-sync replicas is {len(partition.isr)}, "
                f"but acks=all requires at least {needed} (min.insync.replicas)"
            )
        now_ms = ctx.cluster.clock()
        header, batch = validated_batch(item.records, ctx.api_version, topic.config, now_ms)
        if header.is_transactional:
            verify_batch(
                ctx.cluster.transactions,
                ctx.api_version,
                request.transactional_id or "",
                header,
                partition,
            )
        result = partition.append_batch(
            header, batch, append_time_ms=now_ms if topic.config.is_log_append_time else None
        )
    except KafkaError as error:
        is_codec = isinstance(error, UnsupportedCodecError)
        answer.error_code = CorruptRecordException.errno if is_codec else code_of(error)
        answer.error_message, answer.base_offset = text_of(error), NO_OFFSET
        outcome.failed = outcome.failed or answer
        if isinstance(error, NotLeaderForPartitionError):
            _hint_at_leader(ctx, data, answer, outcome)
        return
    outcome.are_topics_kept = outcome.are_topics_kept and ctx.cluster.catalog.is_kept(topic)
    answer.base_offset = result.base_offset
    answer.log_append_time_ms = result.log_append_time_ms
    answer.log_start_offset = partition.log_start_offset


def _hint_at_leader(
    ctx: RequestContext,
    data: TopicProduceData,
    answer: PartitionProduceResponse,
    outcome: _Outcome,
) -> None:
    """Add the current leader to the response (KIP-951)."""
    _, partition = _find(ctx, data, answer.index)
    if ctx.api_version >= FIRST_WITH_LEADER_HINTS and partition.leader_id != NO_LEADER:
        answer.current_leader = LeaderIdAndEpoch(
            leader_id=partition.leader_id, leader_epoch=partition.leader_epoch
        )
        outcome.leaders[partition.leader_id] = None


def _find(ctx: RequestContext, data: TopicProduceData, index: int) -> tuple[Topic, Partition]:
    catalog = ctx.cluster.catalog
    partition = catalog.partition(data.name if data.topic_id == ZERO_UUID else data.topic_id, index)
    topic = catalog.topics[partition.topic]
    if topic.is_internal and ctx.client_id != ADMIN_CLIENT_ID:
        raise InvalidTopicError(f"only brokers can write to the internal topic {topic.name}")
    return topic, partition
