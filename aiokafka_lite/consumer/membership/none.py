"""Replaces the membership of a consumer without a group_id."""

from __future__ import annotations

import asyncio

from aiokafka_lite.client.cluster import Cluster, ignore_moves
from aiokafka_lite.client.view import ClusterView
from aiokafka_lite.consumer.core import Core
from aiokafka_lite.consumer.membership.protocol import NO_GENERATION, NO_MEMBER_ID, Offsets
from aiokafka_lite.events import Assigned
from aiokafka_lite.structs import TopicPartition


class NoGroup:
    """Assigns all partitions of the topics. It has no task, and calls no listener, as aiokafka."""

    member_id: str = NO_MEMBER_ID
    generation: int = NO_GENERATION
    status: None = None

    def __init__(self, core: Core, cluster: Cluster) -> None:
        self._config, self._state = core.config, core.state
        self._events, self._observers = core.events, core.observers
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()

    @property
    def is_settled(self) -> bool:
        view, topics = self._cluster.view, self._state.subscription
        if topics is None:
            return True
        return bool(topics) and all(view.partitions_for_topic(topic) for topic in topics)

    def wake_waiters(self) -> None:
        """Nothing waits here."""

    def is_called_by_listener(self) -> bool:
        return False

    async def start(self) -> None:
        self._observers.subscription_changed.add(self._follow)
        self._cluster.add_listener(self._metadata_changed, on_moves=ignore_moves)
        self._follow()

    async def wait_assigned(self) -> None:
        if not self.is_settled:
            self._metadata_changed(await self._cluster.refresh())

    def halt(self) -> None:
        """Do nothing."""

    def leave_nowait(self, reason: str) -> None:
        """Do nothing."""

    async def leave(
        self, *, deadline: float, offsets: Offsets, leaves: bool | None = None
    ) -> Offsets:
        self._cluster.remove_listener(self._metadata_changed)
        return {}

    def _metadata_changed(self, view: ClusterView) -> None:
        self._state.match_pattern(
            view, exclude_internal_topics=self._config.exclude_internal_topics
        )
        self._assign_all(view)

    def _follow(self) -> None:
        self._metadata_changed(self._cluster.view)

    def _assign_all(self, view: ClusterView) -> None:
        if not self._state.is_subscribed:
            return
        every = {
            TopicPartition(topic, number)
            for topic in self._state.subscription or ()
            for number in view.partitions_for_topic(topic) or ()
        }
        assigned = self._state.assignment
        gone = {tp for tp, cursor in assigned.items() if tp not in every or cursor.is_withheld}
        if gone or every != assigned.keys():
            self._state.change(gone, every)
            # The application may call this while the loop is not running.
            self._events.publish(Assigned(frozenset(every), at_s=self._loop.time()))
