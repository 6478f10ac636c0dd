"""How partitions are given back, whichever protocol the group speaks.

1. Nothing more of them is fetched or handed out; the others go on.
2. They wait for the application to finish what it was handed of them. Its next get proves that it
   has, and so does a commit of its own. A get that is pending has proved it already. Otherwise the
   next owner would read that again.
3. What it has finished is committed, with auto-commit.
4. The listener is told, and events.

Whoever runs this heartbeats meanwhile, and says afterwards by `Assignment.change` that they are
gone: until then their positions can be read. It is `rebalance_hold_ms` that limits step 2, lest an
application that hangs holds up its group. The commit and the listener have the rest of the time.

Partitions that are lost are others' already: for them there is only step 4.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from aiokafka_lite._compat import timeout_at
from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.consumer.assignment.subscription import SubscriptionState
from aiokafka_lite.consumer.config import HOLD_MARGIN, ConsumerConfig
from aiokafka_lite.consumer.events.kinds import Lost, OffsetRange, Revoked, WorkAwaited
from aiokafka_lite.consumer.membership.listener import ListenerCalls
from aiokafka_lite.consumer.membership.protocol import AwaitedWork, GroupMember, LastCommits
from aiokafka_lite.structs import TopicPartition

log = logging.getLogger(__name__)

# Says why partitions are lost; None: they are not.
WhyLost = Callable[[], str | None]


class Revocation:
    """Gives partitions of one consumer back; only the task that decides on them calls it.

    Args:
        config: Says how long to wait, and whether to commit.
        state: Whose partitions these are.
        member: As whom they are held. Its `notify` has to be called when it loses them.
        commits: Makes the last commit.
        listener_calls: Runs the listener's callbacks.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        state: SubscriptionState,
        member: GroupMember,
        commits: LastCommits,
        listener_calls: ListenerCalls,
    ) -> None:
        self._config = config
        self._state = state
        self._member = member
        self._commits = commits
        self._listener_calls = listener_calls
        # What is waited for, for whoever has to tell; None: nothing.
        self.awaited_work: AwaitedWork | None = None

    def start(self) -> None:
        """Start to hear of gets."""
        self._state.observers.add_listener(self._application_acted)

    def _application_acted(self) -> None:
        if self.awaited_work is not None:
            self._member.notify()

    async def give_back(
        self,
        partitions: Iterable[TopicPartition],
        reason: str,
        *,
        deadline: float,
        why_lost: WhyLost,
        waits: bool = True,
        tells_of_none: bool = False,
    ) -> None:
        """Take steps 1 to 4; they are still assigned at the end.

        When it is cancelled nothing more is done, and the partitions stay revoking.

        Args:
            partitions: Which; those that the application gives up meanwhile count as well.
            reason: For events and logs.
            deadline: Loop time by which all is to be done.
            why_lost: Asked before each step.
            waits: Take step 2.
            tells_of_none: Call the listener even if there are none, as aiokafka does.
        """
        state, loop = self._state, asyncio.get_running_loop()
        gone, listener = frozenset(partitions), state.listener
        state.begin_revocation(gone & state.assignment.keys())
        if waits and why_lost() is None:
            await self._wait_for_application(gone, deadline, why_lost)
        # Half of what is left: the listener may want to commit or flush something, too.
        commit_by = (loop.time() + deadline) / 2
        await self._commits.settle_departed(commit_by)
        if self._config.enable_auto_commit and why_lost() is None:
            offsets = state.processed_offsets()
            finished = {tp: offsets[tp] for tp in offsets.keys() & gone}
            await self._commits.commit_last(finished, deadline=commit_by)
        if gone or tells_of_none:
            await self.tell(gone, listener, reason, deadline=deadline, why_lost=why_lost)

    async def tell(
        self,
        gone: frozenset[TopicPartition],
        listener: ConsumerRebalanceListener | None,
        reason: str,
        *,
        deadline: float,
        why_lost: WhyLost,
    ) -> None:
        """Tell the listener, and all who want to know, that partitions go, or are lost."""
        group_id = self._member.group_id
        why = why_lost() if gone else None
        if why is not None:
            log.warning("group %s: lost %s: %s", group_id, sorted(gone), why or reason)
            self._state.events.publish(Lost(gone, why or reason))
        else:
            log.info("group %s: giving back %s", group_id, sorted(gone))
            if gone:
                self._state.events.publish(Revoked(gone, reason))
        if listener is None:
            return
        name = "on_partitions_revoked" if why is None else "on_partitions_lost"
        method = listener.on_partitions_revoked if why is None else listener.on_partitions_lost
        await self._listener_calls.call(name, method, set(gone), deadline=deadline)

    # --- Waiting for the application ------------------------------------------------------
    async def _wait_for_application(
        self, gone: frozenset[TopicPartition], deadline: float, why_lost: WhyLost
    ) -> None:
        """Wait until the application has finished what it was handed, or the time is up."""
        loop = asyncio.get_running_loop()
        left_s = deadline - loop.time() - HOLD_MARGIN * self._config.rebalance_timeout_s
        until = loop.time() + max(0.0, min(self._config.rebalance_hold_s, left_s))
        if until <= loop.time() or not self._is_at_work(gone, until):
            return
        awaited = self.awaited_work
        if awaited is not None and awaited.offsets:
            offsets = {tp: OffsetRange(*each) for tp, each in awaited.offsets.items()}
            self._state.events.publish(WorkAwaited(offsets, until - loop.time()))
        try:
            async with timeout_at(until):
                while why_lost() is None and self._is_at_work(gone, until):
                    await self._member.wait_for_change()
        except asyncio.TimeoutError:
            log.warning(
                "group %s: the application did not finish in time (rebalance_hold_ms): the next "
                "owners read again %s",
                self._member.group_id,
                {
                    f"{tp.topic}/{tp.partition}": f"{first} to {end - 1}"
                    for tp, (first, end) in sorted(self._state.unfinished(gone).items())
                },
            )
        finally:
            self.awaited_work = None

    def _is_at_work(self, gone: frozenset[TopicPartition], until: float) -> bool:
        """Whether the application, or a commit of its own, is to be waited for; note for what."""
        self.awaited_work = AwaitedWork(self._state.unfinished(gone), until)
        if self.awaited_work.offsets or self._commits.is_committing(gone):
            return True
        self.awaited_work = None
        return False
