"""Handler of Fetch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from aiokafka_lite.broker.cluster import ClusterNode
from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.fetching.read import FetchLimits, FetchRead, Findings, ReplicaReader
from aiokafka_lite.broker.fetching.session import CachedPartition, FetchContext, FetchKey
from aiokafka_lite.broker.handlers.registry import Delayed, handler
from aiokafka_lite.broker.topics import Partition
from aiokafka_lite.errors import (
    BrokerResponseError,
    FencedLeaderEpochError,
    NotLeaderForPartitionError,
)
from aiokafka_lite.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from aiokafka_lite.protocol.source import ELEMENTS_PER_STEP, Steps

FIRST_THAT_READS_FOLLOWERS: Final = 11
FIRST_WITH_TOPIC_IDS: Final = 13
FIRST_WITH_LEADER_HINTS: Final = 16

_MOVED: Final = (NotLeaderForPartitionError.errno, FencedLeaderEpochError.errno)


@handler(FetchRequest)
def fetch(ctx: RequestContext, request: FetchRequest) -> Steps[FetchResponse | Delayed]:
    """Read partitions now, or when `min_bytes` are there, after `max_wait_ms` at most."""
    uses_topic_ids = ctx.api_version >= FIRST_WITH_TOPIC_IDS
    now = ctx.cluster.loop.time()
    targets = yield from _targets(request.topics, uses_topic_ids)
    forgotten: list[FetchKey] = []
    if request.forgotten_topics_data:
        forgotten = yield from _forgotten(request.forgotten_topics_data, uses_topic_ids)
    context = ctx.node.fetch_sessions.context(
        request.session_id,
        request.session_epoch,
        targets,
        forgotten,
        uses_topic_ids=uses_topic_ids,
        now=now,
    )
    max_bytes = min(request.max_bytes, ctx.cluster.config.fetch_max_bytes)
    limits = FetchLimits(
        min_bytes=min(request.min_bytes, max_bytes),
        max_bytes=max_bytes,
        isolation_level=request.isolation_level,
    )
    reader = ReplicaReader(
        ctx.node,
        ctx.cluster.nodes,
        request.rack_id,
        ctx.api_version >= FIRST_THAT_READS_FOLLOWERS,
    )
    read = FetchRead(context.targets, limits, partial(_find, ctx), reader)
    findings = yield from read.read_in_steps()
    if (
        not read.keys
        or request.max_wait_ms <= 0
        or findings.size >= limits.min_bytes
        or findings.is_final
    ):
        return _response(ctx, context, findings)
    return Delayed(
        keys=read.keys,
        deadline=now + request.max_wait_ms / 1000,
        is_ready=read.is_worth_answering,
        response=lambda: _read_again(ctx, context, read),
    )


def _read_again(
    ctx: RequestContext, context: FetchContext, read: FetchRead
) -> Steps[FetchResponse]:
    findings = yield from read.read_in_steps()
    return _response(ctx, context, findings)


def _targets(topics: Sequence[FetchTopic], uses_topic_ids: bool) -> Steps[list[CachedPartition]]:
    """Return the partitions to read. The last one counts if a partition is repeated."""
    targets: dict[FetchKey, CachedPartition] = {}
    for number, topic in enumerate(topics, 1):
        if not number % ELEMENTS_PER_STEP:
            yield
        for in_topic, item in enumerate(topic.partitions, 1):
            key = FetchKey(topic.topic_id if uses_topic_ids else topic.topic, item.partition)
            targets[key] = CachedPartition(key, item)
            if not in_topic % ELEMENTS_PER_STEP:
                yield
    return list(targets.values())


def _forgotten(topics: Sequence[ForgottenTopic], uses_topic_ids: bool) -> Steps[list[FetchKey]]:
    keys: list[FetchKey] = []
    for number, topic in enumerate(topics, 1):
        if not number % ELEMENTS_PER_STEP:
            yield
        for partition in topic.partitions:
            keys.append(FetchKey(topic.topic_id if uses_topic_ids else topic.topic, partition))
            if not len(keys) % ELEMENTS_PER_STEP:
                yield
    return keys


def _find(ctx: RequestContext, target: CachedPartition) -> Partition | type[BrokerResponseError]:
    try:
        partition = ctx.cluster.catalog.partition(*target.key)
    except BrokerResponseError as error:
        return type(error)
    refused = ctx.refuses and ctx.refuses(partition.topic, partition.index)
    return refused or partition


def _response(ctx: RequestContext, context: FetchContext, findings: Findings) -> FetchResponse:
    session_id, partitions = context.to_send(findings.results)
    hints: list[ClusterNode] = []
    has_errors = findings.is_final or ctx.refuses is not None
    if has_errors and ctx.api_version >= FIRST_WITH_LEADER_HINTS:
        hints = _hint_at_leaders(ctx, partitions)
    return FetchResponse(
        error_code=context.error.errno,
        session_id=session_id,
        responses=_by_topic(partitions),
        node_endpoints=[
            NodeEndpoint(node_id=at.id, host=at.host, port=at.port, rack=at.rack)
            for at in map(ctx.address_of, hints)
        ],
    )


def _hint_at_leaders(
    ctx: RequestContext, partitions: Sequence[tuple[FetchKey, PartitionData]]
) -> list[ClusterNode]:
    """Add the leaders of moved partitions to the response, and return their nodes (KIP-951)."""
    leaders: dict[int, ClusterNode] = {}
    for key, data in partitions:
        if data.error_code not in _MOVED:
            continue
        try:
            partition = ctx.cluster.catalog.partition(*key)
        except BrokerResponseError:  # it was deleted after it was read
            continue
        leader = ctx.cluster.nodes.get(partition.leader_id)
        if leader is not None:
            data.current_leader = LeaderIdAndEpoch(
                leader_id=leader.id, leader_epoch=partition.leader_epoch
            )
            leaders[leader.id] = leader
    return list(leaders.values())


def _by_topic(
    partitions: Sequence[tuple[FetchKey, PartitionData]],
) -> list[FetchableTopicResponse]:
    """Group adjacent partitions of one topic. The order of partitions does not change."""
    topics: list[FetchableTopicResponse] = []
    latest: str | bytes | None = None
    for key, data in partitions:
        if key.topic != latest:
            latest = key.topic
            topics.append(
                FetchableTopicResponse(topic_id=latest)
                if isinstance(latest, bytes)
                else FetchableTopicResponse(topic=latest)
            )
        topics[-1].partitions.append(data)
    return topics
