"""The part of a group membership that both group protocols share."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import Any, Final, Generic, TypeVar

from aiokafka_lite.client.cluster import ignore_moves
from aiokafka_lite.client.view import ClusterView
from aiokafka_lite.consumer.assignment.observers import Departure
from aiokafka_lite.consumer.assignment.subscription import match_pattern
from aiokafka_lite.consumer.membership.group_task import GroupTask, Surroundings
from aiokafka_lite.consumer.membership.handover import Handover
from aiokafka_lite.consumer.membership.heartbeat import Lease, MemberHeartbeat
from aiokafka_lite.consumer.membership.protocol import GroupMember, GroupStatus, Offsets

log = logging.getLogger(__name__)

UNSUBSCRIBED: Final = "the consumer unsubscribed"

MemberT = TypeVar("MemberT", bound=GroupMember)


class GroupedMembership(ABC, Generic[MemberT]):
    """Implements Membership, but for the group task, which alone changes the assignment."""

    # Created by the subclass.
    _lease: Lease

    def __init__(self, around: Surroundings, member: MemberT) -> None:
        self._config = around.config
        self._state = around.state
        self._reads = around.reads
        self._gate = around.gate
        self._events = around.events
        self._observers = around.observers
        self._cluster = around.cluster
        self._coordinator = around.coordinator
        self._commits = around.commits
        self._scope = around.scope
        self._rng = around.rng
        self._loop = asyncio.get_running_loop()
        self._member = member
        self._handover = Handover(around, member, why_lost=self._why_lost)
        self._task = GroupTask(around, member, self)
        # The latest subscription for which the group task was woken.
        self._noticed_version: int | None = None

    # --- For the consumer -----------------------------------------------------------------
    @property
    def member_id(self) -> str:
        return self._member.identity.member_id

    @property
    def generation(self) -> int:
        return self._member.identity.generation

    @property
    def coordinator_id(self) -> int | None:
        return self._coordinator.node_id

    @property
    @abstractmethod
    def is_settled(self) -> bool: ...

    def wake_waiters(self) -> None:
        self._member.notify()

    def is_called_by_listener(self) -> bool:
        return self._handover.calls.is_calling()

    def halt(self) -> None:
        self._task.halt()

    async def wait_assigned(self) -> None:
        await self._task.wait_assigned()

    def _status(
        self,
        state: str,
        joining_since: float | None,
        heartbeat: MemberHeartbeat[Any],
    ) -> GroupStatus:
        return GroupStatus(
            self._member.group_id,
            state,
            joining_since,
            sits_out=self._task.sits_out,
            is_settled=self.is_settled,
            coordinator_id=self._coordinator.node_id,
            last_contact_at=heartbeat.last_contact_at,
            heartbeat_count=heartbeat.beat_count,
            heartbeat_failure_count=heartbeat.failure_count,
            stood_in_count=heartbeat.thread.count,
            withheld=self._handover.withheld,
            awaited_work=self._handover.awaited_work,
        )

    # --- Beginning and end ----------------------------------------------------------------
    def _observe(self) -> None:
        self._handover.start()
        self._observers.subscription_changed.add(self._application_acted)
        self._observers.acted.add(self._application_acted)
        self._observers.departed.add(self._note_departure)
        self._cluster.add_listener(self._metadata_changed, on_moves=ignore_moves)

    async def _end_what_runs(self, deadline: float) -> None:
        self._cluster.remove_listener(self._metadata_changed)
        await self._task.halted()
        await self._commits.stop_auto_commit()
        now = self._loop.time()
        await self._handover.calls.finish(deadline=now + max(0.0, deadline - now) / 2)

    async def _commit_at_the_end(self, offsets: Offsets, deadline: float) -> Offsets:
        """Make the last commit, and call the listener for unsubscribed partitions.

        Returns:
            The offsets that could not be committed.
        """
        uncommitted = await self._commits.commit_at_the_end(offsets, deadline=deadline)
        if not self.is_called_by_listener():
            await self._handover.settle_departed(UNSUBSCRIBED, deadline)
        return uncommitted

    # --- Changes --------------------------------------------------------------------------
    @abstractmethod
    def _why_lost(self) -> str | None:
        """Return why other members own the assigned partitions. None: they do not."""

    @abstractmethod
    def _note_departure(self, departure: Departure) -> None: ...

    def _warn_of_absence(self, overdue: str) -> None:
        log.warning(
            "leaving group %s, because %s. The consumer joins again when the application next "
            "requests records",
            self._member.group_id,
            overdue,
        )

    def _application_acted(self) -> None:
        """Wake the group task for a new subscription, or for a read while it sits out.

        Checks the lease first: a read after the loop was blocked must not return records of lost
        partitions.
        """
        self._lease.look()
        version = self._state.subscription_version
        if self._task.sits_out or self._noticed_version != version:
            self._noticed_version = version
            self._member.notify()

    def _metadata_changed(self, view: ClusterView) -> None:
        match_pattern(
            self._state, view, exclude_internal_topics=self._config.exclude_internal_topics
        )
        self._member.notify()
