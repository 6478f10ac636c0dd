"""What assignors are told of the cluster, under the names that aiokafka's ask for."""

from __future__ import annotations

from aiokafka_lite.client import ClusterView


class TopicsOfCluster:
    """The topics of a view of the cluster."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view

    def topics(self) -> set[str]:
        """Return the topics that have partitions, of those that somebody wanted to know of."""
        return {name for name, topic in self._view.topics.items() if topic.partitions}

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the partition numbers of a topic; None when it is not in the metadata."""
        return self._view.partitions_for_topic(topic)
