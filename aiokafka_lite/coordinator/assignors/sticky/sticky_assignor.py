"""aiokafka's module path for ``StickyPartitionAssignor``."""

from aiokafka_lite.consumer.assignors.sticky import StickyPartitionAssignor

__all__ = ["StickyPartitionAssignor"]
