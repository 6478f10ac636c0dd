"""How partitions are given back, whichever protocol the group speaks.

1. Nothing more of them is fetched or handed out; the others go on.
2. They wait for the application to finish what it was handed of them. Its next get proves that it
   has, and so does a commit of its own. A get that is pending has proved it already. What is in an
   open batch is finished at the end of its block; what `run` has given to a handler, at the end of
   that. Otherwise the next owner would read that again. When the time is up handlers are cancelled.
3. What it has finished is committed, with auto-commit.
4. The listener is told, and events.

Whoever runs this heartbeats meanwhile, and says afterwards by `Assignment.change` that they are
gone: until then their positions can be read. It is `rebalance_hold_ms` that limits step 2, or a
batch's own limit, lest an application that hangs holds up its group. The commit and the listener
have the rest of the time.

Partitions that are lost are others' already: for them there is only step 4.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from aiokafka_lite._compat import timeout_at
from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.consumer.assignment.cursor import Range
from aiokafka_lite.consumer.assignment.finished import Finished
from aiokafka_lite.consumer.assignment.observers import Observers
from aiokafka_lite.consumer.assignment.subscription import SubscriptionState
from aiokafka_lite.consumer.assignment.work import Work
from aiokafka_lite.consumer.assignment.works import Works
from aiokafka_lite.consumer.config import HOLD_MARGIN, ConsumerConfig
from aiokafka_lite.consumer.events.kinds import Lost, OffsetRange, Revoked, WorkAwaited
from aiokafka_lite.consumer.events.stream import Events
from aiokafka_lite.consumer.membership.listener import ListenerCalls
from aiokafka_lite.consumer.membership.protocol import (
    AwaitedWork,
    GroupMember,
    LastCommits,
    Offsets,
)
from aiokafka_lite.structs import TopicPartition

log = logging.getLogger(__name__)

# How long a rebalance waits for handlers that were cut off.
LONGEST_END_S: Final = 1.0

# Says why partitions are lost; None: they are not.
WhyLost = Callable[[], str | None]


class HoldLimits(NamedTuple):
    """Until when partitions that go wait, as loop times."""

    # When they began to wait.
    now: float
    # For what gets have handed out; and for each work.
    of_gets: float
    works: Mapping[Work, float]


class Revocation:
    """Gives partitions of one consumer back; only the task that decides on them calls it.

    Args:
        config: Says how long to wait, and whether to commit.
        state: Whose partitions these are.
        works: Are waited for.
        finished: Tell what to commit.
        events: Tell what becomes of them.
        observers: Tell that the application acts.
        member: As whom they are held. Its `notify` has to be called when it loses them.
        commits: Makes the last commit.
        listener_calls: Runs the listener's callbacks.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        state: SubscriptionState,
        works: Works,
        finished: Finished,
        events: Events,
        observers: Observers,
        member: GroupMember,
        commits: LastCommits,
        listener_calls: ListenerCalls,
    ) -> None:
        self._config = config
        self._state = state
        self._works = works
        self._finished = finished
        self._events = events
        self._observers = observers
        self._member = member
        self._commits = commits
        self._listener_calls = listener_calls
        # What is waited for, for whoever has to tell; None: nothing.
        self.awaited_work: AwaitedWork | None = None
        # Works that were given up are to end.
        self._is_giving_up = False

    def start(self) -> None:
        """Start to hear of gets."""
        self._observers.add_listener(self._application_acted)

    def _application_acted(self) -> None:
        if self.awaited_work is not None or self._is_giving_up:
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
            # Handlers may take as long as the group waits. The rest has what is left, or some time.
            config = self._config
            of_group = deadline + config.group_timeout_s - config.rebalance_timeout_s
            await self._wait_for_application(gone, of_group, why_lost)
            rest_s = config.rebalance_timeout_s / 2
            deadline = min(of_group, max(deadline, loop.time() + rest_s))
        self._works.give_up(gone, loop.time())
        await self._until_given_up(gone, deadline)
        # Half of what is left: the listener may want to commit or flush something, too.
        commit_by = (loop.time() + deadline) / 2
        await self._commits.settle_departed(commit_by)
        finished: Offsets = {}
        while self._config.enable_auto_commit and why_lost() is None and loop.time() < commit_by:
            offsets, before = self._finished.processed_offsets(), finished
            finished = {tp: offsets[tp] for tp in offsets.keys() & gone}
            if finished == before:  # nothing was finished while the last commit was on its way
                break
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
            self._works.give_up(gone, asyncio.get_running_loop().time())
            log.warning("group %s: lost partitions %s: %s", group_id, sorted(gone), why or reason)
            self._events.publish(Lost(gone, why or reason))
        else:
            log.info("group %s: revoking %s", group_id, sorted(gone))
            if gone:
                self._events.publish(Revoked(gone, reason))
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
        limits = self._limits(gone, deadline)
        until = self._next_limit(gone, limits)
        if until is None:
            return
        awaited, now = self.awaited_work, limits.now
        if awaited is not None and awaited.offsets:
            offsets = {tp: OffsetRange(*each) for tp, each in awaited.offsets.items()}
            self._events.publish(WorkAwaited(offsets, awaited.until - now))
        try:
            while until is not None and why_lost() is None:
                try:
                    async with timeout_at(until):
                        await self._member.wait_for_change()
                except asyncio.TimeoutError:
                    pass
                until = self._next_limit(gone, limits)
        finally:
            self.awaited_work = None
        if why_lost() is None and (left := self._works.unfinished(gone)):
            log.warning(
                "group %s: the application did not finish all records in the time that "
                "rebalance_hold_ms, or a batch's max_hold_ms, allows. The partitions' next owners "
                "will read these offsets again: %s",
                self._member.group_id,
                {
                    f"{tp.topic}/{tp.partition}": f"{first} to {end - 1}"
                    for tp, (first, end) in sorted(left.items())
                },
            )

    async def _until_given_up(self, gone: frozenset[TopicPartition], deadline: float) -> None:
        """Wait until handlers that were cut off have ended, for a moment at most."""
        now = asyncio.get_running_loop().time()
        until = now + min(LONGEST_END_S, (deadline - now) / 4)
        self._is_giving_up = True
        try:
            async with timeout_at(until):
                while self._works.is_ending(gone):
                    await self._member.wait_for_change()
        except asyncio.TimeoutError:
            log.warning(
                "group %s: handlers were cancelled but have not ended. The next owners of %s "
                "may process the same records concurrently",
                self._member.group_id,
                sorted(gone),
            )
        finally:
            self._is_giving_up = False

    def _limits(self, gone: frozenset[TopicPartition], deadline: float) -> HoldLimits:
        """Return until when what is waited for, and tell the works."""
        config, now = self._config, asyncio.get_running_loop().time()
        left_s = max(0.0, deadline - now - HOLD_MARGIN * config.rebalance_timeout_s)
        works: dict[Work, float] = {}
        for work in self._works.begun:
            if not work.undone(gone):
                continue
            hold_s = config.rebalance_hold_s if work.hold_s is None else work.hold_s
            works[work] = until = now + min(hold_s, config.most_hold_s, left_s)
            work.is_wanted_by(until)
        return HoldLimits(now, now + min(config.rebalance_hold_s, left_s), works)

    def _next_limit(self, gone: frozenset[TopicPartition], limits: HoldLimits) -> float | None:
        """Return until when to wait for what is not finished yet; note what that is.

        That is the work of the application, or a commit of its own. None: there is nothing that
        is still to be waited for.
        """
        now = asyncio.get_running_loop().time()
        offsets: dict[TopicPartition, Range] = {}
        waits: list[float] = []
        others = gone
        for work, until in limits.works.items():
            if not work.is_open:
                continue
            of_work = gone & work.partitions()
            others -= of_work
            undone = work.undone(of_work)
            if until > now and (undone or self._commits.is_committing(of_work)):
                offsets |= undone
                waits.append(until)
        if limits.of_gets > now:
            undone = self._works.unfinished(others)
            if undone or self._commits.is_committing(others):
                offsets |= undone
                waits.append(limits.of_gets)
        self.awaited_work = AwaitedWork(offsets, max(waits)) if waits else None
        return min(waits, default=None)
