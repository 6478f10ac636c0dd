"""aiokafka's module path for ``RangePartitionAssignor``."""

from aiokafka_lite.consumer.assignors.stateless import RangePartitionAssignor

__all__ = ["RangePartitionAssignor"]
