"""aiokafka's module path for ``RangePartitionAssignor``."""

from aiokafka_lite.consumer.assignors.range import RangePartitionAssignor

__all__ = ["RangePartitionAssignor"]
