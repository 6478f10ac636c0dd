"""Handlers of groups: requests of their members, committed offsets, and administration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias, TypeVar

from aiokafka_lite.broker.groups.classic.machine import ClassicGroup, GroupState
from aiokafka_lite.broker.groups.classic.members import GroupClient, Join
from aiokafka_lite.broker.groups.coordinator import Group
from aiokafka_lite.broker.groups.coordinator_log import ErrorType
from aiokafka_lite.broker.groups.kip848.assignors import ASSIGNORS
from aiokafka_lite.broker.groups.kip848.group import (
    LEAVING_FOR_NOW,
    ConsumerGroup,
    ConsumerGroupMember,
)
from aiokafka_lite.broker.groups.kip848.machine import preferred_assignor
from aiokafka_lite.broker.groups.modern.group import JOINING, LEAVING
from aiokafka_lite.broker.groups.offsets import (
    NOTHING_COMMITTED,
    Committer,
    OffsetCommitEntry,
)
from aiokafka_lite.broker.groups.share.assignor import ASSIGNOR
from aiokafka_lite.broker.groups.share.group import ShareGroup
from aiokafka_lite.broker.handlers.base import (
    GROUP_OPERATIONS,
    RequestContext,
    answered_with,
    handler,
    handles_each,
    refusing,
)
from aiokafka_lite.broker.log.producers import ProducerIdentity
from aiokafka_lite.broker.slices import LoopSlices, in_slices
from aiokafka_lite.broker.topics import GROUP_METADATA_TOPIC
from aiokafka_lite.broker.transactions.coordinator import Verification
from aiokafka_lite.errors import (
    BrokerResponseError,
    CoordinatorLoadInProgressError,
    GroupIdNotFound,
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    InvalidRequestError,
    NoError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
    UnsupportedAssignorError,
)
from aiokafka_lite.protocol.messages import share_groups
from aiokafka_lite.protocol.messages.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    DescribedGroup,
    Member,
    TopicPartitions,
)
from aiokafka_lite.protocol.messages.coordinator_records import OffsetCommitValue
from aiokafka_lite.protocol.messages.group_members import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from aiokafka_lite.protocol.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DescribedGroupMember,
    DescribeGroupsRequest,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from aiokafka_lite.protocol.messages.groups import DescribedGroup as DescribedClassicGroup
from aiokafka_lite.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from aiokafka_lite.protocol.messages.share import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from aiokafka_lite.protocol.messages.share_groups import ShareGroupDescribeRequest
from aiokafka_lite.protocol.messages.transactions import (
    FIRST_BY_TOPIC_ID,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.protocol.source import ELEMENTS_PER_STEP, Steps
from aiokafka_lite.structs import TopicPartition

FIRST_THAT_MUST_KNOW_ITS_ID = 4
FIRST_WITH_NULLABLE_PROTOCOL = 7
FIRST_THAT_CAN_SKIP_THE_ASSIGNMENT = 9


@handler(JoinGroupRequest)
async def join_group(ctx: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse:
    joined = await ctx.groups.join(
        request.group_id,
        Join(
            protocol_type=request.protocol_type,
            protocols=tuple((item.name, item.metadata) for item in request.protocols),
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            client_id=ctx.client_id or "",
            client_host=ctx.client_host,
            needs_known_member_id=ctx.api_version >= FIRST_THAT_MUST_KNOW_ITS_ID,
            can_skip_assignment=ctx.api_version >= FIRST_THAT_CAN_SKIP_THE_ASSIGNMENT,
        ),
    )
    if ctx.api_version < FIRST_WITH_NULLABLE_PROTOCOL:
        joined.protocol_name = joined.protocol_name or ""
    return joined


FIRST_THAT_MUST_NAME_THE_PROTOCOL = 5


@handler(SyncGroupRequest)
async def sync_group(ctx: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse:
    is_named = request.protocol_type is not None and request.protocol_name is not None
    if ctx.api_version >= FIRST_THAT_MUST_NAME_THE_PROTOCOL and not is_named:
        return SyncGroupResponse(error_code=InconsistentGroupProtocolError.errno)
    return await ctx.groups.sync(request)


@handler(HeartbeatRequest)
def heartbeat(ctx: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    error = ctx.groups.heartbeat(
        request.group_id, request.member_id, request.group_instance_id, request.generation_id
    )
    return HeartbeatResponse(error_code=error.errno)


@handler(LeaveGroupRequest)
def leave_group(ctx: RequestContext, request: LeaveGroupRequest) -> Steps[LeaveGroupResponse]:
    errors: list[ErrorType] = []
    for start in range(0, max(len(request.members), 1), ELEMENTS_PER_STEP):
        if start:
            yield
        leavers = request.members[start : start + ELEMENTS_PER_STEP]
        error, of_members = ctx.groups.leave(request.group_id, leavers)
        if error is not NoError:
            return LeaveGroupResponse(error_code=error.errno)
        errors += of_members
    return (yield from answered_with(ctx, request, errors))


FIRST_WITH_IDS_OF_CLIENTS = 1


@handler(ConsumerGroupHeartbeatRequest)
def consumer_group_heartbeat(
    ctx: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    refused = ConsumerGroupHeartbeatResponse()
    with refusing(refused):
        _check(request, ctx.api_version)
        client = GroupClient(ctx.client_id or "", ctx.client_host)
        return ctx.groups.consumer_group_heartbeat(request, client)
    return refused


def _check(request: ConsumerGroupHeartbeatRequest, version: int) -> None:
    """Refuse contradictory requests, with Kafka's messages (GroupCoordinatorService.java)."""
    epoch = request.member_epoch
    needs_id = version >= FIRST_WITH_IDS_OF_CLIENTS or epoch > JOINING or epoch == LEAVING
    _refuse_if(needs_id and not request.member_id.strip(), "MemberId can't be empty.")
    _refuse_if(not request.group_id.strip(), "GroupId can't be empty.")
    for name, value in (("InstanceId", request.instance_id), ("RackId", request.rack_id)):
        _refuse_if(value is not None and not value.strip(), f"{name} can't be empty.")
    if epoch == JOINING:
        _refuse_if(
            request.rebalance_timeout_ms == -1,
            "RebalanceTimeoutMs must be provided in first request.",
        )
        _refuse_if(
            request.topic_partitions is None or bool(request.topic_partitions),
            "TopicPartitions must be empty when (re-)joining.",
        )
        _refuse_if(
            request.subscribed_topic_names is None and request.subscribed_topic_regex is None,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
            "(re-)joining.",
        )
    elif epoch == LEAVING_FOR_NOW:
        _refuse_if(request.instance_id is None, "InstanceId can't be null.")
    _refuse_if(epoch < LEAVING_FOR_NOW, "MemberEpoch is invalid.")
    assignor = request.server_assignor
    if assignor is not None and assignor not in ASSIGNORS:
        raise UnsupportedAssignorError(
            f"ServerAssignor {assignor} is not supported. Supported assignors: "
            f"{', '.join(ASSIGNORS)}."
        )


