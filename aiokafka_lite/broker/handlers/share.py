"""Share groups at the leaders of partitions: ShareFetch and ShareAcknowledge; and their offsets.

Members of the group coordinator are not checked: as in Kafka, any member id may fetch what the
group has started to consume.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, TypeAlias, TypeVar, cast

from aiokafka_lite.broker.configs import READ_UNCOMMITTED
from aiokafka_lite.broker.handlers.base import (
    Delayed,
    RequestContext,
    answered,
    code_of,
    handler,
    hint_at_leaders,
    text_of,
)
from aiokafka_lite.broker.share.partition import (
    Acknowledged,
    AcknowledgeType,
    AcquiredSpan,
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
from aiokafka_lite.broker.topics import NOT_HOSTED, Partition, PartitionKey
from aiokafka_lite.errors import (
    BrokerResponseError,
    InvalidRequestError,
    InvalidShareSessionEpochError,
    KafkaError,
    NoError,
    UnknownError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages import share, share_acknowledge, share_groups
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.protocol.source import ELEMENTS_PER_STEP, Steps
from aiokafka_lite.records import BatchHeader, iter_batches

MAX_MEMBER_ID: Final = 36
WHOLE_BATCHES: Final = 0
EXACT: Final = 1
LAST_OFFSET: Final = 2**63 - 1

SessionRequest: TypeAlias = share.ShareFetchRequest | share_acknowledge.ShareAcknowledgeRequest
OffsetsRequest: TypeAlias = (
    share_groups.AlterShareGroupOffsetsRequest | share_groups.DeleteShareGroupOffsetsRequest
)
OffsetsResponse: TypeAlias = (
    share_groups.AlterShareGroupOffsetsResponse | share_groups.DeleteShareGroupOffsetsResponse
)
Acks: TypeAlias = "Mapping[PartitionKey, Sequence[share.AcknowledgementBatch]]"

ResponseT = TypeVar(
    "ResponseT", share.ShareFetchResponse, share_acknowledge.ShareAcknowledgeResponse
)


# --- Fetching ---------------------------------------------------------------------------------
@dataclass(slots=True)
class ShareRead:
    """The reads of one ShareFetch request, and the partitions of its response."""

    ctx: RequestContext
    member: ShareSessionKey
    session: BrokerShareSession
    request: share.ShareFetchRequest
    found: dict[PartitionKey, share.PartitionData] = field(default_factory=dict)

    @property
    def is_committed(self) -> bool:
        settings = self.ctx.cluster.share_group_settings(self.member.group_id)
        return settings.isolation_level != READ_UNCOMMITTED

    def open(self, key: PartitionKey) -> tuple[Partition, BrokerSharePartition, int, int] | None:
        """Return a partition that may have records to acquire, with the first offset and the end.

        Raises its error.
        """
        ctx = self.ctx
        partition = ctx.partition(*key)
        partition.check_leader(ctx.node.id)
        share_key = ShareKey(self.member.group_id, key)
        live = ctx.cluster.share_partitions.at_leader(share_key, partition)
        if live is None:
            return None
        live.advance(partition.log_start_offset)
        log = partition.log
        start = max(live.next_offset, log.log_start_offset)
        end = min(log.high_watermark, log.last_stable_offset if self.is_committed else LAST_OFFSET)
        return (partition, live, start, end) if live.can_acquire and start < end else None

    def is_worth_answering(self) -> Steps[bool]:
        """Return whether min_bytes can be acquired, or a partition has an error."""
        available = 0
        for number, key in enumerate(tuple(self.session.partitions), 1):
            if not number % ELEMENTS_PER_STEP:
                yield
            try:
                if (opened := self.open(key)) is not None:
                    partition, _, start, end = opened
                    available += partition.log.bytes_from(start, self.request.max_bytes, end)
            except BrokerResponseError:
                return True
            if available and available >= self.request.min_bytes:
                return True
        return False

    def acquire_in_steps(self) -> Steps[share.ShareFetchResponse]:
        records_left, bytes_left = self.request.max_records, self.request.max_bytes
        served: list[PartitionKey] = []
        for key in tuple(self.session.partitions):
            if records_left <= 0 or bytes_left <= 0:
                break
            try:
                opened = self.open(key)
                acquired = opened and self._acquire(*opened, records_left, bytes_left)
            except UnknownTopicIdError:  # of a topic of the session
                return share.ShareFetchResponse(error_code=UnknownError.errno)
            except BrokerResponseError as error:
                data = self.entry(key)
                data.error_code, data.error_message = code_of(error), text_of(error)
            else:
                if acquired:
                    served.append(key)
                    records_left -= sum(each.last - each.first + 1 for each in acquired)
                    bytes_left -= len(self.entry(key).records or b"")
            yield
        self.session.serve_last(served)
        return self.response()

    def entry(self, key: PartitionKey) -> share.PartitionData:
        """Return the partition's part of the response."""
        if key not in self.found:
            self.found[key] = share.PartitionData(partition_index=key.partition, records=b"")
        return self.found[key]

    def response(self) -> share.ShareFetchResponse:
        response = share.ShareFetchResponse()
        topic_kind = share.ShareFetchableTopicResponse
        return _complete(self.ctx, self.member, response, topic_kind, self.found)

    def _acquire(
        self,
        partition: Partition,
        live: BrokerSharePartition,
        start: int,
        end: int,
        max_records: int,
        max_bytes: int,
    ) -> Sequence[AcquiredSpan]:
        read = memoryview(partition.log.read(start, max_bytes, end_offset=end))
        batches = [header for header, _ in iter_batches(read, check_crcs=False)]
        if not batches:
            return ()
        shares, first = self.ctx.cluster.share_partitions, partition.log_start_offset
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
        if acquired:
            shares.watch_locks(ShareKey(self.member.group_id, partition.key))
            data = self.entry(partition.key)
            data.acquired_records = [
                share.AcquiredRecords(first_offset=first, last_offset=last, delivery_count=count)
                for first, last, count in acquired
            ]
            data.records = _sliced(read, batches, acquired[0].first, acquired[-1].last)
        return acquired


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


