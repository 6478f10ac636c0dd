"""Share groups at the leaders of partitions: ShareFetch and ShareAcknowledge; and their offsets.

Members of the group coordinator are not checked: as in Kafka, any member id may fetch what the
group has started to consume.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Final, TypeAlias, cast

from aiokafka_lite.broker.configs import READ_UNCOMMITTED
from aiokafka_lite.broker.handlers.base import (
    Delayed,
    RequestContext,
    answered,
    code_of,
    handler,
    text_of,
)
from aiokafka_lite.broker.share.partition import (
    Acknowledged,
    AcknowledgeType,
    BrokerSharePartition,
    OffsetSpan,
)
from aiokafka_lite.broker.share.partitions import ShareKey
from aiokafka_lite.broker.share.sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    BrokerShareSession,
    ShareSessionKey,
)
from aiokafka_lite.broker.topics import Node, Partition, PartitionKey
from aiokafka_lite.errors import (
    BrokerResponseError,
    InvalidRequestError,
    InvalidShareSessionEpochError,
    KafkaError,
    NoError,
    NotLeaderForPartitionError,
    UnknownError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.fetch import (
    NodeEndpoint,
)
from aiokafka_lite.protocol.messages.share import (
    AcknowledgementBatch,
    AcquiredRecords,
    PartitionData,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from aiokafka_lite.protocol.messages.share_acknowledge import (
    PartitionData as AckPartitionData,
)
from aiokafka_lite.protocol.messages.share_acknowledge import (
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)
from aiokafka_lite.protocol.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.protocol.source import ELEMENTS_PER_STEP, Steps
from aiokafka_lite.records import BatchHeader, iter_batches

MAX_MEMBER_ID: Final = 36
WHOLE_BATCHES: Final = 0
EXACT: Final = 1
LAST_OFFSET: Final = 2**63 - 1
NOT_HOSTED: Final = "This server does not host this topic-partition."

Acks: TypeAlias = "Mapping[PartitionKey, Sequence[AcknowledgementBatch]]"


@dataclass(slots=True)
class ShareRead:
    """The reads of one ShareFetch request, and the partitions of its response."""

    ctx: RequestContext
    member: ShareSessionKey
    session: BrokerShareSession
    request: ShareFetchRequest
    found: dict[PartitionKey, PartitionData] = field(default_factory=dict)

    def open(self, key: PartitionKey) -> tuple[Partition, BrokerSharePartition] | None:
        """Return a partition that may have records to acquire. Raises its error."""
        ctx = self.ctx
        partition = ctx.cluster.catalog.partition(*key)
        partition.check_leader(ctx.node.id)
        share_key = ShareKey(self.member.group_id, key)
        live = ctx.cluster.share_partitions.at_leader(share_key, partition)
        if live is None:
            return None
        live.advance(partition.log_start_offset)
        return (partition, live) if live.can_acquire else None

    @property
    def is_committed(self) -> bool:
        settings = self.ctx.cluster.share_group_settings(self.member.group_id)
        return settings.isolation_level != READ_UNCOMMITTED

    def _readable(self, partition: Partition, live: BrokerSharePartition) -> OffsetSpan:
        """Return the first offset to read, and the end offset."""
        log = partition.log
        end = min(log.high_watermark, log.last_stable_offset if self.is_committed else LAST_OFFSET)
        return OffsetSpan(max(live.next_offset, log.log_start_offset), end)

    def is_worth_answering(self) -> Steps[bool]:
        """Return whether min_bytes can be acquired, or a partition has an error."""
        available = 0
        for number, key in enumerate(tuple(self.session.partitions), 1):
            if not number % ELEMENTS_PER_STEP:
                yield
            try:
                opened = self.open(key)
                if opened is not None:
                    start, end = self._readable(*opened)
                    if start < end:
                        limit = self.request.max_bytes
                        available += opened[0].log.bytes_from(start, limit, end)
            except BrokerResponseError:
                return True
            if available and available >= self.request.min_bytes:
                return True
        return False

    def read_in_steps(self) -> Steps[None]:
        records_left, bytes_left = self.request.max_records, self.request.max_bytes
        served: list[PartitionKey] = []
        for key in tuple(self.session.partitions):
            if records_left <= 0 or bytes_left <= 0:
                break
            try:
                opened = self.open(key)
                if opened is None:
                    continue
                data = self._acquire(*opened, records_left, bytes_left)
            except UnknownTopicIdError:
                raise UnknownError("the session has a topic that does not exist") from None
            except BrokerResponseError as error:
                data = self.entry(key)
                data.error_code, data.error_message = code_of(error), text_of(error)
            else:
                served += [key] if data.acquired_records else []
            records_left -= sum(
                each.last_offset - each.first_offset + 1 for each in data.acquired_records
            )
            bytes_left -= len(data.records or b"")
            yield
        self.session.serve_last(served)

    def entry(self, key: PartitionKey) -> PartitionData:
        """Return the partition's part of the response."""
        if key not in self.found:
            self.found[key] = PartitionData(partition_index=key.partition, records=b"")
        return self.found[key]

    def _acquire(
        self, partition: Partition, live: BrokerSharePartition, max_records: int, max_bytes: int
    ) -> PartitionData:
        start, end = self._readable(partition, live)
        if start >= end:
            return PartitionData()
        read = memoryview(partition.log.read(start, max_bytes, end_offset=end))
        batches = [header for header, _ in iter_batches(read, check_crcs=False)]
        if not batches:
            return PartitionData()
        shares, first = self.ctx.cluster.share_partitions, partition.log_start_offset
        share_key = ShareKey(self.member.group_id, partition.key)
        acquired = live.acquire(
            self.member.member_id,
            [OffsetSpan(max(each.base_offset, first), each.last_offset) for each in batches],
            max_records,
            batch_size=self.request.batch_size,
            is_exact=self.request.share_acquire_mode == EXACT,
            until=shares.lock_end(self.member.group_id),
        )
        if self.is_committed:
            aborted = list(_aborted(partition, batches))
            live.archive(aborted)
            acquired = [rest for each in acquired for rest in each.without(aborted)]
        data = self.entry(partition.key)
        data.acquired_records = [
            AcquiredRecords(first_offset=first, last_offset=last, delivery_count=count)
            for first, last, count in acquired
        ]
        if acquired:
            shares.acquired(share_key)
            data.records = _sliced(read, batches, acquired[0].first, acquired[-1].last)
        return data


