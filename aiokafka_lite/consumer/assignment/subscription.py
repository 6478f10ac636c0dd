"""Holds what a consumer subscribes to.

Plain data changed synchronously on the event loop; nothing waits. Others hear of changes as
observers (observers.py). What is assigned is in assignment.py.
"""

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
    """How the assignment comes about; one consumer uses only one way until it unsubscribes."""

    NONE = enum.auto()
    TOPICS = enum.auto()  # subscribe(topics)
    PATTERN = enum.auto()  # subscribe(pattern=...)
    ASSIGNED = enum.auto()  # assign(partitions)


class SubscriptionState(Assignment):
    """What one consumer is subscribed to, beside its assignment."""

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
        # What it was after the last `unsubscribe`.
        self.unsubscribed_version = -1
        self._topics: frozenset[str] | None = None

    def _subscription_changed(self) -> None:
        self.subscription_version += 1
        self._observers.subscription_changed()

    # --- Subscription ---------------------------------------------------------------------
    @property
    def subscription(self) -> frozenset[str] | None:
        """Topics subscribed to (for a pattern: those it matched so far); None if none are."""
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
        """Subscribe to topics, in place of those subscribed before.

        Nothing more is handed out of the others; Java's client does the same.

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
        """Subscribe to every topic whose name the pattern matches.

        Nothing more is handed out of the others.

        Raises:
            IllegalStateError: Topics or a manual assignment are in use.
        """
        self._require_mode(SubscriptionMode.PATTERN)
        self.mode = SubscriptionMode.PATTERN
        self.listener = listener
        self.pattern = pattern
        self._topics = frozenset()
        self.begin_revocation(tp for tp in self._assignment if not pattern.match(tp.topic))
        self._subscription_changed()

    def set_matched_topics(self, topics: Iterable[str]) -> bool:
        """Set the topics that the pattern matches now; return whether they have changed."""
        matched = frozenset(topics)
        if self.mode is not SubscriptionMode.PATTERN or matched == self._topics:
            return False
        self._topics = matched
        self._subscription_changed()
        return True

    def unsubscribe(self) -> None:
        """Forget topics, pattern, listener and assignment.

        All that was handed out is to be committed, as at a clean stop, but not open batches.
        """
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
        """Whether the subscription is to the topic of one of these partitions."""
        if self.pattern is not None:
            return any(self.pattern.match(tp.topic) for tp in partitions)
        topics = self._topics or ()
        return any(tp.topic in topics for tp in partitions)

    @property
    def topics(self) -> set[str]:
        """The topics that are subscribed or assigned."""
        return {*(self._topics or ()), *(tp.topic for tp in self._assignment)}

    def assign_from_user(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign exactly these partitions; those assigned already keep their position.

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
        """Assign these partitions too; those assigned already are left as they are.

        Raises:
            IllegalStateError: Topics or a pattern are subscribed.
        """
        self.assign_from_user(self._assignment.keys() | frozenset(partitions))

    def remove_from_user(self, partitions: Iterable[TopicPartition]) -> None:
        """Take these partitions out of the assignment; the others are left as they are.

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

        Partitions that are assigned by hand are nobody's: the group only keeps the offsets.
        """
        return self.mode is not SubscriptionMode.ASSIGNED and self._was_handed_out_earlier(
            tp, offset
        )
