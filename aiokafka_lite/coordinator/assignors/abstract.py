"""aiokafka's module path for ``AbstractPartitionAssignor``."""

from aiokafka_lite.consumer.assignors.abstract import AbstractPartitionAssignor

__all__ = ["AbstractPartitionAssignor"]