MOST_CHARACTERS_OF_MEMBER_IDS: Final = 36


@handler(ShareGroupHeartbeatRequest)
def share_group_heartbeat(
    ctx: RequestContext, request: ShareGroupHeartbeatRequest
) -> ShareGroupHeartbeatResponse:
    refused = ShareGroupHeartbeatResponse(member_id=None)
    if not 0 < len(request.member_id) <= MOST_CHARACTERS_OF_MEMBER_IDS:
        refused.error_code = InvalidRequestError.errno
        return refused
    with refusing(refused):
        _check_share(request)
        client = GroupClient(ctx.client_id or "", ctx.client_host)
        return ctx.groups.share_group_heartbeat(request, client)
    return refused


def _check_share(request: ShareGroupHeartbeatRequest) -> None:
    """Refuse contradictory requests, with Kafka's messages (GroupCoordinatorService.java)."""
    _refuse_if(not request.member_id.strip(), "MemberId can't be empty.")
    _refuse_if(not request.group_id.strip(), "GroupId can't be empty.")
    rack_id, epoch = request.rack_id, request.member_epoch
    _refuse_if(rack_id is not None and not rack_id.strip(), "RackId can't be empty.")
    _refuse_if(
        epoch == JOINING and not request.subscribed_topic_names,
        "SubscribedTopicNames must be set in first request.",
    )
    _refuse_if(epoch < LEAVING, "MemberEpoch is invalid.")