def _aborted(partition: Partition, batches: Sequence[BatchHeader]) -> Iterable[OffsetSpan]:
    """Yield the batches of aborted transactions, without their markers."""
    transactions = partition.log.producers.transactions
    aborted = transactions.aborted_within(batches[0].base_offset, batches[-1].last_offset + 1)
    for batch in batches:
        if (
            batch.is_transactional
            and not batch.is_control
            and any(
                each.producer_id == batch.producer_id
                and each.first_offset <= batch.base_offset <= each.last_offset
                for each in aborted
            )
        ):
            yield OffsetSpan(batch.base_offset, batch.last_offset)


def _sliced(read: memoryview, batches: Sequence[BatchHeader], first: int, last: int) -> memoryview:
    """Return the batches that have acquired records, and those between them."""
    start = sum(each.size for each in batches if each.last_offset < first)
    end = sum(each.size for each in batches if each.base_offset <= last)
    return read[start:end]


@handler(ShareFetchRequest)
def share_fetch(ctx: RequestContext, request: ShareFetchRequest) -> Steps[object]:
    """Acknowledge records, then acquire others now, or when `min_bytes` are there."""
    try:
        read, acks = _open_read(ctx, request)
    except BrokerResponseError as error:
        return ShareFetchResponse(error_code=error.errno, error_message=None)
    for key, batches in acks.items():
        yield
        refused = _acknowledge(ctx, read.member, key, batches, is_renew=request.is_renew_ack)
        data = read.entry(key)
        if refused is not None:
            data.acknowledge_error_code = code_of(refused)
            data.acknowledge_error_message = text_of(refused)
    if request.share_session_epoch == FINAL_EPOCH:
        ctx.cluster.share_partitions.release_member(read.member, ctx.node.id)
        return _response(read)
    if request.is_renew_ack or request.max_records <= 0:
        return _response(read)
    may_wait = bool(read.session.partitions) and request.max_wait_ms > 0
    if not may_wait or (yield from read.is_worth_answering()):
        return (yield from _read(read))
    return Delayed(
        keys=list(read.session.partitions),
        deadline=ctx.cluster.loop.time() + request.max_wait_ms / 1000,
        is_ready=read.is_worth_answering,
        response=partial(_read, read),
    )


