"""aiokafka's module path for what assignors exchange."""

from aiokafka_lite.consumer.assignors.abstract import (
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
)

__all__ = ["ConsumerProtocolMemberAssignment", "ConsumerProtocolMemberMetadata"]
