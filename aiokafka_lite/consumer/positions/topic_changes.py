"""Follows the topics that a consumer reads: they may be deleted, made anew, or grow.

Follows the metadata, tells events, and sees to what they mean for positions:

    deleted       in an assignment made by hand the topic's first partition raises once that the
                  topic is unknown; a subscription has lost the partitions anyway
    made anew     another log has the name: positions and what is buffered are of the old one and
                  are given up, for what auto_offset_reset says. A partition that its group has
                  assigned by the topic's id (KIP-848) is withheld until it is revoked: that of the
                  new topic may be another member's
    grown         partitions that came later are read from their beginning: see `came_later`
    too few       a partition of an assignment made by hand that its topic does not have raises once
                  that it is unknown

A topic counts as made anew when its id changes (KIP-516); brokers without ids cannot tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol

from aiokafka_lite.client import ClusterView
from aiokafka_lite.client.view import GONE_AFTER_S, TopicView
from aiokafka_lite.consumer.assignment.cursor import NO_IDS, Cursor, Sought
from aiokafka_lite.consumer.assignment.observers import Observers
from aiokafka_lite.consumer.assignment.subscription import SubscriptionMode, SubscriptionState
from aiokafka_lite.consumer.events.stream import Events
from aiokafka_lite.errors import KafkaError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from aiokafka_lite.structs import TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.consumer.buffer.buffer import Buffer

RECREATED: Final = "topic recreated"


class ResetByPolicy(Protocol):
    """Gives up a position for what auto_offset_reset says, or for an error."""

    def __call__(self, partition: Cursor, error: KafkaError, reason: str) -> None: ...


class _KnownTopic:
    """What is known of a topic that was there at some time."""

    __slots__ = ("count", "former_ids", "is_gone", "old_count", "topic_id")

    def __init__(self, topic_id: bytes, count: int, old_count: int) -> None:
        self.topic_id = topic_id
        self.count = count
        # How many partitions it had when the consumer first looked; the others came later.
        self.old_count = old_count
        self.is_gone = False
        # A broker that lags may still name them.
        self.former_ids: set[bytes] = set()


class TopicChanges:
    """Follows the topics that are subscribed or assigned."""

    def __init__(
        self, state: SubscriptionState, events: Events, observers: Observers, buffer: Buffer
    ) -> None:
        self._state = state
        self._events = events
        self._buffer = buffer
        # Set by whoever knows where reading starts.
        self.reset_by_policy: ResetByPolicy | None = None
        self._known: dict[str, _KnownTopic] = {}
        # Topics that were asked for and did not exist.
        self._absent: set[str] = set()
        # Assigned partitions that their topics do not have, since when; None: that was raised.
        self._missing: dict[TopicPartition, float | None] = {}
        # The pattern for which all topics were looked at, once that is so.
        self._pattern: re.Pattern[str] | None = None
        observers.on_subscription_change(self._subscription_changed)

    def _subscription_changed(self) -> None:
        if self._state.mode is not SubscriptionMode.PATTERN:
            self._pattern = None

    def came_later(self, tp: TopicPartition) -> bool:
        """Whether a partition came into being after the consumer began to look at its topic.

        Then all its records are newer than the consumer: with auto_offset_reset=latest it is read
        from its beginning, so that nothing is lost that was written before it was discovered.
        """
        known = self._known.get(tp.topic)
        return known is not None and tp.partition >= known.old_count

    def view_changed(self, view: ClusterView) -> None:
        """Compare a view with what was known."""
        names = self._names(view)
        for name in tuple(self._known):
            if name not in names:
                if self._is_matched(name) and is_gone(view, name):
                    self._is_gone(name)  # for which the pattern has lost it already
                del self._known[name]
        self._absent &= names
        for name in names:
            topic = view.topics.get(name)
            if topic is not None and topic.partitions:
                self._is_there(name, topic)
            elif is_gone(view, name):
                self._is_gone(name)
        if view.is_of_all:
            self._pattern = self._state.pattern
        if self._state.mode is SubscriptionMode.ASSIGNED:
            self._look_for_missing(view)

    def _look_for_missing(self, view: ClusterView) -> None:
        """Raise once of each partition that its topic has not had for a while."""
        before, self._missing = self._missing, {}
        for tp, cursor in self._state.assignment.items():
            if not view.lacks(tp):
                continue
            since = before.get(tp, view.fetched_at)
            if since is not None and view.fetched_at - since >= GONE_AFTER_S:
                text = f"topic {tp.topic!r} has no partition {tp.partition}"
                self._buffer.put_error(cursor, UnknownTopicOrPartitionError(text).at(tp))
                since = None
            self._missing[tp] = since

    def _names(self, view: ClusterView) -> set[str]:
        return {*self._state.topics, *filter(self._is_matched, view.topics)}

    def _is_matched(self, name: str) -> bool:
        """Whether the topic is subscribed to by a pattern, should it exist."""
        pattern = self._state.pattern
        return pattern is not None and pattern.match(name) is not None

    # --- What happens to one topic --------------------------------------------------------
    def _is_there(self, name: str, topic: TopicView) -> None:
        known = self._known.get(name)
        count = len(topic.partitions)
        if known is None:
            pattern = self._state.pattern
            is_new = name in self._absent or (pattern is not None and pattern is self._pattern)
            self._absent.discard(name)
            known = _KnownTopic(topic.topic_id, count, 0 if is_new else count)
            self._known[name] = known
        known.is_gone = False
        if topic.topic_id in known.former_ids:
            return
        # It may be followed only since a later view than that by which it was assigned.
        read_as = {known.topic_id, *(cursor.topic_id for cursor in self._assigned(name))}
        read_as -= {topic.topic_id, *NO_IDS, *known.former_ids}
        if read_as and topic.topic_id not in NO_IDS:
            known.former_ids |= read_as
            self._recreated(name, known, topic)
            return
        if count > known.count:
            from aiokafka_lite.consumer.events.kinds import PartitionsAdded

            self._events.publish(PartitionsAdded(name, known.count, count))
        known.count = count

    def _is_gone(self, name: str) -> None:
        known = self._known.get(name)
        if known is None:
            self._absent.add(name)
            return
        if known.is_gone:
            return
        from aiokafka_lite.consumer.events.kinds import TopicDeleted

        known.is_gone = True
        event = TopicDeleted(name)
        self._events.publish(event)
        if self._state.mode is SubscriptionMode.ASSIGNED:
            partition = min(self._assigned(name), key=lambda partition: partition.tp)
            error = UnknownTopicOrPartitionError(f"{event}").at(partition.tp, partition.position)
            self._buffer.put_error(partition, error)

    def _recreated(self, name: str, known: _KnownTopic, topic: TopicView) -> None:
        from aiokafka_lite.consumer.events.kinds import TopicRecreated

        known.topic_id = topic.topic_id
        known.count = len(topic.partitions)
        known.old_count = 0
        event = TopicRecreated(name)
        self._events.publish(event)
        for partition in list(self._assigned(name)):
            if partition.assigned_id not in (b"", topic.topic_id):
                self._state.begin_revocation([partition.tp])
            # Of one that the new topic lacks there is no other log.
            has_log = partition.tp.partition in topic.partitions
            topic_id = topic.topic_id if has_log else partition.topic_id
            self._start_over(partition, topic_id, f"{event}")

    def _start_over(self, partition: Cursor, topic_id: bytes, why: str) -> None:
        """Read a partition from where the policy says, not from where the old log was read."""
        position, search = partition.position, partition.search
        self._state.replace_log(partition, topic_id)
        if search is not None and search.sought is Sought.COMMITTED:
            return
        if search is not None and search.timestamp is not None:
            self._state.request_reset(partition, search.timestamp, reason=search.reason)
        elif self.reset_by_policy is not None:
            offset = 0 if position is None else position
            error = OffsetOutOfRangeError(
                {partition.tp: offset}, f"{why}. Seek to an offset to continue"
            )
            self.reset_by_policy(partition, error, RECREATED)

    def _assigned(self, name: str) -> Iterable[Cursor]:
        return (p for tp, p in self._state.assignment.items() if tp.topic == name)


def is_gone(view: ClusterView, topic: str) -> bool:
    """Whether brokers have been saying for a while that a topic does not exist."""
    known = view.topics.get(topic)
    if known is None:
        return view.is_of_all
    return not known.partitions and known.error is UnknownTopicOrPartitionError