def _refuse_if(is_wrong: bool, message: str) -> None:
    if is_wrong:
        raise InvalidRequestError(message)


RequestTopic: TypeAlias = (
    OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic | OffsetDeleteRequestTopic
)
EntryT = TypeVar("EntryT", OffsetCommitEntry, TopicPartition)

FIRST_COMMIT_BY_TOPIC_ID: Final = 10
FIRST_FETCH_BY_TOPIC_ID: Final = 10
FIRST_COMMIT_WITH_GROUP_ID_NOT_FOUND: Final = 9
FIRST_FETCH_WITH_GROUP_ERROR: Final = 2
FIRST_ABORTABLE: Final = 4
FIRST_THAT_ADDS: Final = 5


@handler(OffsetCommitRequest)
def offset_commit(ctx: RequestContext, request: OffsetCommitRequest) -> Steps[OffsetCommitResponse]:
    is_by_id = ctx.api_version >= FIRST_COMMIT_BY_TOPIC_ID
    commit = partial(
        ctx.groups.commit,
        request.group_id,
        committer=Committer(
            request.member_id, request.group_instance_id, request.generation_id_or_member_epoch
        ),
        retention_ms=request.retention_time_ms,
        knows_epochs=ctx.api_version >= FIRST_COMMIT_WITH_GROUP_ID_NOT_FOUND,
    )
    outcomes = yield from _outcomes(request.topics, partial(_entry, ctx, is_by_id), commit)
    return (yield from answered_with(ctx, request, outcomes))


@handler(TxnOffsetCommitRequest)
def txn_offset_commit(
    ctx: RequestContext, request: TxnOffsetCommitRequest
) -> Steps[TxnOffsetCommitResponse]:
    is_by_id = ctx.api_version >= FIRST_BY_TOPIC_ID
    entry, commit = partial(_entry, ctx, is_by_id), partial(_commit, ctx, request)
    outcomes = yield from _outcomes(request.topics, entry, commit)
    return (yield from answered_with(ctx, request, outcomes))


def _entry(
    ctx: RequestContext,
    is_by_id: bool,
    item: OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic,
    partition: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition,
) -> OffsetCommitEntry | ErrorType:
    """Return the entry of a partition, or the error of one that does not exist."""
    topic = ctx.cluster.topic_by_id(item.topic_id) if is_by_id else ctx.cluster.topic(item.name)
    if topic is None:
        return UnknownTopicIdError if is_by_id else UnknownTopicOrPartitionError
    if topic.partition(partition.partition_index) is None:
        return UnknownTopicOrPartitionError
    # A transactional commit by name is valid for each topic of this name.
    is_transactional = isinstance(item, TxnOffsetCommitRequestTopic)
    return OffsetCommitEntry(
        tp=TopicPartition(topic.name, partition.partition_index),
        topic_id=item.topic_id if is_transactional else topic.topic_id,
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata,
    )


def _outcomes(
    topics: Sequence[RequestTopic],
    resolve: Callable[..., EntryT | ErrorType],
    change: Callable[[list[EntryT]], Sequence[ErrorType]],
) -> Steps[list[ErrorType]]:
    """Change offsets of existing partitions, resolved in the same step. Return each error type."""
    slices, outcomes = LoopSlices(), list[ErrorType]()
    part: list[tuple[RequestTopic, object]] = []

    def change_part() -> None:
        resolved = [resolve(topic, partition) for topic, partition in part]
        entries = [found for found in resolved if not isinstance(found, type)]
        errors = iter(change(entries) if entries else ())
        outcomes.extend(found if isinstance(found, type) else next(errors) for found in resolved)
        part.clear()

    for topic in topics:
        if slices.is_over:
            yield from slices.pause()
        for partition in topic.partitions:
            if len(part) == ELEMENTS_PER_STEP:
                change_part()
                yield
            part.append((topic, partition))
    change_part()
    return outcomes


