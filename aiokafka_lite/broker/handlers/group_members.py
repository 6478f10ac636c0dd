"""Handlers of the requests that members send to their group's coordinator."""

from __future__ import annotations

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.groups.kip848.assignors import ASSIGNORS
from aiokafka_lite.broker.groups.kip848.member import JOINING, LEAVING, LEAVING_FOR_NOW
from aiokafka_lite.broker.groups.values import ErrorType, GroupClient, Join
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.handlers.replies import answered_with, refusing
from aiokafka_lite.errors import (
    InconsistentGroupProtocolError,
    InvalidRequestError,
    NoError,
    UnsupportedAssignorError,
)
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
from aiokafka_lite.protocol.source import ELEMENTS_PER_STEP, Steps

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


def _refuse_if(is_wrong: bool, message: str) -> None:
    if is_wrong:
        raise InvalidRequestError(message)
