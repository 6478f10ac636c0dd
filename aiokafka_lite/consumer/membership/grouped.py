"""A consumer's place in a group, as far as it is the same in both protocols.

What others may ask of a membership, what it observes, and how it begins to end. The group task of a
protocol does the rest: it alone decides what is assigned.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import Final, Generic, TypeVar

from aiokafka_lite.client import ClusterView
from aiokafka_lite.client.cluster import ignore_moves
from aiokafka_lite.consumer.assignment.observers import Departure
from aiokafka_lite.consumer.assignment.topics import match_pattern
from aiokafka_lite.consumer.membership.group_task import GroupTask, Surroundings
from aiokafka_lite.consumer.membership.handover import Handover
from aiokafka_lite.consumer.membership.lease import Lease
from aiokafka_lite.consumer.membership.protocol import GroupMember, Offsets

log = logging.getLogger(__name__)

# Why the listener hears of what unsubscribe() gave up.
UNSUBSCRIBED: Final = "the consumer unsubscribed"

MemberT = TypeVar("MemberT", bound=GroupMember)


class GroupedMembership(ABC, Generic[MemberT]):
    """What a membership of either protocol has; see Membership for what it is asked.

    Args:
        around: What it is made of.
        member: Whose place this is.
    """

    # Made by the protocol, as it says when a member hands out anything.
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
        # The subscription of which the group task was told.
        self._noticed_version: int | None = None

    # --- For the consumer -----------------------------------------------------------------
    @property
    def member_id(self) -> str:
        """The id in the group; empty while there is none."""
        return self._member.identity.member_id

    @property
    def generation(self) -> int:
        """The generation, or member epoch, that the assignment is of; -1 while there is none."""
        return self._member.identity.generation

    @property
    def coordinator_id(self) -> int | None:
        """The node that coordinates the group, as far as known."""
        return self._coordinator.node_id

    @property
    @abstractmethod
    def is_settled(self) -> bool:
        """Whether the assignment answers to the present subscription, and the listener knows."""

    def wake_waiters(self) -> None:
        """Wake those who wait for the member: there may be nothing to wait for any more."""
        self._member.notify()

    def is_called_by_listener(self) -> bool:
        """Whether it is the listener's callback that asks."""
        return self._handover.calls.is_calling()

    def halt(self) -> None:
        """Change nothing of what is assigned from here on; idempotent."""
        self._task.halt()

    async def wait_assigned(self) -> None:
        """Wait until the present subscription has got an assignment, which may be empty.

        Raises:
            KafkaError: What keeps the member from joining and will not pass by itself.
            ConsumerStoppedError: The consumer was stopped meanwhile.
        """
        await self._task.wait_assigned()

    # --- Beginning and end ----------------------------------------------------------------
    def _observe(self) -> None:
        """Begin to hear of gets, of the subscription, and of metadata."""
        self._handover.start()
        self._observers.add_listener(self._application_acted)
        self._observers.on_departure(self._note_departure)
        self._cluster.add_listener(self._metadata_changed, on_moves=ignore_moves)

    async def _end_what_runs(self, deadline: float) -> None:
        """End the group task, commits by the clock and the listener's callback, and wait for it."""
        self._cluster.remove_listener(self._metadata_changed)
        await self._task.halted()
        await self._commits.stop_auto_commit()
        now = self._loop.time()
        await self._handover.calls.finish(deadline=now + max(0.0, deadline - now) / 2)

    async def _commit_at_the_end(self, offsets: Offsets, deadline: float) -> Offsets:
        """Commit last of all, and tell of what was unsubscribed; return what is not committed."""
        uncommitted = await self._commits.commit_at_the_end(offsets, deadline=deadline)
        if not self.is_called_by_listener():
            await self._handover.settle_departed(UNSUBSCRIBED, deadline)
        return uncommitted

    # --- What happens to it ---------------------------------------------------------------
    @abstractmethod
    def _why_lost(self) -> str | None:
        """Say why what is assigned is others' already; None: it is not."""

    @abstractmethod
    def _note_departure(self, departure: Departure) -> None:
        """Note what unsubscribe() gives up."""

    def _warn_of_absence(self, overdue: str) -> None:
        """Say that the member leaves its group, as the application stays away."""
        log.warning(
            "leaving group %s, because %s. The consumer joins again when the application next "
            "requests records",
            self._member.group_id,
            overdue,
        )

    def _application_acted(self) -> None:
        """Wake the group task for a new subscription, or for a get that it sits out for.

        A get after the loop was blocked is served only if the partitions are still this member's.
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
