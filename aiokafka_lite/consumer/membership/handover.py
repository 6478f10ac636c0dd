"""Assigns and revokes partitions: the listener, events and logs, for both group protocols.

New partitions are withheld until the listener has returned. All others can be read. Partitions that
unsubscribe() gave up are no longer assigned, and the group task's next step calls their listener.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Set
from types import MappingProxyType

from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.assignment.observers import Departure
from aiokafka_lite.consumer.assignment.subscription import is_subscribed
from aiokafka_lite.consumer.events.kinds import Assigned, ListenerFailed
from aiokafka_lite.consumer.membership.group_task import Surroundings
from aiokafka_lite.consumer.membership.listener import ListenerCalls
from aiokafka_lite.consumer.membership.protocol import AwaitedWork, GroupMember
from aiokafka_lite.consumer.membership.revocation import Revocation, WhyLost
from aiokafka_lite.errors import KafkaTimeoutError
from aiokafka_lite.structs import TopicPartition

log = logging.getLogger(__name__)

Partitions = frozenset[TopicPartition]


class Handover:
    """Hands partitions to the application, and takes them from it; called by the group task only.

    Args:
        around: The parts of the membership.
        member: The member that holds them.
        why_lost: Returns why other members own the assigned partitions; None: they do not.
    """

    def __init__(self, around: Surroundings, member: GroupMember, *, why_lost: WhyLost) -> None:
        self._config, self._state, self._commits = around.config, around.state, around.commits
        self._reads, self._gate, self._events = around.reads, around.gate, around.events
        self._member = member
        self._why_lost = why_lost
        self._loop = asyncio.get_running_loop()
        self.calls = ListenerCalls(around.scope, self)
        self._revocation = Revocation(
            around.config,
            around.state,
            around.works,
            around.finished,
            around.events,
            around.observers,
            member,
            around.commits,
            self.calls,
        )
        # Being revoked.
        self._going: Partitions = frozenset()
        # Given up by unsubscribe(), until the listener is called.
        self._left: Departure | None = None
        # The listener was called for those, so a revocation of no partitions does not call it.
        self._has_told_of_departed = False
        # Assigned, while on_partitions_assigned runs.
        self.withheld: Partitions = frozenset()
        # Their on_partitions_assigned was cancelled.
        self._untold: frozenset[Cursor] = frozenset()

    # --- What goes ------------------------------------------------------------------------
    def start(self) -> None:
        """Start to observe reads."""
        self._revocation.start()

    @property
    def awaited_work(self) -> AwaitedWork | None:
        return self._revocation.awaited_work

    async def revoke(
        self,
        gone: Set[TopicPartition],
        reason: str,
        *,
        deadline: float | None = None,
        waits: bool = True,
        tells_of_none: bool = False,
        stays_readable: bool = False,
    ) -> None:
        """Stop reading partitions, commit their finished records, and call the listener.

        They are marked before the commit, so that no record behind the committed offset is returned
        (KAFKA-16460). The group sees them as owned until this has returned.

        Args:
            gone: The partitions; those that are not assigned are ignored.
            reason: For events and logs.
            deadline: Loop time; by default the rebalance timeout from now.
            waits: Wait for the application to finish its records.
            tells_of_none: Call the listener even if there are no partitions.
            stays_readable: They stay in the assignment until the next one.
        """
        state = self._state
        self._going = frozenset(gone & state.assignment.keys())
        told, self._has_told_of_departed = self._has_told_of_departed, False
        try:
            await self._revocation.give_back(
                self._going,
                reason,
                deadline=self._time_for_all() if deadline is None else deadline,
                why_lost=self._why_lost,
                waits=waits,
                tells_of_none=tells_of_none and not told,
            )
            # Unless the application has unsubscribed.
            if not stays_readable and is_subscribed(state):
                state.change(self._going, ())
        finally:
            self._going = frozenset()

    async def lose(self) -> None:
        """Drop all assigned partitions without a commit, because other members own them."""
        state, deadline = self._state, self._time_for_all()
        gone = frozenset(state.assignment) if is_subscribed(state) else frozenset()
        listener = state.listener
        state.begin_revocation(gone)
        await self._tell_of_departed("", deadline)
        await self._tell(gone, listener, "", deadline)
        if is_subscribed(state):
            state.change(gone, ())

    def _time_for_all(self) -> float:
        return self._loop.time() + self._config.rebalance_timeout_s

    def note_departure(self, departure: Departure) -> None:
        """Note the partitions that unsubscribe() gives up, except those being revoked."""
        left = departure.partitions - self._going
        if is_subscribed(self._state) and left:
            self._left = departure._replace(partitions=left)

    @property
    def has_departed(self) -> bool:
        """Whether unsubscribed partitions wait for a commit or for the listener."""
        return self._left is not None or self._commits.has_departed

    async def settle_departed(self, reason: str, deadline: float | None = None) -> None:
        """Wait for the commit of unsubscribed partitions, and call their listener."""
        deadline = self._time_for_all() if deadline is None else deadline
        await self._commits.settle_departed((self._loop.time() + deadline) / 2)
        await self._tell_of_departed(reason, deadline)

    async def _tell_of_departed(self, reason: str, deadline: float) -> None:
        left, self._left = self._left, None
        if left is not None:
            await self._tell(left.partitions, left.listener, reason, deadline)
            self._has_told_of_departed = bool(left.partitions) and left.listener is not None

    async def _tell(
        self,
        gone: Partitions,
        listener: ConsumerRebalanceListener | None,
        reason: str,
        deadline: float,
    ) -> None:
        if gone:
            await self._revocation.tell(
                gone, listener, reason, deadline=deadline, why_lost=self._why_lost
            )

    # --- What comes -----------------------------------------------------------------------
    async def assign(
        self,
        new: Set[TopicPartition],
        *,
        topic_ids: Mapping[TopicPartition, bytes] = MappingProxyType({}),
        then: Callable[[], None] | None = None,
    ) -> None:
        """Assign partitions, and call the listener, if any.

        With a listener, they are withheld until the caller releases them (`Assignment.keep`).

        Args:
            new: The partitions. The listener is called even if there are none.
            topic_ids: The topic ids, if the group uses them.
            then: Called right after the assignment, before the listener.
        """
        state, listener = self._state, self._state.listener
        if not state.assignment:
            self._reads.restart_idle(self._loop.time())
        state.change((), new, topic_ids=topic_ids)
        if then is not None:
            then()
        generation = self._member.identity.generation
        self._events.publish(Assigned(frozenset(state.assignment), generation))
        log.info(
            "group %s: in generation %d, this member was assigned more partitions: %s. The member "
            "now has %d partitions",
            self._member.group_id,
            generation,
            sorted(new),
            len(state.assignment),
        )
        if listener is None:
            return
        state.withhold(new)
        await self.tell_of_new(listener, new)

    async def tell_of_new(
        self, listener: ConsumerRebalanceListener, new: Set[TopicPartition]
    ) -> None:
        """Call on_partitions_assigned. If it does not finish, reads raise an error.

        No other member waits for it, so its limit is max_poll_interval_ms.
        """
        self._untold = frozenset(cursor for cursor in self._untold if cursor.tp not in new)
        self.withheld = frozenset(new)
        limit_s = self._config.max_poll_interval_s
        slow = self._loop.call_later(
            self._config.rebalance_timeout_s,
            log.warning,
            "group %s: the rebalance listener has not returned from on_partitions_assigned for "
            "%g s, so records are withheld. If the listener has not returned after %g s, it is "
            "cancelled",
            self._member.group_id,
            self._config.rebalance_timeout_s,
            limit_s,
        )
        try:
            has_ended = await self.calls.call(
                "on_partitions_assigned",
                listener.on_partitions_assigned,
                set(new),
                deadline=self._loop.time() + limit_s,
            )
        finally:
            slow.cancel()
            self.withheld = frozenset()
        if not has_ended:
            assigned = self._state.assignment
            self._untold |= {assigned[tp] for tp in new & assigned.keys()}
            self._gate.leave_untold(self._why_untold)

    def _why_untold(self) -> KafkaTimeoutError | None:
        """Return the error for reads after on_partitions_assigned was cancelled."""
        self._untold = frozenset(cursor for cursor in self._untold if cursor.is_assigned)
        if not self._untold:
            return None
        return KafkaTimeoutError(
            "the rebalance listener did not finish on_partitions_assigned within "
            f"{self._config.max_poll_interval_s:g} s (max_poll_interval_ms), so no records are "
            "returned. Subscribe again to repeat the call. If the listener needs more time, raise "
            "max_poll_interval_ms"
        )

    def listener_failed(self, callback: str, error: Exception | None) -> None:
        """Publish the failure of a callback; see ListenerOwner."""
        self._events.publish(ListenerFailed(callback, error))
        if error is not None:
            self._gate.post_to_poll(error)
