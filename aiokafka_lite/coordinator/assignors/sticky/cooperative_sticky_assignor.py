"""``CooperativeStickyPartitionAssignor``, next to aiokafka's module for the sticky assignor."""

from aiokafka_lite.consumer.assignors.cooperative_sticky import CooperativeStickyPartitionAssignor

__all__ = ["CooperativeStickyPartitionAssignor"]
