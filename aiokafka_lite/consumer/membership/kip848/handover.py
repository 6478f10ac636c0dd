"""What surrounds partitions that come and go: the listener, events, and who is told what.

Only what moves stops. What is new is withheld until the listener was told of it, and what goes from
before its last commit on; all else is read and handed out meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Set

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.consumer.assignment.observers import Departure
from aiokafka_lite.consumer.assignment.subscription import SubscriptionState
from aiokafka_lite.consumer.assignment.topics import is_subscribed
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.events.kinds import Assigned, ListenerFailed
from aiokafka_lite.consumer.membership.kip848.member import ConsumerMember
from aiokafka_lite.consumer.membership.listener import ListenerCalls
from aiokafka_lite.consumer.membership.protocol import AwaitedWork, LastCommits
from aiokafka_lite.consumer.membership.revocation import Revocation
from aiokafka_lite.structs import TopicPartition

log = logging.getLogger(__name__)

Partitions = frozenset[TopicPartition]


class Handover:
    """Gives partitions to the application, and takes them from it."""

    def __init__(
        self,
        config: ConsumerConfig,
        state: SubscriptionState,
        member: ConsumerMember,
        commits: LastCommits,
        *,
        scope: TaskScope,
        on_listener_error: Callable[[Exception], None],
    ) -> None:
        self._config = config
        self._state = state
        self._member = member
        self._commits = commits
        self._on_listener_error = on_listener_error
        self._loop = asyncio.get_running_loop()
        self.calls = ListenerCalls(scope, self._listener_failed)
        self._revocation = Revocation(config, state, member, commits, self.calls)
        # What is being given back.
        self._going: Partitions = frozenset()
        # What unsubscribe() has left behind, until the listener is told of it.
        self._left: Departure | None = None
        # What is assigned and not handed out yet, as the listener is being told of it.
        self.withheld: Partitions = frozenset()

    # --- What goes ------------------------------------------------------------------------
    def start(self) -> None:
        """Start to hear of gets."""
        self._revocation.start()

    @property
    def awaited_work(self) -> AwaitedWork | None:
        """What partitions that are given back wait for; None: none waits."""
        return self._revocation.awaited_work

    async def revoke(self, gone: Set[TopicPartition], reason: str, *, waits: bool = True) -> None:
        """Hand out nothing more of partitions, commit what is done of them, tell the listener.

        They are marked before the commit: nothing is handed out behind what it says
        (KAFKA-16460). Nothing of this changes what the group is told: they are owned until this
        has returned.
        """
        state = self._state
        self._going = frozenset(gone & state.assignment.keys())
        try:
            await self._revocation.give_back(
                self._going,
                reason,
                deadline=self._loop.time() + self._config.rebalance_timeout_s,
                why_lost=self._why_lost,
                waits=waits,
            )
            if is_subscribed(state):  # unless the application has given up all meanwhile
                state.change(self._going, ())
        finally:
            self._going = frozenset()

    async def lose(self) -> None:
        """Give up all that is assigned: it is others' already, so nothing is committed."""
        state = self._state
        deadline = self._loop.time() + self._config.rebalance_timeout_s
        gone = frozenset(state.assignment) if is_subscribed(state) else frozenset()
        listener = state.listener
        state.begin_revocation(gone)
        await self._tell_of_what_was_left("", deadline)
        await self._tell(gone, listener, "", deadline)
        if is_subscribed(state):
            state.change(gone, ())

    def _why_lost(self) -> str | None:
        """Say why what is assigned is others' already; None: it is not."""
        member = self._member
        if member.has_epoch:
            return None
        text = "" if member.lost_by is None else member.lost_by.value
        return f"{text} ({member.lost_because})" if member.lost_because else text

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
        if deadline is None:
            deadline = self._loop.time() + self._config.rebalance_timeout_s
        await self._commits.settle_departed((self._loop.time() + deadline) / 2)
        await self._tell_of_what_was_left(reason, deadline)

    async def _tell_of_what_was_left(self, reason: str, deadline: float) -> None:
        left, self._left = self._left, None
        if left is not None:
            await self._tell(left.partitions, left.listener, reason, deadline)

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
    async def assign(self, new: Set[TopicPartition], *, told: Callable[[], None]) -> None:
        """Take partitions, and tell the listener of them; they are withheld until the next turn.

        Args:
            new: May be empty: then the listener hears that there is nothing.
            told: Called as soon as they are assigned.
        """
        state, listener = self._state, self._state.listener
        if not state.assignment:
            state.restart_idle(self._loop.time())
        state.change((), new)
        told()
        epoch = self._member.identity.generation
        state.events.publish(Assigned(frozenset(state.assignment), epoch))
        log.info(
            "group %s: epoch %d adds %s to make %d partitions",
            self._member.group_id,
            epoch,
            sorted(new),
            len(state.assignment),
        )
        if listener is None:
            return
        self.withheld = frozenset(new)
        state.withhold(new)
        try:
            await self.calls.call(
                "on_partitions_assigned",
                listener.on_partitions_assigned,
                set(new),
                deadline=self._loop.time() + self._config.rebalance_timeout_s,
            )
        finally:
            self.withheld = frozenset()

    def _listener_failed(self, callback: str, error: Exception | None) -> None:
        self._state.events.publish(ListenerFailed(callback, error))
        if error is not None:
            self._on_listener_error(error)
