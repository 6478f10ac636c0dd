"""aiokafka's module path for what assignors are told of the cluster."""

from aiokafka_lite.consumer.assignors.abstract import ClusterTopics as ClusterMetadata

__all__ = ["ClusterMetadata"]