def _read(read: ShareRead) -> Steps[ShareFetchResponse]:
    try:
        yield from read.read_in_steps()
    except UnknownError as error:
        return ShareFetchResponse(error_code=error.errno)
    return _response(read)


def _open_read(ctx: RequestContext, request: ShareFetchRequest) -> tuple[ShareRead, Acks]:
    member = _member(request)
    if request.share_acquire_mode not in (WHOLE_BATCHES, EXACT):
        raise UnknownError(f"Unknown share acquire mode id: {request.share_acquire_mode}")
    sizes = (request.max_records, request.batch_size, request.min_bytes, request.max_bytes)
    if request.is_renew_ack and any(sizes):
        raise InvalidRequestError("a request with is_renew_ack must not fetch")
    wanted = {
        PartitionKey(topic.topic_id, each.partition_index): each.acknowledgement_batches
        for topic in request.topics
        for each in topic.partitions
    }
    acks = {key: batches for key, batches in wanted.items() if batches}
    sessions = ctx.node.share_sessions
    if request.share_session_epoch == INITIAL_EPOCH:
        if acks:
            raise InvalidRequestError("the first request of a session must not acknowledge")
        session = sessions.open(member, ctx.connection)
    else:
        session = sessions.use(member, request.share_session_epoch)
    session.update(
        wanted,
        (
            PartitionKey(topic.topic_id, index)
            for topic in request.forgotten_topics_data
            for index in topic.partitions
        ),
    )
    return ShareRead(ctx, member, session, request), acks


def _member(request: ShareFetchRequest | ShareAcknowledgeRequest) -> ShareSessionKey:
    group_id, member_id = request.group_id or "", request.member_id or ""
    if not group_id or not 0 < len(member_id) <= MAX_MEMBER_ID:
        raise InvalidRequestError("group id and member id must not be empty")
    return ShareSessionKey(group_id, member_id)


def _acknowledge(
    ctx: RequestContext,
    member: ShareSessionKey,
    key: PartitionKey,
    batches: Sequence[AcknowledgementBatch],
    *,
    is_renew: bool,
) -> KafkaError | None:
    try:
        acks = list(_checked(batches, is_renew=is_renew))
        partition = ctx.cluster.catalog.partition(*key)
        if partition.leader_id != ctx.node.id:  # as in Kafka, this names no leader
            raise UnknownTopicOrPartitionError(NOT_HOSTED)
        share_key = ShareKey(member.group_id, key)
        ctx.cluster.share_partitions.acknowledge(share_key, partition, member.member_id, acks)
    except KafkaError as error:
        return error
    return None


def _checked(batches: Sequence[AcknowledgementBatch], *, is_renew: bool) -> Iterable[Acknowledged]:
    """Yield ranges of one type each. Raises InvalidRequestError."""
    allowed = set(AcknowledgeType) - (set() if is_renew else {AcknowledgeType.RENEW})
    past = -1
    for batch in batches:
        first, last, types = batch.first_offset, batch.last_offset, batch.acknowledge_types
        count = last - first + 1
        if count < 1 or first < past or len(types) not in (1, count):
            raise InvalidRequestError("the offsets or types of a batch are not valid")
        past = last
        each_type = [(types[0], count)]
        if len(types) > 1:
            each_type = [(value, len(list(same))) for value, same in groupby(types)]
        for value, length in each_type:
            if value not in allowed:
                raise InvalidRequestError(f"acknowledge type {value} is not valid here")
            yield Acknowledged(first, first + length - 1, AcknowledgeType(value))
            first += length


