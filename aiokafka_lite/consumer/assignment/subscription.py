"""Holds the subscription of a consumer."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Set

from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.consumer.assignment.assignment import Assignment
from aiokafka_lite.consumer.assignment.observers import Departure, Observers
from aiokafka_lite.consumer.assignment.reads import Reads
from aiokafka_lite.errors import IllegalStateError
from aiokafka_lite.structs import TopicPartition


class SubscriptionMode(enum.Enum):
    """The source of the assignment, fixed until `unsubscribe`."""

    NONE = enum.auto()
    TOPICS = enum.auto()  # subscribe(topics)
    PATTERN = enum.auto()  # subscribe(pattern=...)
    ASSIGNED = enum.auto()  # assign(partitions)


class SubscriptionState(Assignment):
    """Subscription and assignment of one consumer."""

    __slots__ = (
        "_topics",
        "listener",
        "mode",
        "pattern",
        "subscription_version",
        "unsubscribed_version",
    )

    def __init__(self, observers: Observers, reads: Reads) -> None:
        super().__init__(observers, reads)
        self.mode = SubscriptionMode.NONE
        # In the mode PATTERN.
        self.pattern: re.Pattern[str] | None = None
        self.listener: ConsumerRebalanceListener | None = None
        # Goes up with every change of the subscription: membership compares it to rejoin.
        self.subscription_version = 0
        # The version after the last `unsubscribe`.
        self.unsubscribed_version = -1
        self._topics: frozenset[str] | None = None

    def _subscription_changed(self) -> None:
        self.subscription_version += 1
        self._observers.subscription_changed()

    # --- Subscription ---------------------------------------------------------------------
    @property
    def subscription(self) -> frozenset[str] | None:
        """The subscribed topics, or those that the pattern matched so far."""
        return self._topics

    def _require_mode(self, mode: SubscriptionMode) -> None:
        if self.mode not in (SubscriptionMode.NONE, mode):
            raise IllegalStateError(
                "subscribe(topics), subscribe(pattern=...) and assign() exclude each other: "
                "call unsubscribe() first"
            )

    def subscribe(
        self, topics: Iterable[str], listener: ConsumerRebalanceListener | None = None
    ) -> None:
        """Subscribe to topics instead of the earlier ones, whose records are withheld (as in Java).

        Raises:
            IllegalStateError: A pattern or a manual assignment is in use.
        """
        self._require_mode(SubscriptionMode.TOPICS)
        self.mode = SubscriptionMode.TOPICS
        self.listener = listener
        self._topics = wanted = frozenset(topics)
        self.begin_revocation(tp for tp in self._assignment if tp.topic not in wanted)
        self._subscription_changed()

    def subscribe_pattern(
        self, pattern: re.Pattern[str], listener: ConsumerRebalanceListener | None = None
    ) -> None:
        """Subscribe to every topic that the pattern matches, as `subscribe` does."""
        self._require_mode(SubscriptionMode.PATTERN)
        self.mode = SubscriptionMode.PATTERN
        self.listener = listener
        self.pattern = pattern
        self._topics = frozenset()
        self.begin_revocation(tp for tp in self._assignment if not pattern.match(tp.topic))
        self._subscription_changed()

    def set_matched_topics(self, topics: Iterable[str]) -> bool:
        """Set the topics that the pattern matches. Return whether they have changed."""
        matched = frozenset(topics)
        if self.mode is not SubscriptionMode.PATTERN or matched == self._topics:
            return False
        self._topics = matched
        self._subscription_changed()
        return True

    def unsubscribe(self) -> None:
        """Forget subscription and assignment. Commit as at a clean stop, without open batches."""
        self._depart(self._assignment.keys())
        self.mode = SubscriptionMode.NONE
        self.pattern = None
        self.listener = None
        self._topics = None
        self.change(self._assignment, ())
        self._taken.clear()
        self._subscription_changed()
        self.unsubscribed_version = self.subscription_version

    def subscribes_any(self, partitions: Iterable[TopicPartition]) -> bool:
        if self.pattern is not None:
            return any(self.pattern.match(tp.topic) for tp in partitions)
        topics = self._topics or ()
        return any(tp.topic in topics for tp in partitions)

    @property
    def topics(self) -> set[str]:
        return {*(self._topics or ()), *(tp.topic for tp in self._assignment)}

    def assign_from_user(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign exactly these partitions. Partitions that stay keep their position.

        Raises:
            IllegalStateError: Topics or a pattern are subscribed.
        """
        self._require_mode(SubscriptionMode.ASSIGNED)
        self.mode = SubscriptionMode.ASSIGNED
        wanted = frozenset(partitions)
        gone = self._assignment.keys() - wanted
        self._depart(gone)
        self.change(gone, wanted)
        self._taken.clear()
        self._subscription_changed()

    def add_from_user(self, partitions: Iterable[TopicPartition]) -> None:
        self.assign_from_user(self._assignment.keys() | frozenset(partitions))

    def remove_from_user(self, partitions: Iterable[TopicPartition]) -> None:
        """Unassign these partitions.

        Raises:
            IllegalStateError: Topics or a pattern are subscribed, or one is not assigned.
        """
        gone = frozenset(partitions)
        for tp in gone:
            self.partition(tp)
        self.assign_from_user(self._assignment.keys() - gone)

    def _depart(self, gone: Set[TopicPartition]) -> None:
        if gone:
            self._observers.departed(Departure(frozenset(gone), self.listener))

    def is_of_earlier_assignment(self, tp: TopicPartition, offset: int) -> bool:
        """Whether an offset can only mean records that another member may have had since.

        Manually assigned partitions belong to no member.
        """
        return self.mode is not SubscriptionMode.ASSIGNED and self._was_handed_out_earlier(
            tp, offset
        )
