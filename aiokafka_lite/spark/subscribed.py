"""The partitions that a query reads, in a view of the cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from aiokafka_lite._compat import override
from aiokafka_lite.errors import KafkaError, UnknownTopicOrPartitionError
from aiokafka_lite.structs import TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.client.view import ClusterView, TopicView


class Subscribed:
    """The topics of a query by name or by a pattern of Java, or its assigned partitions.

    As in Spark's own source, internal topics and assigned partitions that do not exist are left
    out, and the pattern ``b`` finds ``abc``. `topics` are those whose metadata are needed, or None
    for all.

    Raises:
        JavaPatternError: The pattern is wrong, or has no equivalent in Python.
    """

    def __init__(
        self,
        option: str,
        *,
        topics: Iterable[str] = (),
        partitions: Iterable[TopicPartition] = (),
        pattern: str | None = None,
    ) -> None:
        self._option = option
        self.assigned: dict[str, set[int]] = {}
        for topic, partition in partitions:
            self.assigned.setdefault(topic, set()).add(partition)
        self.topics: frozenset[str] | None = frozenset((*topics, *self.assigned))
        if pattern is not None:
            # Imported where it is used: most queries name their topics.
            from aiokafka_lite.spark.java_pattern import compile_java

            self.topics, self._search = None, compile_java(pattern).search

    @override
    def __repr__(self) -> str:
        return f"Subscribed({self._option!r}, topics={sorted(self.topics or ())})"

    def matches(self, topic: str) -> bool:
        return self._search(topic) is not None if self.topics is None else topic in self.topics

    def partitions(self, view: ClusterView) -> list[TopicPartition]:
        return [
            TopicPartition(name, index)
            for name, topic in sorted(view.topics.items())
            if not topic.is_internal and self.matches(name)
            for index in topic.partitions
            if not self.assigned or index in self.assigned[name]
        ]

    def missing(self, view: ClusterView) -> dict[str, KafkaError]:
        return {
            name: self._error(name, view.topics.get(name))
            for name in sorted(self.topics or ())
            if (topic := view.topics.get(name)) is None
            or (not topic.partitions and not topic.is_internal)
        }

    def left_out(self, view: ClusterView) -> list[str]:
        """Return warnings about named topics and partitions that are not read."""
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
            elif self.assigned:
                absent = sorted(self.assigned[name] - topic.partitions.keys())
                if absent and topic.partitions:
                    unread.append(
                        f"the option assign names partition {', '.join(map(str, absent))} of topic "
                        f"{name}, which does not exist yet: it is read as soon as it exists"
                    )
        return unread

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