def _response(read: ShareRead) -> ShareFetchResponse:
    return ShareFetchResponse(
        acquisition_lock_timeout_ms=_lock_ms(read.ctx, read.member),
        responses=[
            ShareFetchableTopicResponse(
                topic_id=topic_id, partitions=[read.found[key] for key in keys]
            )
            for topic_id, keys in groupby(sorted(read.found), lambda key: key.topic_id)
        ],
        node_endpoints=_endpoints(read.ctx, read.found),
    )


def _lock_ms(ctx: RequestContext, member: ShareSessionKey) -> int:
    return ctx.cluster.share_group_settings(member.group_id).record_lock_duration_ms


def _endpoints(
    ctx: RequestContext, parts: Mapping[PartitionKey, PartitionData | AckPartitionData]
) -> list[NodeEndpoint]:
    """Add the leaders of moved partitions to their parts, and return the leaders' addresses."""
    moved = NotLeaderForPartitionError.errno
    nodes: dict[int, Node] = {}
    for key, data in parts.items():
        if data.error_code == moved or getattr(data, "acknowledge_error_code", 0) == moved:
            partition = ctx.cluster.catalog.partition(*key)
            data.current_leader.leader_id = partition.leader_id
            data.current_leader.leader_epoch = partition.leader_epoch
            if partition.leader_id in ctx.cluster.nodes:
                node = ctx.cluster.nodes[partition.leader_id]
                nodes[partition.leader_id] = ctx.address_of(node)
    return [
        NodeEndpoint(node_id=at.id, host=at.host, port=at.port, rack=at.rack)
        for at in nodes.values()
    ]


@handler(ShareAcknowledgeRequest)
def share_acknowledge(
    ctx: RequestContext, request: ShareAcknowledgeRequest
) -> Steps[ShareAcknowledgeResponse]:
    """Acknowledge records of a session, and close it in the epoch -1."""
    try:
        member = _member(request)
        if request.share_session_epoch == INITIAL_EPOCH:
            raise InvalidShareSessionEpochError("ShareAcknowledge does not open a session")
        ctx.node.share_sessions.use(member, request.share_session_epoch)
    except BrokerResponseError as error:
        return ShareAcknowledgeResponse(error_code=error.errno)
    answers: dict[PartitionKey, AckPartitionData] = {}
    topics: list[ShareAcknowledgeTopicResponse] = []
    for asked in request.topics:
        topic = ShareAcknowledgeTopicResponse(topic_id=asked.topic_id)
        for each in asked.partitions:
            batches = each.acknowledgement_batches
            if not batches:
                continue
            key = PartitionKey(asked.topic_id, each.partition_index)
            data = AckPartitionData(partition_index=key.partition)
            refused = _acknowledge(ctx, member, key, batches, is_renew=request.is_renew_ack)
            if refused is not None:
                data.error_code, data.error_message = code_of(refused), text_of(refused)
            answers[key] = data
            topic.partitions.append(data)
            yield
        topics += [topic] if topic.partitions else []
    if request.share_session_epoch == FINAL_EPOCH:
        ctx.cluster.share_partitions.release_member(member, ctx.node.id)
    return ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=_lock_ms(ctx, member),
        responses=topics,
        node_endpoints=_endpoints(ctx, answers),
    )


# --- Offsets, for operators -------------------------------------------------------------------
@handler(DescribeShareGroupOffsetsRequest)
def describe_share_group_offsets(
    ctx: RequestContext, request: DescribeShareGroupOffsetsRequest
) -> DescribeShareGroupOffsetsResponse:
    return DescribeShareGroupOffsetsResponse(
        groups=[_described(ctx, group) for group in request.groups]
    )


