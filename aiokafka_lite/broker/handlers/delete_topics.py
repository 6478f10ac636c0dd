"""DeleteTopics (key 20), versions 1 to 6.

4 flexible; 5 error messages (KIP-599); 6 topics by id as well (KIP-516).
"""

from __future__ import annotations

from collections import Counter

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.slices import in_slices
from aiokafka_lite.errors import (
    BrokerResponseError,
    InvalidRequestError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from aiokafka_lite.protocol.schema import ZERO_UUID


@handler(DeleteTopicsRequest)
async def handle(ctx: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Delete each topic that there is."""
    asked: Counter[tuple[str | None, bytes]] = Counter()
    async for state in in_slices(request.topics):
        asked[state.name, state.topic_id] += 1
    results = []
    async for (name, topic_id), times in in_slices(asked.items()):
        if times > 1:
            twice = "Duplicate topic id." if name is None else "Duplicate topic name."
            results.append(_refused(name, topic_id, InvalidRequestError, twice))
        else:
            results.append(_delete(ctx, name, topic_id))
    await ctx.cluster.disk.settled()
    return DeleteTopicsResponse(responses=results)


def _delete(ctx: RequestContext, name: str | None, topic_id: bytes) -> DeletableTopicResult:
    if name is not None and topic_id != ZERO_UUID:
        both = "You may not specify both topic name and topic id."
        return _refused(name, topic_id, InvalidRequestError, both)
    if name is None and topic_id == ZERO_UUID:
        neither = "Neither topic name nor id were specified."
        return _refused(name, topic_id, InvalidRequestError, neither)
    topic = ctx.cluster.topic_by_id(topic_id) if name is None else ctx.cluster.topic(name)
    if topic is None:
        if name is None:
            unknown = "This server does not host this topic ID."
            return _refused(name, topic_id, UnknownTopicIdError, unknown)
        unknown = "This server does not host this topic-partition."
        return _refused(name, topic_id, UnknownTopicOrPartitionError, unknown)
    ctx.cluster.delete_topic(topic)
    return DeletableTopicResult(name=topic.name, topic_id=topic.topic_id, error_message=None)


def _refused(
    name: str | None, topic_id: bytes, error: type[BrokerResponseError], reason: str
) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=name, topic_id=topic_id, error_code=error.errno, error_message=reason
    )