def _commit(
    ctx: RequestContext, request: TxnOffsetCommitRequest, offsets: list[OffsetCommitEntry]
) -> list[ErrorType]:
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)
    error = _verify(ctx, request, producer)
    if error is not NoError:
        return [error] * len(offsets)
    return ctx.groups.commit_in_transaction(
        request.group_id,
        offsets,
        producer,
        Committer(request.member_id, request.group_instance_id, request.generation_id),
    )


def _verify(
    ctx: RequestContext, request: TxnOffsetCommitRequest, producer: ProducerIdentity
) -> ErrorType:
    """Check that the group's partition is in the transaction, or add it (KIP-890)."""
    if not request.group_id:
        return InvalidGroupIdError
    error = ctx.groups.availability(request.group_id)
    if error is not NoError:
        return error
    tp = TopicPartition(GROUP_METADATA_TOPIC, ctx.groups.partition_for(request.group_id))
    producers = ctx.cluster.partition(*tp).log.producers
    if producers.has_open_transaction(producer.producer_id, producer.epoch):
        return NoError
    verification = Verification.of(ctx.api_version, FIRST_ABORTABLE, FIRST_THAT_ADDS)
    return ctx.cluster.transactions.verify(request.transactional_id, producer, tp, verification)


@handler(OffsetFetchRequest)
def offset_fetch(ctx: RequestContext, request: OffsetFetchRequest) -> Steps[OffsetFetchResponse]:
    slices, response = LoopSlices(), OffsetFetchResponse()
    for wanted in request.groups:
        if slices.is_over:
            yield from slices.pause()
        group = OffsetFetchResponseGroup(group_id=wanted.group_id)
        response.groups.append(group)
        yield from _fetch_group(ctx, wanted, group, request.require_stable, slices)
    return response


def _fetch_group(
    ctx: RequestContext,
    wanted: OffsetFetchRequestGroup,
    group: OffsetFetchResponseGroup,
    require_stable: bool,
    slices: LoopSlices,
) -> Steps[None]:
    """Add the offsets of a group. Between two steps, the coordinator may lose them."""
    check = partial(ctx.groups.check_fetch, wanted.group_id, wanted.member_id, wanted.member_epoch)
    error = check()
    group.error_code = error.errno
    if error is NoError and wanted.topics is None:
        group.topics = _everything(ctx, wanted.group_id, require_stable)
    for each in wanted.topics or ():
        topic = OffsetFetchResponseTopics(name=each.name, topic_id=each.topic_id)
        group.topics.append(topic)
        for start in range(0, max(len(each.partition_indexes), 1), ELEMENTS_PER_STEP):
            if slices.is_over:
                yield from slices.pause()
                error = check()
                group.error_code = error.errno
            if error is not NoError and ctx.api_version >= FIRST_FETCH_WITH_GROUP_ERROR:
                group.topics = []
                return
            part = each.partition_indexes[start : start + ELEMENTS_PER_STEP]
            _fetch(ctx, wanted.group_id, topic, part, error, require_stable)


def _fetch(
    ctx: RequestContext,
    group_id: str,
    topic: OffsetFetchResponseTopics,
    indexes: Sequence[int],
    error: ErrorType,
    require_stable: bool,
) -> None:
    """Add the offsets of partitions to a topic."""
    if error is NoError and ctx.api_version >= FIRST_FETCH_BY_TOPIC_ID:
        known = ctx.cluster.topic_by_id(topic.topic_id)
        if known is None:
            error = UnknownTopicIdError
        else:
            topic.name = known.name
    for index in indexes:
        tp = TopicPartition(topic.name, index)
        topic.partitions.append(
            _committed(ctx, group_id, tp, topic.topic_id, require_stable)
            if error is NoError
            else _partition(index, NOTHING_COMMITTED, error)
        )