def _described(
    ctx: RequestContext, asked: DescribeShareGroupOffsetsRequestGroup
) -> DescribeShareGroupOffsetsResponseGroup:
    group = DescribeShareGroupOffsetsResponseGroup(group_id=asked.group_id)
    error = ctx.groups.availability(asked.group_id)
    if error is not NoError:
        group.error_code, group.error_message = error.errno, error.description
        return group
    shares = ctx.cluster.share_partitions
    if asked.topics is None:
        named: dict[str, list[int]] = {}
        for partition in shares.partitions_of(asked.group_id):
            named.setdefault(partition.topic, []).append(partition.index)
    else:
        named = {each.topic_name: each.partitions for each in asked.topics}
    for name, indexes in named.items():
        topic_id = _topic_id(ctx, name)
        described = DescribeShareGroupOffsetsResponseTopic(topic_name=name, topic_id=topic_id)
        group.topics.append(described)
        for index in indexes:
            offsets = shares.offsets(asked.group_id, PartitionKey(topic_id, index))
            described.partitions.append(
                DescribeShareGroupOffsetsResponsePartition(
                    partition_index=index,
                    start_offset=offsets.start_offset,
                    leader_epoch=offsets.leader_epoch,
                    lag=offsets.lag,
                )
            )
    return group


def _topic_id(ctx: RequestContext, name: str) -> bytes:
    topic = ctx.cluster.topic(name)
    return ZERO_UUID if topic is None else topic.topic_id


OffsetsResponse: TypeAlias = AlterShareGroupOffsetsResponse | DeleteShareGroupOffsetsResponse


def _altered(
    ctx: RequestContext,
    request: AlterShareGroupOffsetsRequest | DeleteShareGroupOffsetsRequest,
    fill: Callable[..., None],
) -> Steps[OffsetsResponse]:
    """Answer the elements of a request, or refuse all unless the group is empty."""
    try:
        ctx.groups.check_empty_share_group(request.group_id)
    except BrokerResponseError as error:
        refused = cast("OffsetsResponse", request.response())
        refused.error_code, refused.error_message = error.errno, text_of(error)
        return refused
    response = cast("OffsetsResponse", (yield from answered(ctx, request, fill)))
    for topic in response.responses:
        topic.topic_id = _topic_id(ctx, topic.topic_name)
    return response


def _known(ctx: RequestContext, topic_name: str, partition: int = 0) -> Partition:
    topic = ctx.cluster.topic(topic_name)
    known = None if topic is None else topic.partition(partition)
    if known is None:
        raise UnknownTopicOrPartitionError(NOT_HOSTED)
    return known


@handler(AlterShareGroupOffsetsRequest)
def alter_share_group_offsets(
    ctx: RequestContext, request: AlterShareGroupOffsetsRequest
) -> Steps[object]:
    return _altered(ctx, request, _alter)


def _alter(
    ctx: RequestContext,
    request: AlterShareGroupOffsetsRequest,
    topic: AlterShareGroupOffsetsRequestTopic,
    asked: AlterShareGroupOffsetsRequestPartition,
    _: object,
) -> None:
    key = _known(ctx, topic.topic_name, asked.partition_index).key
    ctx.groups.create_share_group(request.group_id)
    ctx.cluster.share_partitions.alter(request.group_id, key, asked.start_offset)


@handler(DeleteShareGroupOffsetsRequest)
def delete_share_group_offsets(
    ctx: RequestContext, request: DeleteShareGroupOffsetsRequest
) -> Steps[object]:
    return _altered(ctx, request, _delete)


def _delete(
    ctx: RequestContext,
    request: DeleteShareGroupOffsetsRequest,
    topic: DeleteShareGroupOffsetsRequestTopic,
    _: object,
) -> None:
    topic_id = _known(ctx, topic.topic_name).key.topic_id
    ctx.cluster.share_partitions.delete(request.group_id, topic_id)
