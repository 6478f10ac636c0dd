"""aiokafka's module path for ``RoundRobinPartitionAssignor``."""

from aiokafka_lite.consumer.assignors.stateless import RoundRobinPartitionAssignor

__all__ = ["RoundRobinPartitionAssignor"]
