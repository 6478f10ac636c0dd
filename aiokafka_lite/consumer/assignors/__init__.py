"""Rules by which a group's leader shares out partitions among the members."""

from aiokafka_lite.consumer.assignors.abstract import (
    AbstractPartitionAssignor,
    Assignor,
    ClusterTopics,
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
    LearnsGeneration,
    RebalanceProtocol,
)
from aiokafka_lite.consumer.assignors.range import RangePartitionAssignor
from aiokafka_lite.consumer.assignors.roundrobin import RoundRobinPartitionAssignor

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
