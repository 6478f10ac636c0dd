"""aiokafka's module path for ``RoundRobinPartitionAssignor``."""

from aiokafka_lite.consumer.assignors.roundrobin import RoundRobinPartitionAssignor

__all__ = ["RoundRobinPartitionAssignor"]
