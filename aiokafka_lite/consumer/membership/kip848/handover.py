"""What surrounds partitions that come and go: the last commit, the listener, the events.

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
from aiokafka_lite.consumer.events.kinds import Assigned, ListenerFailed, Lost, Revoked
from aiokafka_lite.consumer.membership.kip848.member import ConsumerMember
from aiokafka_lite.consumer.membership.listener import ListenerCalls
from aiokafka_lite.consumer.membership.protocol import LastCommits
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
        # What unsubscribe() has left behind, until the listener is told of it.
        self._left: Departure | None = None
        # What is assigned and not handed out yet, as the listener is being told of it.
        self.withheld: Partitions = frozenset()

    # --- What goes ------------------------------------------------------------------------
    async def revoke(self, gone: Set[TopicPartition], reason: str) -> None:
        """Hand out nothing more of partitions, commit what is done of them, tell the listener.

        They are marked before the commit: nothing is handed out behind what it says
        (KAFKA-16460). Nothing of this changes what the group is told: they are owned until this
        has returned.
        """
        state = self._state
        deadline = self._loop.time() + self._config.rebalance_timeout_s
        # Half of the time: the listener may want to commit or flush something, too.
        commit_by = (self._loop.time() + deadline) / 2
        going = frozenset(gone & state.assignment.keys())
        listener = state.listener
        state.begin_revocation(going)
        await self._wait_for_the_application(going, deadline)
        if self._config.enable_auto_commit and self._member.has_epoch:
            processed = state.processed_offsets()
            offsets = {tp: processed[tp] for tp in going & processed.keys()}
            await self._commits.commit_last(offsets, deadline=commit_by)
        if not self._member.has_epoch:
            return  # all is lost: what is told of these is told with the rest
        await self._tell_of_the_end(going, listener, reason, deadline)
        state.change(going, ())

    async def _wait_for_the_application(self, going: Partitions, deadline: float) -> None:
        """Wait until the application has finished what it was handed out of partitions."""

    async def lose(self, reason: str) -> None:
        """Give up all that is assigned: it is others' already, so nothing is committed."""
        state = self._state
        deadline = self._loop.time() + self._config.rebalance_timeout_s
        gone = frozenset(state.assignment) if is_subscribed(state) else frozenset()
        listener = state.listener
        state.begin_revocation(gone)
        await self._tell_of_what_was_left(reason, deadline)
        await self._tell_of_the_end(gone, listener, reason, deadline, is_lost=True)
        if is_subscribed(state):  # unless the application has given up all meanwhile
            state.change(gone, ())

    def note_departure(self, departure: Departure) -> None:
        """Note what unsubscribe() leaves behind."""
        if is_subscribed(self._state):
            self._left = departure

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
            is_lost = not self._member.has_epoch
            await self._tell_of_the_end(
                left.partitions, left.listener, reason, deadline, is_lost=is_lost
            )

    async def _tell_of_the_end(
        self,
        gone: Partitions,
        listener: ConsumerRebalanceListener | None,
        reason: str,
        deadline: float,
        *,
        is_lost: bool = False,
    ) -> None:
        """Tell the listener, and all who want to know, that partitions are gone."""
        if not gone:
            return
        group_id, events = self._member.group_id, self._state.events
        if is_lost:
            log.warning("group %s: lost %s: %s", group_id, sorted(gone), reason)
            events.publish(Lost(gone, reason))
        else:
            log.info("group %s: giving back %s", group_id, sorted(gone))
            events.publish(Revoked(gone, reason))
        if listener is None:
            return
        name = "on_partitions_lost" if is_lost else "on_partitions_revoked"
        method = listener.on_partitions_lost if is_lost else listener.on_partitions_revoked
        await self.calls.call(name, method, set(gone), deadline=deadline)

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
