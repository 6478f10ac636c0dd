"""Assigns and revokes partitions, the same for both group protocols.

A revocation has these steps:

1. The partitions' records are no longer fetched or returned.
2. The application finishes the records that it has, by a read or commit, or by the end of its
   batch's block or handler. The next owner reads unfinished records again. After
   `rebalance_hold_ms`, or a batch's own limit, handlers are cancelled.
3. Auto-commit commits the finished offsets.
4. The listener is called, and events are published. Lost partitions have only this step.

The caller sends heartbeats during these steps. Until the partitions are removed at the end, their
positions can be read.

New partitions are withheld until the listener has returned. All others can be read. Partitions that
unsubscribe() gave up are no longer assigned, and the group task's next step calls their listener.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Set
from types import MappingProxyType
from typing import Final, NamedTuple

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.consumer import caller
from aiokafka_lite.consumer.assignment.cursor import Cursor, Range
from aiokafka_lite.consumer.assignment.observers import Departure
from aiokafka_lite.consumer.assignment.work import LONGEST_END_S, Work, in_words
from aiokafka_lite.consumer.config import HOLD_MARGIN
from aiokafka_lite.consumer.membership.protocol import AwaitedWork, Offsets, Surroundings
from aiokafka_lite.consumer.membership.stateful import GroupMember
from aiokafka_lite.errors import KafkaTimeoutError
from aiokafka_lite.events import (
    Assigned,
    ListenerFailed,
    Lost,
    OffsetRange,
    Revoked,
    WorkAwaited,
)
from aiokafka_lite.structs import TopicPartition

log = logging.getLogger(__name__)

# How long the rebalance waits for the end of a cancelled callback.
GRACE_S: Final = 1.0

Method = Callable[[set[TopicPartition]], Awaitable[None] | None]


class ListenerCalls:
    """Runs one callback at a time, each in its own task "listener".

    A callback that hangs is cancelled at the deadline, and the rebalance continues. A callback may
    stop the consumer: then it waits for the group task, which must not wait for the callback.
    """

    def __init__(self, scope: TaskScope, owner: Handover) -> None:
        self._scope = scope
        self._owner = owner
        self._running: tuple[asyncio.Task[None], caller.Callback, float] | None = None

    async def call(
        self, name: str, method: Method, partitions: set[TopicPartition], *, deadline: float
    ) -> bool:
        """Run a callback until its end or the deadline, and return whether it ended by itself.

        If the caller is cancelled, the callback continues, and `finish` waits for it.
        """
        call = caller.Callback(name)
        task = self._scope.spawn(
            self._guarded(call, method, partitions), name="listener", may_be_cancelled=True
        )
        self._running = (task, call, asyncio.get_running_loop().time())
        return await self.finish(deadline=deadline)

    def is_calling(self) -> bool:
        return self._running is not None and caller.is_in(self._running[1])

    async def finish(self, *, deadline: float) -> bool:
        """Wait for the running callback until the deadline. Return whether it ended by itself.

        Returns at once if the caller is the callback, as when it stops the consumer.
        """
        if self._running is None or self.is_calling():
            return True
        task, call, began_at = self._running
        has_ended = True
        loop = asyncio.get_running_loop()
        done, _ = await asyncio.wait({task}, timeout=max(0.0, deadline - loop.time()))
        if not done:
            log.error(
                "the rebalance listener did not return from %s within %.1f s and is cancelled",
                call.name,
                loop.time() - began_at,
            )
            call.end()
            task.cancel()
            done, _ = await asyncio.wait({task}, timeout=GRACE_S)
            if not done:
                log.error(
                    "the rebalance listener is still running %s, although it was cancelled: the "
                    "rebalance continues without waiting for it",
                    call.name,
                )
            self._owner.listener_failed(call.name, None)
            has_ended = False
        elif task.cancelled():
            # By the application.
            self._owner.listener_failed(call.name, None)
            log.error("the rebalance listener was cancelled in %s", call.name)
        self._running = None
        return has_ended

    async def _guarded(
        self, call: caller.Callback, method: Method, partitions: set[TopicPartition]
    ) -> None:
        caller.enter(call)
        try:
            result = method(partitions)
            if asyncio.iscoroutine(result):
                await result
        except Exception as error:
            log.exception("the rebalance listener raised an exception in %s", call.name)
            if call.is_running:
                self._owner.listener_failed(call.name, error)
        finally:
            call.end()


# Returns why partitions are lost. None: they are not.
WhyLost = Callable[[], str | None]


class HoldLimits(NamedTuple):
    # The start of the wait.
    now: float
    # For records of reads, and for each work.
    of_gets: float
    works: Mapping[Work, float]
    # For works that are finished, the number of commits by then. None: of reads.
    finished: dict[Work | None, int]


Partitions = frozenset[TopicPartition]


class Handover:
    """Hands partitions to the application, and revokes them. Called by the group task only."""

    def __init__(self, around: Surroundings, member: GroupMember, *, why_lost: WhyLost) -> None:
        core = around.core
        self._config, self._state, self._commits = core.config, core.state, around.commits
        self._reads, self._works, self._finished = core.reads, core.works, core.finished
        self._gate, self._events = core.gate, core.events
        self._member = member
        self._why_lost = why_lost
        self._loop = asyncio.get_running_loop()
        self.calls = ListenerCalls(around.scope, self)
        # Being revoked.
        self._going: Partitions = frozenset()
        self.awaited_work: AwaitedWork | None = None
        # It waits for the end of works that were given up.
        self._is_giving_up = False
        # Given up by unsubscribe(), until the listener is called.
        self._left: Departure | None = None
        # The listener was called for those, so a revocation of no partitions does not call it.
        self._has_told_of_departed = False
        # Assigned, while on_partitions_assigned runs.
        self.withheld: Partitions = frozenset()
        # Their on_partitions_assigned was cancelled.
        self._untold: frozenset[Cursor] = frozenset()

    @property
    def awaits_application(self) -> bool:
        return self.awaited_work is not None or self._is_giving_up

    # --- Revocation -----------------------------------------------------------------------
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
        (KAFKA-16460). The group sees them as owned until this has returned. Without a deadline it
        takes at most the rebalance timeout, or with handlers the group's timeout. If it is
        cancelled, they stay revoking.

        Args:
            gone: Those that are not assigned are ignored.
            deadline: Loop time.
            waits: Take step 2.
            tells_of_none: Call the listener even without partitions, as aiokafka.
            stays_readable: They stay in the assignment until the next one.
        """
        state, config, loop = self._state, self._config, self._loop
        deadline = self._time_for_all() if deadline is None else deadline
        self._going = gone = frozenset(gone & state.assignment.keys())
        listener, told = state.listener, self._has_told_of_departed
        self._has_told_of_departed = False
        try:
            state.withhold(gone)
            if waits and self._why_lost() is None:
                # Handlers have as long as the group waits; commit and listener have half a timeout.
                of_group = deadline + config.group_timeout_s - config.rebalance_timeout_s
                await self._wait_for_application(gone, of_group)
                rest_s = config.rebalance_timeout_s / 2
                deadline = min(of_group, max(deadline, loop.time() + rest_s))
            self._works.give_up(gone, loop.time())
            await self._until_given_up(gone, deadline)
            await self._commit_last(gone, deadline)
            if gone or (tells_of_none and not told):
                await self._tell(gone, listener, reason, deadline)
            # Unless the application has unsubscribed.
            if not stays_readable and state.is_subscribed:
                state.change(gone, ())
        finally:
            self._going = frozenset()

    async def _commit_last(self, gone: Partitions, deadline: float) -> None:
        # Half of the rest, because the listener may commit or flush, too.
        commit_by = (self._loop.time() + deadline) / 2
        await self._commits.settle_departed(commit_by)
        finished: Offsets = {}
        while (
            self._config.enable_auto_commit
            and self._why_lost() is None
            and self._loop.time() < commit_by
        ):
            offsets, before = self._finished.processed_offsets(), finished
            finished = {tp: offset for tp, offset in offsets.items() if tp in gone}
            if finished == before:  # no record was finished during the last commit
                break
            await self._commits.commit_last(finished, deadline=commit_by)

    async def lose(self) -> None:
        state, deadline = self._state, self._time_for_all()
        gone = frozenset(state.assignment) if state.is_subscribed else frozenset()
        listener = state.listener
        state.withhold(gone)
        await self._tell_of_departed("", deadline)
        if gone:
            await self._tell(gone, listener, "", deadline)
        if state.is_subscribed:
            state.change(gone, ())

    def _time_for_all(self) -> float:
        return self._loop.time() + self._config.rebalance_timeout_s

    def note_departure(self, departure: Departure) -> None:
        left = departure.partitions - self._going
        if self._state.is_subscribed and left:
            self._left = departure._replace(partitions=left)

    @property
    def has_departed(self) -> bool:
        return self._left is not None or self._commits.has_departed

    async def settle_departed(self, reason: str, deadline: float | None = None) -> None:
        deadline = self._time_for_all() if deadline is None else deadline
        await self._commits.settle_departed((self._loop.time() + deadline) / 2)
        await self._tell_of_departed(reason, deadline)

    async def _tell_of_departed(self, reason: str, deadline: float) -> None:
        left, self._left = self._left, None
        if left is not None:
            await self._tell(left.partitions, left.listener, reason, deadline)
            self._has_told_of_departed = left.listener is not None

    async def _tell(
        self,
        gone: Partitions,
        listener: ConsumerRebalanceListener | None,
        reason: str,
        deadline: float,
    ) -> None:
        group_id = self._member.group_id
        why = self._why_lost() if gone else None
        if why is not None:
            self._works.give_up(gone, self._loop.time())
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
        await self.calls.call(name, method, set(gone), deadline=deadline)

    # --- Waiting for the application ------------------------------------------------------
    async def _wait_for_application(self, gone: Partitions, deadline: float) -> None:
        limits = self._limits(gone, deadline)
        until = self._next_limit(gone, limits)
        if until is None:
            return
        awaited, now = self.awaited_work, limits.now
        if awaited is not None and awaited.offsets:
            offsets = {tp: OffsetRange(*each) for tp, each in awaited.offsets.items()}
            self._events.publish(WorkAwaited(offsets, awaited.until - now))
        try:
            while until is not None and self._why_lost() is None:
                await self._member.wait_for_change(until)
                until = self._next_limit(gone, limits)
        finally:
            self.awaited_work = None
        if self._why_lost() is None and (left := self._works.unfinished(gone)):
            log.warning(
                "group %s: the application did not finish all records in the time that "
                "rebalance_hold_ms, or a batch's max_hold_ms, allows. The partitions' next owners "
                "will read these offsets again: %s",
                self._member.group_id,
                in_words([left]),
            )

    async def _until_given_up(self, gone: Partitions, deadline: float) -> None:
        now = self._loop.time()
        until = now + min(LONGEST_END_S, (deadline - now) / 4)
        self._is_giving_up = True
        try:
            while self._works.is_ending(gone):
                is_over = not await self._member.wait_for_change(until)
                if is_over and self._works.is_ending(gone):
                    log.warning(
                        "group %s: handlers were cancelled but have not ended. The next owners of "
                        "%s may process the same records concurrently",
                        self._member.group_id,
                        sorted(gone),
                    )
                    break
        finally:
            self._is_giving_up = False

    def _limits(self, gone: Partitions, deadline: float) -> HoldLimits:
        config, now = self._config, self._loop.time()
        left_s = max(0.0, deadline - now - HOLD_MARGIN * config.rebalance_timeout_s)
        works: dict[Work, float] = {}
        for work in self._works.begun:
            if not work.undone(gone):
                continue
            hold_s = config.rebalance_hold_s if work.hold_s is None else work.hold_s
            works[work] = until = now + min(hold_s, config.most_hold_s, left_s)
            work.is_wanted_by(until)
        return HoldLimits(now, now + min(config.rebalance_hold_s, left_s), works, {})

    def _next_limit(self, gone: Partitions, limits: HoldLimits) -> float | None:
        """Update `awaited_work`, and return until when to wait for work and commits, if at all."""
        now = self._loop.time()
        offsets: dict[TopicPartition, Range] = {}
        waits: list[float] = []
        others = gone
        for work, until in limits.works.items():
            if not work.is_open:
                continue
            of_work = gone & work.partitions()
            others -= of_work
            undone = work.undone(of_work)
            if until > now and self._is_awaited(limits, work, of_work, undone):
                offsets |= undone
                waits.append(until)
        if limits.of_gets > now:
            undone = self._works.unfinished(others)
            if self._is_awaited(limits, None, others, undone):
                offsets |= undone
                waits.append(limits.of_gets)
        self.awaited_work = AwaitedWork(offsets, max(waits)) if waits else None
        return min(waits, default=None)

    def _is_awaited(
        self, limits: HoldLimits, work: Work | None, partitions: Partitions, undone: object
    ) -> bool:
        """Whether work is undone, or commits are in flight that began before it was finished."""
        finished = limits.finished
        if undone:
            finished.pop(work, None)
            return True
        if work not in finished:
            finished[work] = self._commits.next_number()
        return self._commits.is_committing(partitions, finished[work])

    # --- Assignment -----------------------------------------------------------------------
    async def assign(
        self,
        new: Set[TopicPartition],
        *,
        topic_ids: Mapping[TopicPartition, bytes] = MappingProxyType({}),
        then: Callable[[], None] | None = None,
    ) -> None:
        """Assign partitions, and call the listener, if any, even for no partitions.

        With a listener, they are withheld until the caller releases them.
        `then` is called before the listener.
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
        self._events.publish(ListenerFailed(callback, error))
        if error is not None:
            self._gate.post_to_poll(error)
