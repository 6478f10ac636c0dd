"""FindCoordinator (key 10), versions 0 to 6.

1 a type of key, for groups or transactions, and error messages; 3 flexible; 4 several keys, each
with an error of its own (KIP-699); 5 TRANSACTION_ABORTABLE (KIP-890); 6 share groups (KIP-932).

A group's coordinator is the leader of its partition of the offsets topic, a transactional id's
that of its partition of the topic of transactions. Nobody coordinates share groups here: clients
are told what a Kafka without these would say.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.groups.values import ErrorType
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.topics import Node
from aiokafka_lite.errors import (
    CoordinatorNotAvailableError,
    InvalidRequestError,
    KafkaStorageError,
    NoError,
)
from aiokafka_lite.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

# Kafka never fills in the messages of the list.
FIRST_WITHOUT_MESSAGES = 4
NO_NODE: Final = Node(-1, "", -1)


class KeyType(enum.IntEnum):
    """What a coordinator is looked for."""

    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


@handler(FindCoordinatorRequest, is_by_element=True)
async def handle(ctx: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    """Return which node coordinates each of the keys; the first request creates the topic."""
    error = await _open(ctx, request.key_type)
    find = (
        ctx.cluster.transactions.coordinator_id_of
        if request.key_type == KeyType.TRANSACTION
        else ctx.cluster.coordinator_of
    )
    return FindCoordinatorResponse(
        coordinators=[_coordinator(ctx, key, error, find) for key in request.coordinator_keys]
    )


def _coordinator(
    ctx: RequestContext, key: str, error: ErrorType, find: Callable[[str], int]
) -> Coordinator:
    address = NO_NODE
    if error is NoError:
        node = ctx.cluster.nodes.get(find(key))
        if node is None:
            error = CoordinatorNotAvailableError
        else:
            address = ctx.address_of(node)
    message = ""
    if ctx.api_version < FIRST_WITHOUT_MESSAGES:
        message = error.message if error is NoError else error.description
    return Coordinator(
        key=key,
        error_code=error.errno,
        error_message=message,
        node_id=address.id,
        host=address.host,
        port=address.port,
    )


async def _open(ctx: RequestContext, key_type: int) -> ErrorType:
    """See to it that there are coordinators, and say why not."""
    if key_type not in (KeyType.GROUP, KeyType.TRANSACTION):
        return InvalidRequestError
    try:
        if key_type == KeyType.TRANSACTION:
            await ctx.cluster.open_transaction_topic()
        else:
            await ctx.cluster.open_offsets_topic()
    except KafkaStorageError:
        return CoordinatorNotAvailableError
    return NoError
