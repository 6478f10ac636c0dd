"""Assignors: the group's leader uses one to assign partitions to members."""

from aiokafka_lite.consumer.assignors.abstract import (
    AbstractPartitionAssignor,
    Assignor,
    ClusterTopics,
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
    LearnsGeneration,
    RebalanceProtocol,
)
from aiokafka_lite.consumer.assignors.stateless import (
    RangePartitionAssignor,
    RoundRobinPartitionAssignor,
)

__all__ = [
    "AbstractPartitionAssignor",
    "Assignor",
    "ClusterTopics",
    "ConsumerProtocolMemberAssignment",
    "ConsumerProtocolMemberMetadata",
    "LearnsGeneration",
    "RangePartitionAssignor",
    "RebalanceProtocol",
    "RoundRobinPartitionAssignor",
]
