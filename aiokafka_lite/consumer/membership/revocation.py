"""Revokes partitions, the same for both group protocols.

1. Their records are no longer fetched or returned.
2. The application finishes the records that it has. A read finishes those of earlier reads, and a
   commit by the application has the same effect. An open batch is finished at the end of its block,
   a record of `run` at the end of its handler. The next owner reads unfinished records again. When
   the time is up, handlers are cancelled.
3. Auto-commit commits the finished offsets.
4. The listener is called, and events are published.

The caller sends heartbeats during these steps. It removes the partitions afterwards by
`Assignment.change`, and until then their positions can be read. `rebalance_hold_ms`, or a batch's
own limit, limits step 2, so that an application that hangs does not block its group. The commit and
the listener have the rest of the time. For lost partitions there is only step 4.
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

# How long a rebalance waits for cancelled handlers.
LONGEST_END_S: Final = 1.0

# Returns why partitions are lost; None: they are not.
WhyLost = Callable[[], str | None]


class HoldLimits(NamedTuple):
    """Loop times until which a revocation waits."""

    # The start of the wait.
    now: float
    # For records of reads, and for each work.
    of_gets: float
    works: Mapping[Work, float]


class Revocation:
    """Revokes partitions of one consumer; called by the group task only.

    The member's `notify` must be called when it loses them.
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
        self.awaited_work: AwaitedWork | None = None
        # It waits for the end of works that were given up.
        self._is_giving_up = False

    def start(self) -> None:
        """Start to observe reads."""
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
        """Take steps 1 to 4; the partitions are still assigned at the end.

        If it is cancelled, no further step is taken, and the partitions stay revoking.

        Args:
            partitions: The partitions, including those that the application gives up during the
                steps.
            reason: For events and logs.
            deadline: Loop time.
            why_lost: Called before each step.
            waits: Take step 2.
            tells_of_none: Call the listener even if there are no partitions, as aiokafka.
        """
        state, loop = self._state, asyncio.get_running_loop()
        gone, listener = frozenset(partitions), state.listener
        state.begin_revocation(gone & state.assignment.keys())
        if waits and why_lost() is None:
            # Handlers have as long as the group waits; commit and listener have at least rest_s.
            config = self._config
            of_group = deadline + config.group_timeout_s - config.rebalance_timeout_s
            await self._wait_for_application(gone, of_group, why_lost)
            rest_s = config.rebalance_timeout_s / 2
            deadline = min(of_group, max(deadline, loop.time() + rest_s))
        self._works.give_up(gone, loop.time())
        await self._until_given_up(gone, deadline)
        # Half of the rest, because the listener may commit or flush, too.
        commit_by = (loop.time() + deadline) / 2
        await self._commits.settle_departed(commit_by)
        finished: Offsets = {}
        while self._config.enable_auto_commit and why_lost() is None and loop.time() < commit_by:
            offsets, before = self._finished.processed_offsets(), finished
            finished = {tp: offsets[tp] for tp in offsets.keys() & gone}
            if finished == before:  # no record was finished during the last commit
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
        """Call the listener and publish the event: revoked, or lost."""
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
        """Wait at most `LONGEST_END_S` for the end of cancelled handlers."""
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
        """Return the limits of this wait, and set those of the works."""
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
        """Update `awaited_work`; return until when to wait for it, None if it is finished.

        A commit by the application counts as work.
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
