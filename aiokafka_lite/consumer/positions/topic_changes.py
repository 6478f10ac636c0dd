"""Follows the consumer's topics in the metadata, and confirms their ids.

    deleted       reads raise that once, if the partitions were assigned by hand
    recreated     positions and buffered records are of the old log, and are reset by
                  auto_offset_reset. A partition that the group has assigned by topic id (KIP-848)
                  is withheld until it is revoked: the new topic's may be another member's
    grown         new partitions are read from their beginning: see `came_later`
    missing       reads raise once that a partition, assigned by hand, is unknown

A topic was recreated if its id changes (KIP-516); brokers without ids do not show that.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Collection, Iterable
from typing import Final

from aiokafka_lite._compat import timeout_at
from aiokafka_lite._tasks import sleep_before
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.cluster_requests import metadata_request
from aiokafka_lite.client.view import GONE_AFTER_S, ClusterView, TopicView
from aiokafka_lite.consumer.assignment.assignment import SubscriptionMode
from aiokafka_lite.consumer.assignment.cursor import NO_IDS, Cursor, Sought
from aiokafka_lite.consumer.core import Core
from aiokafka_lite.errors import (
    ClientClosedError,
    CommitFailedError,
    KafkaError,
    KafkaTimeoutError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.events import PartitionsAdded, TopicDeleted, TopicRecreated
from aiokafka_lite.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from aiokafka_lite.structs import TopicPartition

RECREATED: Final = "topic recreated"


class _KnownTopic:
    __slots__ = ("count", "former_ids", "is_gone", "old_count", "topic_id")

    def __init__(self, topic_id: bytes, count: int, old_count: int) -> None:
        self.topic_id = topic_id
        self.count = count
        # Its partitions at first sight. The others were added later.
        self.old_count = old_count
        self.is_gone = False
        # A broker that lags may still return them.
        self.former_ids: set[bytes] = set()


class TopicChanges:
    def __init__(self, core: Core) -> None:
        self._state, self._events, self._buffer = core.state, core.events, core.buffer
        # The resolver's. Set after its creation.
        self.reset_by_policy: Callable[[Cursor, KafkaError, str], None] | None = None
        self._known: dict[str, _KnownTopic] = {}
        # Requested topics that did not exist.
        self._absent: set[str] = set()
        # Partitions that their topics do not have, since when. None: that was raised.
        self._missing: dict[TopicPartition, float | None] = {}
        # The pattern that was matched with all topics.
        self._pattern: re.Pattern[str] | None = None
        core.observers.subscription_changed.add(self._subscription_changed)

    def _subscription_changed(self) -> None:
        if self._state.mode is not SubscriptionMode.PATTERN:
            self._pattern = None

    def came_later(self, tp: TopicPartition) -> bool:
        """Whether a partition was added after the consumer first saw its topic.

        With auto_offset_reset=latest it is then read from its beginning, so that no records are
        skipped that were written before its discovery.
        """
        known = self._known.get(tp.topic)
        return known is not None and tp.partition >= known.old_count

    def view_changed(self, view: ClusterView) -> None:
        names = self._names(view)
        for name in tuple(self._known):
            if name not in names:
                if self._is_matched(name) and is_gone(view, name):
                    self._is_gone(name)  # the pattern no longer matches it
                del self._known[name]
        self._absent &= names.keys()
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

    def _names(self, view: ClusterView) -> dict[str, None]:
        matched = filter(self._is_matched, view.topics)
        return dict.fromkeys((*sorted(self._state.topics), *matched))

    def _is_matched(self, name: str) -> bool:
        pattern = self._state.pattern
        return pattern is not None and pattern.match(name) is not None

    # --- One topic ------------------------------------------------------------------------
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
        # The assignment may be older than the first view of the topic.
        read_as = {known.topic_id, *(cursor.topic_id for cursor in self._assigned(name))}
        read_as -= {topic.topic_id, *NO_IDS, *known.former_ids}
        if read_as and topic.topic_id not in NO_IDS:
            known.former_ids |= read_as
            self._recreated(name, known, topic)
            return
        if count > known.count:
            self._events.publish(PartitionsAdded(name, known.count, count))
        known.count = count

    def _is_gone(self, name: str) -> None:
        known = self._known.get(name)
        if known is None:
            self._absent.add(name)
            return
        if known.is_gone:
            return
        known.is_gone = True
        event = TopicDeleted(name)
        self._events.publish(event)
        if self._state.mode is SubscriptionMode.ASSIGNED:
            partition = min(self._assigned(name), key=lambda partition: partition.tp)
            error = UnknownTopicOrPartitionError(f"{event}").at(partition.tp, partition.position)
            self._buffer.put_error(partition, error)

    def _recreated(self, name: str, known: _KnownTopic, topic: TopicView) -> None:
        known.topic_id = topic.topic_id
        known.count = len(topic.partitions)
        known.old_count = 0
        event = TopicRecreated(name)
        self._events.publish(event)
        for partition in list(self._assigned(name)):
            if partition.assigned_id not in (b"", topic.topic_id):
                self._state.withhold([partition.tp])
            # The new topic may lack the partition.
            has_log = partition.tp.partition in topic.partitions
            topic_id = topic.topic_id if has_log else partition.topic_id
            self._start_over(partition, topic_id, f"{event}")

    def _start_over(self, partition: Cursor, topic_id: bytes, why: str) -> None:
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
    known = view.topics.get(topic)
    if known is None:
        return view.is_of_all
    return not known.partitions and known.error is UnknownTopicOrPartitionError


# How long a confirmed id is valid.
CONFIRMED_S: Final = 1.0


class ConfirmedTopics:
    """Topic ids that brokers have confirmed, before a transaction commits offsets by name.

    Offsets of a deleted topic are invalid in a recreated one, and the metadata may be old. So a
    broker is asked, at most once a second. A topic that is recreated within that second may get
    such offsets.
    """

    def __init__(self, cluster: Cluster, core: Core) -> None:
        self._cluster = cluster
        self._core = core
        # Loop times of the requests, by name and id.
        self._confirmed: dict[tuple[str, bytes], float] = {}

    async def confirm(
        self, topic_ids: Collection[tuple[TopicPartition, bytes]], deadline: float
    ) -> None:
        """Confirm the ids under which partitions were read, unless they were confirmed lately.

        Raises:
            CommitFailedError: A topic was deleted, or recreated under another id.
            KafkaError: A broker refuses, or no broker answers in time.
        """
        asked_at = asyncio.get_running_loop().time()
        valid = {each: at for each, at in self._confirmed.items() if asked_at < at + CONFIRMED_S}
        read = dict.fromkeys((tp.topic, read_as) for tp, read_as in topic_ids)
        asked = [each for each in read if each not in valid]
        if not asked:
            return
        try:
            answer = await self._ask({name for name, _ in asked}, deadline)
        except ClientClosedError:
            return  # the consumer is stopped: its group refuses the commit
        found = {topic.name: topic for topic in answer.topics}
        former = [each for each in asked if not self._is_same(found.get(each[0]), each[1])]
        self._confirmed = valid | {each: asked_at for each in asked if each not in former}
        if former:
            with contextlib.suppress(KafkaError, asyncio.TimeoutError):
                async with timeout_at(deadline):
                    await self._cluster.refresh()
            raise _of_former_topics(name for name, _ in former)

    async def _ask(self, topics: Collection[str], deadline: float) -> MetadataResponse:
        request, backoff = metadata_request(topics, may_create=False), self._core.new_backoff()
        while True:
            try:
                async with timeout_at(deadline):
                    return await self._cluster.request_any(request)
            except (KafkaError, asyncio.TimeoutError) as error:
                if isinstance(error, KafkaError) and not error.retriable:
                    raise
                if not await sleep_before(deadline, backoff.next_delay_s()):
                    raise KafkaTimeoutError(
                        "offsets cannot be committed, because no broker confirmed in time that "
                        f"the topics {sorted(topics)} were not recreated"
                    ) from error

    def _is_same(self, found: MetadataResponseTopic | None, read_as: bytes) -> bool:
        """Whether the response is for the topic that was read, or for an older one."""
        if found is None or found.error_code == UnknownTopicOrPartitionError.errno:
            return False
        known = self._cluster.view.topics.get(found.name or "")
        if known is not None and found.topic_id in known.former_ids:
            return True
        return read_as in (found.topic_id, *NO_IDS) or found.topic_id in NO_IDS

    def is_former(self, topic: str, read_as: bytes) -> bool:
        view = self._cluster.view
        now = view.topic_id(topic)
        return is_gone(view, topic) or (now is not None and read_as not in (now, *NO_IDS))

    def raise_if_former(self, topic_ids: Collection[tuple[TopicPartition, bytes]]) -> None:
        former = [tp for tp, read_as in topic_ids if self.is_former(tp.topic, read_as)]
        if former:
            raise _of_former_topics(tp.topic for tp in former)


def _of_former_topics(names: Iterable[str]) -> CommitFailedError:
    return CommitFailedError(
        "the transaction is aborted, because topics were deleted after their records were "
        f"returned: {', '.join(sorted({*names}))}"
    )