@handler(share.ShareFetchRequest)
def share_fetch(ctx: RequestContext, request: share.ShareFetchRequest) -> Steps[object]:
    """Acknowledge records, then acquire others now, or when `min_bytes` are there."""
    try:
        read = _open_read(ctx, request)
    except BrokerResponseError as error:
        return share.ShareFetchResponse(error_code=error.errno)
    for key, refused in (yield from _acknowledge(ctx, request)).items():
        data = read.entry(key)
        if refused is not None:
            data.acknowledge_error_code = code_of(refused)
            data.acknowledge_error_message = text_of(refused)
    if request.share_session_epoch == FINAL_EPOCH:
        ctx.cluster.share_partitions.release_member(read.member, ctx.node.id)
        return read.response()
    if request.is_renew_ack or request.max_records <= 0:
        return read.response()
    may_wait = read.session.partitions and request.max_wait_ms > 0 and ctx.refuses is None
    if not may_wait or (yield from read.is_worth_answering()):
        return (yield from read.acquire_in_steps())
    return Delayed(
        keys=list(read.session.partitions),
        deadline=ctx.cluster.loop.time() + request.max_wait_ms / 1000,
        is_ready=read.is_worth_answering,
        response=read.acquire_in_steps,
    )


def _open_read(ctx: RequestContext, request: share.ShareFetchRequest) -> ShareRead:
    member, asked = _member(request), _asked(request)
    if request.share_acquire_mode not in (WHOLE_BATCHES, EXACT):
        raise UnknownError(f"Unknown share acquire mode id: {request.share_acquire_mode}")
    sizes = (request.max_records, request.batch_size, request.min_bytes, request.max_bytes)
    if request.is_renew_ack and any(sizes):
        raise InvalidRequestError("a request with is_renew_ack must not fetch")
    sessions = ctx.node.share_sessions
    if request.share_session_epoch != INITIAL_EPOCH:
        session = sessions.use(member, request.share_session_epoch)
    elif any(asked.values()):
        raise InvalidRequestError("the first request of a session must not acknowledge")
    else:
        session = sessions.open(member, ctx.connection)
    forgotten = (
        PartitionKey(topic.topic_id, index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    )
    session.update(asked, forgotten)
    return ShareRead(ctx, member, session, request)


# --- Acknowledging ----------------------------------------------------------------------------
@handler(share_acknowledge.ShareAcknowledgeRequest)
def acknowledge(
    ctx: RequestContext, request: share_acknowledge.ShareAcknowledgeRequest
) -> Steps[object]:
    """Acknowledge records of a session, and close it in the epoch -1."""
    response = share_acknowledge.ShareAcknowledgeResponse()
    try:
        member = _member(request)
        if request.share_session_epoch == INITIAL_EPOCH:
            raise InvalidShareSessionEpochError("ShareAcknowledge does not open a session")
        ctx.node.share_sessions.use(member, request.share_session_epoch)
    except BrokerResponseError as error:
        response.error_code = error.errno
        return response
    parts: dict[PartitionKey, share_acknowledge.PartitionData] = {}
    for key, refused in (yield from _acknowledge(ctx, request)).items():
        data = parts[key] = share_acknowledge.PartitionData(partition_index=key.partition)
        if refused is not None:
            data.error_code, data.error_message = code_of(refused), text_of(refused)
    if request.share_session_epoch == FINAL_EPOCH:
        ctx.cluster.share_partitions.release_member(member, ctx.node.id)
    topic_kind = share_acknowledge.ShareAcknowledgeTopicResponse
    return _complete(ctx, member, response, topic_kind, parts)


def _member(request: SessionRequest) -> ShareSessionKey:
    group_id, member_id = request.group_id or "", request.member_id or ""
    if not group_id or not 0 < len(member_id) <= MAX_MEMBER_ID:
        raise InvalidRequestError("group id and member id must not be empty")
    return ShareSessionKey(group_id, member_id)


def _asked(request: SessionRequest) -> Acks:
    return {
        PartitionKey(topic.topic_id, each.partition_index): each.acknowledgement_batches
        for topic in request.topics
        for each in topic.partitions
    }


def _acknowledge(
    ctx: RequestContext, request: SessionRequest
) -> Steps[dict[PartitionKey, KafkaError | None]]:
    """Apply the acknowledgements of a request. Return the errors of their partitions."""
    member, errors = _member(request), dict[PartitionKey, KafkaError | None]()
    for key, batches in _asked(request).items():
        if not batches:
            continue
        errors[key] = None
        try:
            acks = list(_checked(batches, is_renew=request.is_renew_ack))
            partition = ctx.partition(*key)
            if partition.leader_id != ctx.node.id:  # as in Kafka, this names no leader
                raise UnknownTopicOrPartitionError(NOT_HOSTED)
            share_key = ShareKey(member.group_id, key)
            ctx.cluster.share_partitions.acknowledge(share_key, partition, member.member_id, acks)
        except KafkaError as error:
            errors[key] = error
        yield
    return errors


def _checked(
    batches: Sequence[share.AcknowledgementBatch], *, is_renew: bool
) -> Iterable[Acknowledged]:
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


def _complete(
    ctx: RequestContext,
    member: ShareSessionKey,
    response: ResponseT,
    topic_kind: Callable[..., Any],
    parts: Mapping[PartitionKey, share.PartitionData | share_acknowledge.PartitionData],
) -> ResponseT:
    settings = ctx.cluster.share_group_settings(member.group_id)
    response.acquisition_lock_timeout_ms = settings.record_lock_duration_ms
    response.responses = [
        topic_kind(topic_id=topic_id, partitions=[parts[key] for key in keys])
        for topic_id, keys in groupby(sorted(parts), lambda key: key.topic_id)
    ]
    response.node_endpoints = hint_at_leaders(ctx, parts.items())
    return response


# --- Offsets, for operators -------------------------------------------------------------------
@handler(share_groups.DescribeShareGroupOffsetsRequest)
def describe_offsets(
    ctx: RequestContext, request: share_groups.DescribeShareGroupOffsetsRequest
) -> share_groups.DescribeShareGroupOffsetsResponse:
    groups = [_described(ctx, group) for group in request.groups]
    return share_groups.DescribeShareGroupOffsetsResponse(groups=groups)


def _described(
    ctx: RequestContext, asked: share_groups.DescribeShareGroupOffsetsRequestGroup
) -> share_groups.DescribeShareGroupOffsetsResponseGroup:
    group = share_groups.DescribeShareGroupOffsetsResponseGroup(group_id=asked.group_id)
    error = ctx.groups.availability(asked.group_id)
    if error is not NoError:
        group.error_code, group.error_message = error.errno, error.description
        return group
    shares = ctx.cluster.share_partitions
    if asked.topics is None:
        started = groupby(shares.partitions_of(asked.group_id), lambda each: each.topic)
        named = {topic: [each.index for each in partitions] for topic, partitions in started}
    else:
        named = {each.topic_name: each.partitions for each in asked.topics}
    for name, indexes in named.items():
        topic_id = _topic_id(ctx, name)
        keys = (PartitionKey(topic_id, index) for index in indexes)
        group.topics.append(
            share_groups.DescribeShareGroupOffsetsResponseTopic(
                topic_name=name,
                topic_id=topic_id,
                partitions=[shares.described(asked.group_id, key) for key in keys],
            )
        )
    return group


def _topic_id(ctx: RequestContext, name: str) -> bytes:
    topic = ctx.cluster.topic(name)
    return ZERO_UUID if topic is None else topic.topic_id


@handler(share_groups.AlterShareGroupOffsetsRequest)
@handler(share_groups.DeleteShareGroupOffsetsRequest)
def change_offsets(ctx: RequestContext, request: OffsetsRequest) -> Steps[OffsetsResponse]:
    """Answer the elements of a request, or refuse all unless the group is empty."""
    is_alter = isinstance(request, share_groups.AlterShareGroupOffsetsRequest)
    response = cast("OffsetsResponse", request.response())
    try:
        ctx.groups.check_empty_share_group(request.group_id, must_exist=not is_alter)
    except BrokerResponseError as error:
        response.error_code, response.error_message = error.errno, text_of(error)
        return response
    fill = _alter if is_alter else _delete
    response = cast("OffsetsResponse", (yield from answered(ctx, request, fill)))
    for topic in response.responses:
        topic.topic_id = _topic_id(ctx, topic.topic_name)
    return response


def _known(ctx: RequestContext, topic_name: str, index: int = 0) -> PartitionKey:
    try:
        return ctx.cluster.catalog.partition(topic_name, index).key
    except UnknownTopicOrPartitionError:
        raise UnknownTopicOrPartitionError(NOT_HOSTED) from None


def _alter(
    ctx: RequestContext,
    request: share_groups.AlterShareGroupOffsetsRequest,
    topic: share_groups.AlterShareGroupOffsetsRequestTopic,
    asked: share_groups.AlterShareGroupOffsetsRequestPartition,
    _: object,
) -> None:
    key = _known(ctx, topic.topic_name, asked.partition_index)
    ctx.groups.create_share_group(request.group_id)
    ctx.cluster.share_partitions.alter(request.group_id, key, asked.start_offset)


def _delete(
    ctx: RequestContext,
    request: share_groups.DeleteShareGroupOffsetsRequest,
    topic: share_groups.DeleteShareGroupOffsetsRequestTopic,
    _: object,
) -> None:
    topic_id = _known(ctx, topic.topic_name).topic_id
    ctx.cluster.share_partitions.forget(group_id=request.group_id, topic_id=topic_id)