def _committed(
    ctx: RequestContext, group_id: str, tp: TopicPartition, topic_id: bytes, require_stable: bool
) -> OffsetFetchResponsePartitions:
    """Return an offset, or the error of one that an open transaction commits (KIP-447)."""
    if require_stable and ctx.groups.offsets.is_unstable(group_id, tp):
        return _partition(tp.partition, NOTHING_COMMITTED, UnstableOffsetCommitError)
    return _partition(tp.partition, ctx.groups.offsets.fetch(group_id, tp, topic_id))


def _everything(
    ctx: RequestContext, group_id: str, require_stable: bool
) -> list[OffsetFetchResponseTopics]:
    topics = []
    for name, partitions in ctx.groups.offsets.fetch_all(group_id).items():
        topic = ctx.cluster.topic(name)
        if topic is None and ctx.api_version >= FIRST_FETCH_BY_TOPIC_ID:
            continue  # a deleted topic has no id
        topics.append(
            OffsetFetchResponseTopics(
                name=name,
                topic_id=ZERO_UUID if topic is None else topic.topic_id,
                partitions=[
                    _committed(ctx, group_id, TopicPartition(name, each), ZERO_UUID, require_stable)
                    for each in partitions
                ],
            )
        )
    return topics


def _partition(
    index: int, committed: OffsetCommitValue, error: ErrorType = NoError
) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        error_code=error.errno,
    )


@handler(OffsetDeleteRequest)
def offset_delete(ctx: RequestContext, request: OffsetDeleteRequest) -> Steps[OffsetDeleteResponse]:
    def existing(
        item: OffsetDeleteRequestTopic, partition: OffsetDeleteRequestPartition
    ) -> TopicPartition | ErrorType:
        topic = ctx.cluster.topic(item.name)
        if topic is None or topic.partition(partition.partition_index) is None:
            return UnknownTopicOrPartitionError
        return TopicPartition(item.name, partition.partition_index)

    def delete(tps: Sequence[TopicPartition]) -> Sequence[ErrorType]:
        error, errors = ctx.groups.delete_offsets(request.group_id, tps)
        if error is not NoError:
            raise error
        return errors

    try:
        delete(())  # also without existing partitions, the group's error counts
        outcomes = yield from _outcomes(request.topics, existing, delete)
    except BrokerResponseError as error:
        return OffsetDeleteResponse(error_code=error.errno)
    return (yield from answered_with(ctx, request, outcomes))


CLASSIC_TYPE = "classic"


@handler(ListGroupsRequest)
async def list_groups(ctx: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    """List the groups of this node. Filters ignore case."""
    states = {name.strip().lower() async for name in in_slices(request.states_filter)}
    types = {name.strip().lower() async for name in in_slices(request.types_filter)}
    if ctx.groups.is_loading:
        return ListGroupsResponse(error_code=CoordinatorLoadInProgressError.errno)
    listed = [_listed(group) async for group in in_slices(tuple(ctx.groups.groups.values()))]
    return ListGroupsResponse(
        groups=[
            group
            for group in listed
            if (not states or group.group_state.lower() in states)
            and (not types or group.group_type in types)
        ]
    )


def _listed(group: Group) -> ListedGroup:
    listed = ListedGroup(group_id=group.group_id, group_state=group.state.value)
    if isinstance(group, ClassicGroup):
        listed.protocol_type, listed.group_type = group.protocol_type or "", CLASSIC_TYPE
    else:
        listed.protocol_type = listed.group_type = group.type
    return listed


FIRST_WITH_GROUP_ID_NOT_FOUND = 6


@handles_each(DescribeGroupsRequest)
def describe_group(
    ctx: RequestContext,
    request: DescribeGroupsRequest,
    group_id: str,
    described: DescribedClassicGroup,
) -> None:
    """Describe a classic group. Before version 6, an unknown one is in state Dead (KIP-1043)."""
    described.error_code = ctx.groups.availability(group_id).errno
    group = ctx.groups.groups.get(group_id)
    if described.error_code:
        return
    described.group_state = GroupState.DEAD.value
    if isinstance(group, ClassicGroup):
        described.group_state = group.state.value
        described.protocol_type = group.protocol_type or ""
        described.protocol_data = _settled_protocol(group) or ""
        described.members = _classic_members(group)
    elif ctx.api_version >= FIRST_WITH_GROUP_ID_NOT_FOUND:
        what = "not found" if group is None else "is not a classic group"
        raise GroupIdNotFound(f"Group {group_id} {what}.")
    if request.include_authorized_operations:
        described.authorized_operations = GROUP_OPERATIONS


def _settled_protocol(group: ClassicGroup) -> str | None:
    """Return the protocol of a stable group. A rebalance may change it."""
    return group.protocol if group.state is GroupState.STABLE else None


def _classic_members(group: ClassicGroup) -> list[DescribedGroupMember]:
    protocol = _settled_protocol(group)
    return [
        DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=b"" if protocol is None else member.metadata(protocol),
            member_assignment=member.assignment,
        )
        for member in group.members.values()
    ]


