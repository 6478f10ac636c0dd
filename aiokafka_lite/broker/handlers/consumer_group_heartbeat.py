"""ConsumerGroupHeartbeat (key 68), versions 0 and 1 (KIP-848).

1 subscriptions by a regular expression, and member ids made by the clients (KIP-1082).
"""

from __future__ import annotations

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.groups.kip848.assignors import ASSIGNORS
from aiokafka_lite.broker.groups.kip848.machine import Beat
from aiokafka_lite.broker.groups.kip848.member import JOINING, LEAVING, LEAVING_FOR_NOW
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.handlers.replies import code_of, text_of
from aiokafka_lite.errors import InvalidRequestError, KafkaError, UnsupportedAssignorError
from aiokafka_lite.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

FIRST_WITH_IDS_OF_CLIENTS = 1


@handler(ConsumerGroupHeartbeatRequest)
def handle(
    ctx: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    """Answer a member that joins, stays or leaves, with its assignment."""
    try:
        _check(request, ctx.api_version)
        reply = ctx.groups.consumer_group_heartbeat(request.group_id, _beat(ctx, request))
    except KafkaError as error:
        return ConsumerGroupHeartbeatResponse(
            error_code=code_of(error), error_message=text_of(error)
        )
    return ConsumerGroupHeartbeatResponse(
        member_id=reply.member_id,
        member_epoch=reply.epoch,
        heartbeat_interval_ms=reply.heartbeat_interval_ms,
        assignment=None
        if reply.assigned is None
        else Assignment(
            topic_partitions=[
                TopicPartitions(topic_id=topic_id, partitions=[*partitions])
                for topic_id, partitions in reply.assigned.items()
            ]
        ),
    )


def _beat(ctx: RequestContext, request: ConsumerGroupHeartbeatRequest) -> Beat:
    owned = request.topic_partitions
    return Beat(
        member_id=request.member_id,
        epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topic_names=request.subscribed_topic_names,
        topic_regex=request.subscribed_topic_regex,
        server_assignor=request.server_assignor,
        owned=None if owned is None else {item.topic_id: item.partitions for item in owned},
        client_id=ctx.client_id or "",
        client_host=ctx.client_host,
    )


def _check(request: ConsumerGroupHeartbeatRequest, version: int) -> None:
    """Refuse what no member may say; the messages are Kafka's (GroupCoordinatorService.java)."""
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
