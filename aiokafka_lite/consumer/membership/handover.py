"""What surrounds partitions that come and go, whichever protocol: the listener, events, the log.

How partitions go is told in `revocation`. What comes is withheld until the listener was told of it.
All else is read and handed out meanwhile. Partitions that unsubscribe() gave up are gone already:
the listener of then is told of them in the group task's next step.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Set
from types import MappingProxyType

from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.assignment.observers import Departure
from aiokafka_lite.consumer.assignment.topics import is_subscribed
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
    """Gives partitions to the application, and takes them from it; only the group task calls it.

    Args:
        around: Of the membership.
        member: As whom partitions are held.
        why_lost: Says why what is assigned is others' already; None: it is not.
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
        # What is being given back.
        self._going: Partitions = frozenset()
        # What unsubscribe() has left behind, until the listener is told of it.
        self._left: Departure | None = None
        # The listener was told of that, and is not told for the same reason that nothing else goes.
        self._has_told_of_departed = False
        # What is assigned and not handed out yet, as the listener is being told of it.
        self.withheld: Partitions = frozenset()
        # What the listener did not finish taking.
        self._untold: frozenset[Cursor] = frozenset()

    # --- What goes ------------------------------------------------------------------------
    def start(self) -> None:
        """Start to hear of gets."""
        self._revocation.start()

    @property
    def awaited_work(self) -> AwaitedWork | None:
        """What partitions that are given back wait for; None: none waits."""
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
        """Hand out nothing more of partitions, commit what is done of them, tell the listener.

        They are marked before the commit: nothing is handed out behind what it says
        (KAFKA-16460). Nothing of this changes what the group is told: they are owned until this
        has returned.

        Args:
            gone: Which; what is not assigned is ignored.
            reason: For events and logs.
            deadline: Loop time by which to be done; by default the rebalance timeout from now.
            waits: For the application to finish what it was handed of them.
            tells_of_none: Tell the listener even if there are none.
            stays_readable: They stay in the assignment, to be looked at until there is another.
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
            # Unless the application has given up all meanwhile.
            if not stays_readable and is_subscribed(state):
                state.change(self._going, ())
        finally:
            self._going = frozenset()

    async def lose(self) -> None:
        """Give up all that is assigned: it is others' already, so nothing is committed."""
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
        """Note what unsubscribe() leaves behind, but for what is told of already."""
        left = departure.partitions - self._going
        if is_subscribed(self._state) and left:
            self._left = departure._replace(partitions=left)

    @property
    def has_departed(self) -> bool:
        """Whether something that was unsubscribed is still to be committed, or told of."""
        return self._left is not None or self._commits.has_departed

    async def settle_departed(self, reason: str, deadline: float | None = None) -> None:
        """Wait for the commit of what was unsubscribed, and tell the listener of then."""
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
        """Take partitions, and tell the listener of them.

        Where there is one they are withheld until the caller lets go of them (`Assignment.keep`).

        Args:
            new: May be empty: then the listener hears that there is nothing.
            topic_ids: Of those that the group names by the ids of their topics.
            then: Called as soon as they are assigned.
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
        """Tell the listener what is assigned; if it does not finish, gets raise that.

        It may load what belongs to the partitions, and nobody else waits for that: it has as long
        as the application has for records.
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
        """Return what gets raise while the listener did not finish taking what is assigned."""
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
        """Publish what a callback has raised, or None if it was cancelled; see ListenerOwner."""
        self._events.publish(ListenerFailed(callback, error))
        if error is not None:
            self._gate.post_to_poll(error)