CLASSIC_MEMBER = 0
CONSUMER_MEMBER = 1


@handles_each(ConsumerGroupDescribeRequest)
def consumer_group_describe(
    ctx: RequestContext,
    request: ConsumerGroupDescribeRequest,
    group_id: str,
    described: DescribedGroup,
) -> None:
    group = _described_group(ctx, request, group_id, described, ConsumerGroup)
    if group is None:
        return
    described.assignor_name = preferred_assignor(group.members.values())
    described.members = [_consumer_member(ctx, group, member) for member in group.members.values()]


@handles_each(ShareGroupDescribeRequest)
def share_group_describe(
    ctx: RequestContext,
    request: ShareGroupDescribeRequest,
    group_id: str,
    described: share_groups.DescribedGroup,
) -> None:
    group = _described_group(ctx, request, group_id, described, ShareGroup)
    if group is None:
        return
    described.assignor_name = ASSIGNOR
    described.members = [
        share_groups.Member(
            member_id=member.member_id,
            rack_id=member.rack_id,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.topic_names),
            assignment=_assignment(ctx, member.assigned),
        )
        for member in group.members.values()
    ]


AnyGroup = TypeVar("AnyGroup", ConsumerGroup, ShareGroup)


def _described_group(
    ctx: RequestContext,
    request: ConsumerGroupDescribeRequest | ShareGroupDescribeRequest,
    group_id: str,
    described: DescribedGroup | share_groups.DescribedGroup,
    kind: type[AnyGroup],
) -> AnyGroup | None:
    """Describe a group without its members. Return None if the description has an error."""
    error = ctx.groups.availability(group_id) if group_id else InvalidGroupIdError
    described.error_code = error.errno
    if error is not NoError:
        return None
    group = ctx.groups.groups.get(group_id)
    if not isinstance(group, kind):
        what = "not found" if group is None else f"is not a {kind.type} group"
        raise GroupIdNotFound(f"Group {group_id} {what}.")
    if request.include_authorized_operations:
        described.authorized_operations = GROUP_OPERATIONS
    described.group_state = group.state.value
    described.group_epoch = group.epoch
    described.assignment_epoch = group.target_epoch
    return group


def _consumer_member(
    ctx: RequestContext, group: ConsumerGroup, member: ConsumerGroupMember
) -> Member:
    held: dict[bytes, list[int]] = {}
    for partitions in (member.assigned, member.pending_revocation):
        for topic_id, numbers in partitions.items():
            held.setdefault(topic_id, []).extend(sorted(numbers))
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topic_names),
        subscribed_topic_regex=member.topic_regex,
        assignment=_assignment(ctx, held),
        target_assignment=_assignment(ctx, group.target_of(member)),
        member_type=CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
    )


def _assignment(ctx: RequestContext, partitions: Mapping[bytes, Iterable[int]]) -> Assignment:
    """Return partitions by topic, without deleted topics."""
    topics = ((ctx.cluster.topic_by_id(topic_id), held) for topic_id, held in partitions.items())
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic.topic_id, topic_name=topic.name, partitions=sorted(held))
            for topic, held in topics
            if topic is not None
        ]
    )


@handles_each(DeleteGroupsRequest)
def delete_group(
    ctx: RequestContext, request: DeleteGroupsRequest, group_id: str, result: DeletableGroupResult
) -> None:
    result.error_code = ctx.groups.delete(group_id).errno
