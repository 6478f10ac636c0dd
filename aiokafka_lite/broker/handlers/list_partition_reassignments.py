"""ListPartitionReassignments (key 46), version 0 (KIP-455).

Partitions are at their new nodes at once (see AlterPartitionReassignments): there is never one
that is on its way.
"""

from __future__ import annotations

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


@handler(ListPartitionReassignmentsRequest)
def handle(
    ctx: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """Say that nothing is being moved, as Kafka does of unknown partitions, too."""
    return ListPartitionReassignmentsResponse(error_message=None)
