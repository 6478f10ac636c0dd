"""The group task of KIP-848: leads the assignment to the coordinator's target.

Each turn does one step, and the next one sees the responses of the time in between.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Final

from aiokafka_lite._compat import Never
from aiokafka_lite.consumer.assignment.assignment import SubscriptionMode
from aiokafka_lite.consumer.assignment.observers import Departure
from aiokafka_lite.consumer.gate import Hold
from aiokafka_lite.consumer.membership.grouped import (
    LEAVE_MAX_S,
    UNSUBSCRIBED,
    GroupedMembership,
    ending,
)
from aiokafka_lite.consumer.membership.kip848.heartbeat import (
    Heartbeat,
    HeartbeatSchedule,
    Subscription,
    as_re2,
)
from aiokafka_lite.consumer.membership.kip848.member import (
    PRESENT,
    ConsumerMember,
    Held,
    MemberState,
    PartitionId,
    Reconciliation,
    difference,
)
from aiokafka_lite.consumer.membership.protocol import GroupStatus, Offsets, Surroundings
from aiokafka_lite.consumer.membership.recovery import Interruption
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.protocol.messages.group_members import ConsumerGroupHeartbeatRequest
from aiokafka_lite.structs import TopicPartition

log = logging.getLogger(__name__)

# How long a member without partitions waits for its first ones. Members may have to revoke some
# first, and the coordinator computes assignments once a second.
FIRST_ASSIGNMENT_S: Final = 2.0
# Between two requests for metadata with the name of an unknown topic.
UNKNOWN_TOPIC_S: Final = 0.5
# After this long an unknown topic is reported.
LONG_UNKNOWN_S: Final = 5.0
# How often brokers match expressions with new topics.
BROKER_LOOKS_S: Final = 10.0
# The assignor with which each member has a share of each topic, of delay topics and others.
BY_TOPIC: Final = "range"


class ConsumerMembership(GroupedMembership[ConsumerMember]):
    """One consumer's membership.

    `fall_back` takes over if the group cannot be joined with KIP-848. Without it, reads raise the
    broker's refusal.
    """

    _heartbeat: Heartbeat

    def __init__(
        self,
        around: Surroundings,
        member: ConsumerMember,
        *,
        fall_back: Callable[[KafkaError], None] | None = None,
    ) -> None:
        super().__init__(around, member)
        self._schedule = HeartbeatSchedule(around.core.config, member, self)
        self._heartbeat = Heartbeat(around, member, self._schedule, self)
        self.fall_back = fall_back
        # Assigned and not revoked yet: the owned partitions in heartbeats.
        self.held: dict[PartitionId, TopicPartition] = {}
        # The end of the wait for a first assignment, and whether the listener was called for one.
        self._first_until = 0.0
        self._asked_version: int | None = None
        self._joining_since: float | None = None
        self._is_first_told = False
        # Whether start() can have returned: before that the application cannot request records.
        self.was_settled = False
        # Since when an assigned topic has had no name, and when to request its name next.
        self._unknown_since: float | None = None
        self._ask_names_at = 0.0
        # The latest pattern, and the coordinator's expression for it.
        self._pattern: object = None
        self._regex: str | None = None
        # Gives up the place that the group keeps for a static member after it unsubscribed.
        self._last_leave: ConsumerGroupHeartbeatRequest | None = None
        # A request to leave without a response.
        self._unanswered: ConsumerGroupHeartbeatRequest | None = None

    # --- For the consumer -----------------------------------------------------------------
    @property
    def status(self) -> GroupStatus:
        state = self._member.state
        joining_since = self._joining_since if state is MemberState.JOINING else None
        return self._status(state.name, joining_since)._replace(
            protocol="consumer",
            is_eager=False,
            session_s=self._config.group_session_s,
            trouble=self._trouble(),
        )

    def _trouble(self) -> str:
        if self._heartbeat.trouble:
            for_s = self._loop.time() - self._heartbeat.trouble_since
            return f"{self._heartbeat.trouble} (for {for_s:.0f} s)"
        since = self._unknown_since
        if since is None or (for_s := self._loop.time() - since) < LONG_UNKNOWN_S:
            return ""
        return (
            "this member is assigned partitions of a topic that has been missing from the metadata "
            f"for {for_s:.0f} s. The partitions cannot be read until the metadata contain the "
            "topic: check that the ACLs allow this client to describe the topic"
        )

    def stop_trying(self) -> None:
        self._cluster.remove_listener(self._metadata_changed)
        self.halt()
        self._heartbeat.abandon()

    async def leave(
        self, *, deadline: float, offsets: Offsets, leaves: bool | None = None
    ) -> Offsets:
        """See Membership.

        A static member that keeps its place announces its return: otherwise its successor would be
        refused for one session.
        """
        member, loop = self._member, self._loop
        await self._end_what_runs(deadline)
        if member.state is MemberState.LEFT:
            return dict(offsets)
        may_be_known = self._may_be_known
        commit_by, leave_by = ending(loop.time(), deadline)
        if (unanswered := self._unanswered) is not None:
            # It is leaving because it unsubscribed.
            await self._send_leave(unanswered, min(commit_by, loop.time() + LEAVE_MAX_S))
        else:
            member.enter(MemberState.LEAVING)
        # Heartbeats continue.
        uncommitted = await self._commit_at_the_end(offsets, commit_by)
        await self._heartbeat.end()
        if may_be_known and (member.is_static or leaves is not False):
            leaving = self._schedule.leave(for_good=leaves is True)
            await self._send_leave(leaving, min(leave_by, loop.time() + LEAVE_MAX_S))
        elif leaves and self._last_leave is not None:
            await self._send_leave(self._last_leave, min(leave_by, loop.time() + LEAVE_MAX_S))
        member.reset(keeps_id=True)
        member.enter(MemberState.LEFT)
        return uncommitted

    def leave_nowait(self, reason: str) -> None:
        if self._member.is_member:
            self._coordinator.send_nowait(self._schedule.leave())

    @property
    def _may_be_known(self) -> bool:
        has_asked = (
            self._member.state is MemberState.JOINING
            and self._coordinator.node_id is not None
            and not self._heartbeat.is_refused
        )
        return self._member.is_member or has_asked

    # --- The group task -------------------------------------------------------------------
    async def _run(self) -> Never:
        while True:
            if not await self._turn():
                await self._wait()

    async def _turn(self) -> bool:
        member, state = self._member, self._state
        if self._joining_since is not None and member.state in PRESENT:
            self._joining_since = None
            now = self._loop.time()
            self._first_until = now + FIRST_ASSIGNMENT_S
            self._reads.restart_idle(now)
        if member.state is MemberState.DROPPED:
            await self._lose_all()
        elif self._handover.has_departed:
            await self._give_up_departed()
        elif not state.is_subscribed:
            if member.state is MemberState.UNJOINED:
                return False
            await self._withdraw(UNSUBSCRIBED)
        elif member.state is MemberState.UNJOINED:
            self._begin_to_join()
        elif member.state in PRESENT and self.was_settled and self.poll_left_s <= 0:
            await self._leave_until_next_read()
        else:
            return member.state in PRESENT and await self._reconcile()
        return True

    async def _wait(self) -> None:
        now = self._loop.time()
        due_at = list[float]()
        # The deadlines of a member of the group. One that joins again has no use for them.
        if self._member.state in PRESENT:
            if self.was_settled:
                due_at.append(now + self.poll_left_s)
            if self._unknown_since is not None:
                due_at.append(self._ask_names_at)
        if self._awaits_first:
            due_at.append(self._first_until)
        await self._member.wait_for_change(min(due_at, default=None))

    def _begin_to_join(self) -> None:
        self._settled_version = None
        self.forget_error()
        self._last_leave = None
        self._unknown_since = None
        self._joining_since = self._loop.time()
        self._is_first_told = self.was_settled = False
        self._schedule.forget()
        if self._state.mode is SubscriptionMode.PATTERN:
            self._metadata_changed(self._cluster.view)
        self._member.enter(MemberState.JOINING)

    async def _reconcile(self) -> bool:
        state, member = self._state, self._member
        if self._asked_version != state.subscription_version:
            self._asked_version = state.subscription_version
            self._first_until = self._loop.time() + FIRST_ASSIGNMENT_S
        subscribed = self.subscribed
        is_answered = self._schedule.told_subscription == subscribed and member.target is not None
        view = self._cluster.view
        step = difference(member.target, self.held, view.topic_names, view.topic_id)
        self._note_unknown(step)
        if is_answered:
            self._release(subscribed, step)
        if step.to_revoke:
            self._settled_version = None
            member.reconciled(is_done=False)
            reason = Interruption.GROUP_REBALANCES.text
            await self._handover.revoke(set(step.to_revoke.values()), reason)
            self._let_go(step.to_revoke)
            return True
        new = {each: tp for each, tp in step.to_assign.items() if subscribed.covers(tp.topic)}
        if is_answered and new:
            self._settled_version = None
            member.reconciled(is_done=False)
            await self._assign(new)
            return True
        member.reconciled(is_done=step.is_empty)
        if is_answered:
            self._schedule.confirm(self._loop.time())
        if not (is_answered and step.is_empty) or self._awaits_first:
            return False
        if not self._is_first_told:
            await self._assign({})
            return True
        self.forget_error()
        if not self.is_settled:
            if not self.was_settled:
                self.was_settled = True
                self._reads.restart_idle(self._loop.time())
            self._settled_version = state.subscription_version
            member.notify()
        return False

    def _release(self, subscribed: Subscription, step: Reconciliation) -> None:
        """Release withheld partitions that stay, also those unsubscribed and subscribed again."""
        for each, tp in self.held.items():
            cursor = self._state.assignment.get(tp)
            if cursor is None or not cursor.is_withheld or each in step.to_revoke:
                continue
            if subscribed.covers(tp.topic):
                self._state.release(cursor)

    @property
    def _awaits_first(self) -> bool:
        """Whether it has no partitions yet, and may be assigned some soon."""
        view = self._cluster.view
        return (
            self._member.state in PRESENT
            and not (self._is_first_told and self.is_settled)
            and not self.held
            and self._loop.time() < self._first_until
            and any(
                # A topic subscribed just now is not in the metadata yet.
                topic not in view.topics or view.partitions_for_topic(topic)
                for topic in self._state.subscription or ()
            )
        )

    def _note_unknown(self, step: Reconciliation) -> None:
        """Request the names of topics from time to time, until they are known."""
        now = self._loop.time()
        if not step.unknown:
            self._unknown_since = None
            return
        if self._unknown_since is None:
            self._unknown_since = self._ask_names_at = now
        if now >= self._ask_names_at:
            self._ask_names_at = now + UNKNOWN_TOPIC_S
            self._cluster.invalidate()

    async def _assign(self, new: Held) -> None:
        def note() -> None:
            self.held.update(new)
            self._is_first_told = True
            self._schedule.note_change(self._loop.time())

        topic_ids = {tp: each.topic_id for each, tp in new.items()}
        await self._handover.assign(topic_ids.keys(), topic_ids=topic_ids, then=note)

    def _let_go(self, gone: Held) -> None:
        for each in tuple(gone):
            self.held.pop(each, None)
        self._schedule.note_change(self._loop.time())

    async def _give_up_departed(self) -> None:
        """Settle unsubscribed partitions, which heartbeats report as owned until then."""
        self._settled_version = None
        await self._handover.settle_departed(UNSUBSCRIBED)
        assigned = self._state.assignment if self._state.is_subscribed else {}
        self._let_go({each: tp for each, tp in self.held.items() if tp not in assigned})

    def _why_lost(self) -> str | None:
        member = self._member
        if member.is_member:
            return None
        text = "" if member.lost_by is None else member.lost_by.text
        return f"{text} ({member.lost_because})" if member.lost_because else text

    async def _lose_all(self) -> None:
        member = self._member
        loss = member.lost_by or Interruption.LOST_MEMBERSHIP
        self._settled_version = None
        await self._handover.lose()
        self.held.clear()
        self._gate.release(Hold.LOST)
        if loss is Interruption.FENCED:
            member.enter(MemberState.REFUSED)
            raise member.why_lost()
        if member.is_static and loss is Interruption.LOST_GENERATION:
            # Otherwise its instance id would stay in use.
            await self._send_leave(self._schedule.leave(), self._loop.time() + LEAVE_MAX_S)
        member.enter(MemberState.UNJOINED)

    async def _withdraw(self, reason: str) -> None:
        member = self._member
        log.info("leaving group %s: %s", member.group_id, reason)
        may_be_known = self._may_be_known
        self.held.clear()
        self._heartbeat.thread.rest()
        leaving = self._schedule.leave()
        self._last_leave = self._schedule.leave(for_good=True) if member.is_static else None
        # No more heartbeats: one after the last would be refused, or join again.
        member.reset(keeps_id=not member.is_static)
        member.enter(MemberState.LEAVING)
        if may_be_known:
            self._unanswered = leaving
            await self._send_leave(leaving, self._loop.time() + LEAVE_MAX_S)
            self._unanswered = None
        member.enter(MemberState.UNJOINED)

    # --- The application is away ----------------------------------------------------------
    async def _leave_until_next_read(self) -> None:
        state, member = self._state, self._member
        overdue = self.overdue_text()
        self._warn_of_absence(overdue)
        self._settled_version = None
        reason = Interruption.POLL_INTERVAL_EXCEEDED.text
        await self._handover.revoke(set(state.assignment), reason, waits=False)
        if not member.is_member or not state.is_subscribed:
            return
        member.note_loss(Interruption.POLL_INTERVAL_EXCEEDED, overdue)
        await self._withdraw(reason)
        await self.sit_out()

    # --- Subscription ---------------------------------------------------------------------
    @property
    def subscribed(self) -> Subscription:
        state = self._state
        pattern = state.pattern
        assignor = BY_TOPIC if state.has_complete_topics else None
        if state.mode is SubscriptionMode.PATTERN and pattern is not None:
            if pattern is not self._pattern:
                self._pattern = pattern
                self._regex = self._for_the_broker(pattern)
            if self._regex is not None:
                return Subscription(regex=self._regex, assignor=assignor)
        return Subscription(state.subscription or frozenset(), assignor=assignor)

    def _for_the_broker(self, pattern: re.Pattern[str]) -> str | None:
        """Return the coordinator's expression. None: the consumer matches the pattern (sooner)."""
        if self._config.metadata_max_age_s < BROKER_LOOKS_S:
            return None
        return as_re2(pattern, exclude_internal_topics=self._config.exclude_internal_topics)

    @property
    def partition_count(self) -> int:
        topics = self._cluster.view.topics
        names = self.subscribed.names
        if not names <= topics.keys():
            return 0
        return sum(len(topics[name].partitions) for name in names)

    def match_here(self) -> None:
        self._regex = None

    # --- Changes --------------------------------------------------------------------------
    def _note_departure(self, departure: Departure) -> None:
        if self._member.is_member:
            self._handover.note_departure(departure)
