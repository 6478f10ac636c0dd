"""Which partitions a subscription means, in what is known of a cluster."""

from __future__ import annotations

from aiokafka_lite.client.view import ClusterView, TopicView
from aiokafka_lite.errors import (
    KafkaError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.spark.options.positions import Assign, Subscribe, Subscription
from aiokafka_lite.structs import TopicPartition


class Subscribed:
    """The options assign, subscribe and subscribePattern, asked about a view of the cluster.

    Internal topics (`__consumer_offsets`) are no one's, and an assigned partition that does not
    exist is left out until it does, as in Spark's own source.

    Attributes:
        topics: Of which metadata is needed; None for all there are.
    """

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._assigned: dict[str, set[int]] | None = None
        self.topics: frozenset[str] | None = None
        match subscription:
            case Assign(partitions):
                self._assigned = {}
                for topic, partition in partitions:
                    self._assigned.setdefault(topic, set()).add(partition)
                self.topics = frozenset(self._assigned)
            case Subscribe(topics):
                self.topics = frozenset(topics)
        self._option = {Assign: "assign", Subscribe: "subscribe"}.get(
            type(subscription), "subscribePattern"
        )

    def partitions(self, view: ClusterView) -> list[TopicPartition]:
        """Return the partitions there are, in order."""
        assigned = self._assigned
        return [
            TopicPartition(name, index)
            for name, topic in sorted(view.topics.items())
            if not topic.is_internal and self._means(name)
            for index in topic.partitions
            if assigned is None or index in assigned[name]
        ]

    def missing(self, view: ClusterView) -> dict[str, KafkaError]:
        """Return the topics that were named and have no partitions, each with what to raise."""
        return {
            name: self._error(name, view.topics.get(name))
            for name in sorted(self.topics or ())
            if (topic := view.topics.get(name)) is None
            or (not topic.partitions and not topic.is_internal)
        }

    def left_out(self, view: ClusterView) -> list[str]:
        """Return what was asked for by name and is not read, in words: nobody would notice."""
        unread: list[str] = []
        if self.topics is None and not self.partitions(view):
            unread.append(
                "no existing topic matches the option subscribePattern: no records are read until "
                "one matches"
            )
        for name in sorted(self.topics or ()):
            topic = view.topics.get(name)
            if topic is None:
                continue
            if topic.is_internal:
                unread.append(f"topic {name} is internal to Kafka, so it is not read")
            elif self._assigned is not None:
                absent = sorted(self._assigned[name] - topic.partitions.keys())
                if absent and topic.partitions:
                    unread.append(
                        f"the option assign names partition {', '.join(map(str, absent))} of topic "
                        f"{name}, which does not exist yet: it is read as soon as it exists"
                    )
        return unread

    def _means(self, topic: str) -> bool:
        subscription = self._subscription
        if isinstance(subscription, Assign | Subscribe):
            return self.topics is not None and topic in self.topics
        return subscription.matches(topic)

    def _error(self, name: str, topic: TopicView | None) -> KafkaError:
        error_class = (topic.error if topic is not None else None) or UnknownTopicOrPartitionError
        if error_class is UnknownTopicOrPartitionError:
            return error_class(
                f"topic {name}, which the option {self._option} names, does not exist: create it, "
                "or check its name"
            )
        return error_class(
            f"topic {name}, which the option {self._option} names, cannot be read: "
            f"{error_class.description.rstrip('.')}"
        )
