"""The group task of the classic protocol.

`member` has the states and their legal transitions, `rebalance` the requests.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TypeAlias

from aiokafka_lite._compat import Never
from aiokafka_lite.client.backoff import LONGEST_BACKOFF_S, Backoff
from aiokafka_lite.client.view import ClusterView
from aiokafka_lite.consumer.assignment.assignment import (
    SharedOut,
    SubscriptionMode,
    have_changed,
)
from aiokafka_lite.consumer.assignment.observers import Departure
from aiokafka_lite.consumer.gate import Hold
from aiokafka_lite.consumer.membership.classic.heartbeat import Heartbeat
from aiokafka_lite.consumer.membership.classic.member import Member, MemberState
from aiokafka_lite.consumer.membership.classic.rebalance import AssignedPartitions, Rebalance
from aiokafka_lite.consumer.membership.grouped import (
    LEAVE_MAX_S,
    UNSUBSCRIBED,
    GroupedMembership,
    ending,
)
from aiokafka_lite.consumer.membership.protocol import GroupStatus, Offsets, Surroundings
from aiokafka_lite.consumer.membership.recovery import (
    Interruption,
    Recovery,
    loss_by,
    recovery_for,
)
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.events import Assigned
from aiokafka_lite.structs import TopicPartition

log = logging.getLogger(__name__)

JoinOutcome: TypeAlias = AssignedPartitions | KafkaError


class ClassicMembership(GroupedMembership[Member]):
    """One consumer's membership. A task "rebalance" runs one rebalance."""

    _heartbeat: Heartbeat

    def __init__(self, around: Surroundings, member: Member, *, kept_classic_by: str = "") -> None:
        super().__init__(around, member)
        self._heartbeat = Heartbeat(around, member, self)
        self._rebalance = Rebalance(around, member, self._heartbeat)
        self._is_cooperative = member.is_cooperative
        self._kept_classic_by = kept_classic_by
        # The rebalance in progress.
        self._joining: asyncio.Task[JoinOutcome] | None = None
        # The subscription version of the last rebalance. None: there is no assignment.
        self._joined_version: int | None = None
        # The subscription of the latest join, and its version.
        self._joined_topics: frozenset[str] | None = None
        self._joined_last = -1
        # The leader's assignment, and the latest metadata that agree with it.
        self._shared_out = SharedOut()
        self._unchanged_in: ClusterView | None = None

    # --- For the consumer -----------------------------------------------------------------
    @property
    def status(self) -> GroupStatus:
        status = self._status(self._member.state.name, self._rebalance.joining_since)
        return status._replace(
            is_eager=not self._is_cooperative, kept_classic_by=self._kept_classic_by
        )

    async def leave(
        self, *, deadline: float, offsets: Offsets, leaves: bool | None = None
    ) -> Offsets:
        member, loop = self._member, self._loop
        await self._end_what_runs(deadline)
        if member.state in (MemberState.LEAVING, MemberState.LEFT):
            return dict(offsets)
        left: Offsets = {}
        if self._joining is not None:
            commit_by = ending(loop.time(), deadline).commit_by
            offsets, left = await self._end_joining(self._joining, offsets, commit_by)
        member.settle_interruption()
        member.enter(MemberState.LEAVING)
        commit_by, leave_by = ending(loop.time(), deadline)
        is_told = True
        uncommitted = {**left, **await self._commit_at_the_end(offsets, commit_by)}
        if leaves is None:
            leaves = not member.is_static
        if member.identity.member_id and leaves:
            leave_by = min(leave_by, loop.time() + LEAVE_MAX_S)
            is_told = await self._leave("the consumer stops", leave_by)
        if is_told:
            member.lose_membership()
        else:  # the group still has it: the next start takes its place
            member.lose_generation()
        member.enter(MemberState.LEFT)
        await self._heartbeat.end()
        return uncommitted

    async def _end_joining(
        self, joining: asyncio.Task[JoinOutcome], offsets: Offsets, commit_by: float
    ) -> tuple[Offsets, Offsets]:
        """End the rebalance in progress. Return the offsets to commit, and those not committed."""
        try:
            has_any = offsets or self._commits.has_departed
            if not has_any or self._member.assigned_as is None:
                return offsets, {}
            if self._is_cooperative:
                joining.add_done_callback(self._joined_at_the_end)
            return {}, await self._commits.commit_at_the_end(offsets, deadline=commit_by)
        finally:
            await self._scope.stop(joining)

    def _joined_at_the_end(self, joining: asyncio.Task[JoinOutcome]) -> None:
        """Let the last commit use the new generation: the partitions had no other owner."""
        member = self._member
        if joining.cancelled() or joining.exception() is not None:
            return
        outcome = joining.result()
        if isinstance(outcome, KafkaError) and (loss := loss_by(outcome)) is not None:
            member.lose_generation(loss)
        elif member.state is MemberState.SYNCING:
            member.take_assignment(keeps=True)

    def leave_nowait(self, reason: str) -> None:
        if self._member.identity.member_id and not self._member.is_static:
            self._coordinator.send_nowait(self._rebalance.leave_request(reason))

    async def _leave(self, reason: str, deadline: float) -> bool:
        return await self._send_leave(self._rebalance.leave_request(reason), deadline, reason)

    # --- The group task -------------------------------------------------------------------
    async def _run(self) -> Never:
        member = self._member
        reason = "the consumer starts"
        while True:
            if not self._state.is_subscribed:
                if member.state is not MemberState.UNJOINED:
                    await self._settle_departed()
                    member.lose_generation()  # it sends no more heartbeats
                    await self._withdraw(UNSUBSCRIBED)
                    self._rebalance.watch_for_the_group(())
                    if not member.is_static:  # the group keeps the place of a static one
                        member.lose_membership()
                    # The application may read partitions that it has assigned itself.
                    self._gate.release(Hold.LOST)
                    member.enter(MemberState.UNJOINED)
                else:
                    await member.wait_for_change()
                continue
            # STABLE: this task failed with a transient error, and was restarted.
            if member.state in (MemberState.UNJOINED, MemberState.STABLE):
                await self._prepare(reason)
            assigned = await self._join(reason)
            if assigned is None:
                continue
            interruption = await self._hold(assigned)
            reason = interruption.text
            overdue = self.overdue_text()
            is_away = interruption is Interruption.POLL_INTERVAL_EXCEEDED
            await self._prepare(reason, leaves=is_away)
            if member.is_fenced:
                await self._give_up()
            if is_away:
                await self._leave_until_next_read(overdue)

    async def _prepare(self, reason: str, *, leaves: bool = False) -> None:
        """Revoke what the member does not keep during the next rebalance (`_not_kept`).

        The positions of an eager member can be read until the next assignment. One whose
        application stays away (`leaves`) waits for no records.
        """
        member, state = self._member, self._state
        self._settle_interruption()
        member.enter(MemberState.PREPARING)
        self._joined_version = self._settled_version = None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.rebalance_timeout_s
        if state.is_subscribed:
            state.withhold(self._not_kept(leaves=leaves))
        self._gate.release(Hold.LISTENER, Hold.LOST)  # all lost partitions are revoking
        await self._handover.settle_departed(reason, deadline)
        if state.is_subscribed:
            is_eager = not self._is_cooperative
            await self._handover.revoke(
                self._not_kept(leaves=leaves),
                reason,
                deadline=deadline,
                waits=not leaves,
                tells_of_none=is_eager,
                stays_readable=is_eager,
            )

    def _not_kept(self, *, leaves: bool) -> frozenset[TopicPartition]:
        state = self._state
        if self._is_cooperative and not leaves and self._member.is_member:
            topics = state.subscription or frozenset()
            return frozenset(tp for tp in state.assignment if tp.topic not in topics)
        return frozenset(state.assignment)

    async def _lose_what_was_kept(self) -> None:
        if self._is_cooperative and self._state.assignment and self._state.is_subscribed:
            await self._handover.lose()

    async def _settle_departed(self) -> None:
        if self._handover.has_departed:
            await self._handover.settle_departed(UNSUBSCRIBED)

    def _settle_interruption(self) -> None:
        was_member = self._member.is_member
        self._member.settle_interruption()
        if was_member and not self._member.is_member:
            self._member.lost_because = self._heartbeat.why_silent

    def _why_lost(self) -> str | None:
        """Settle interruptions, and return why other members own the assigned partitions."""
        self._settle_interruption()  # a commit or heartbeat may have been refused
        member = self._member
        if member.is_member:
            return None
        return member.lost_because or ("" if member.lost_by is None else member.lost_by.text)

    async def _join(self, reason: str) -> AssignedPartitions | None:
        """Join and sync until success. None: the subscription has changed."""
        member, state = self._member, self._state
        backoff = self._core.new_backoff()
        self.forget_error()
        is_first = True
        while True:
            member.settle_interruption()
            if not member.is_member:
                await self._lose_what_was_kept()
            if member.is_fenced:
                await self._give_up()
            await self._settle_departed()
            if not state.is_subscribed:
                return None
            try:
                if state.mode is SubscriptionMode.PATTERN:
                    await self._look_for_topics()
                if is_first and self._only_comes_back():
                    member.lose_membership()
                is_first = False
                version, topics = state.subscription_version, state.subscription or frozenset()
                assigned = await self._join_and_sync(topics, reason)
            except KafkaError as error:
                await self._recover(error, backoff)
                continue
            if version == state.subscription_version:
                self._joined_version = self._joined_last = version
                self._joined_topics = topics
                self._shared_out, self._unchanged_in = assigned.shared_out, None
                self.forget_error()
                return assigned
            log.info(
                "group %s: the subscription changed during the rebalance, so the consumer joins "
                "again",
                member.group_id,
            )
            if self._is_cooperative and state.is_subscribed:
                # Leaders ignore partitions that are owned in an older generation.
                member.take_assignment(keeps=True)
                return None

    async def _join_and_sync(self, topics: frozenset[str], reason: str) -> AssignedPartitions:
        """Rebalance, in a task that outlives the group task: see `_end_joining`."""
        owned = frozenset(self._state.assignment if self._is_cooperative else ())

        async def take_part() -> JoinOutcome:
            try:
                return await self._rebalance.join_and_sync(topics, owned, reason=reason)
            except KafkaError as error:
                return error

        self._joining = self._scope.spawn(take_part(), name="rebalance")
        await asyncio.wait({self._joining})
        joining, self._joining = self._joining, None
        outcome = joining.result()
        if isinstance(outcome, KafkaError):
            raise outcome
        return outcome

    def _only_comes_back(self) -> bool:
        """Whether a static member has unsubscribed, and now subscribes to the same topics.

        It joins without its member id, as after a restart, and gets its partitions without a
        rebalance (KIP-345, KIP-814). With other topics the coordinator would ignore the change.
        """
        return (
            self._member.is_static
            and self._state.unsubscribed_version > self._joined_last
            and self._state.subscription == self._joined_topics
        )

    async def _look_for_topics(self) -> None:
        self._metadata_changed(self._cluster.view)
        if not self._state.subscription:
            self._metadata_changed(await self._cluster.refresh())

    async def _recover(self, error: KafkaError, backoff: Backoff) -> None:
        member = self._member
        recovery = recovery_for(error)
        if recovery is Recovery.FENCED:
            member.lose_membership(Interruption.FENCED, str(error))
            return
        if recovery is Recovery.LOST_GENERATION:
            member.lose_generation(Interruption.LOST_GENERATION)
        elif recovery is Recovery.LOST_MEMBERSHIP:
            member.lose_membership(Interruption.LOST_MEMBERSHIP)
        elif recovery is Recovery.SURFACE:
            self.surface(error)
        log.info("group %s: joining failed, trying again: %s", member.group_id, error)
        if not member.is_member:
            await self._lose_what_was_kept()  # before the pause: it has new owners
        delay_s = backoff.next_delay_s()
        await asyncio.sleep(LONGEST_BACKOFF_S if recovery is Recovery.SURFACE else delay_s)

    async def _hold(self, assigned: AssignedPartitions) -> Interruption:
        member, within_s = self._member, assigned.next_within_s
        # When the leader requests another rebalance.
        next_by = None if within_s is None else self._loop.time() + within_s
        has_given_back = False
        log.info(
            "group %s: partitions assigned to this member in generation %d: %s",
            member.group_id,
            member.identity.generation,
            sorted(assigned.partitions),
        )
        if self._is_cooperative:
            has_given_back = await self._take_what_is_new(assigned.partitions)
        else:
            await self._take_all(assigned.partitions)
        if member.interruption is not None and member.interruption.is_loss:
            self._gate.hold(Hold.LOST)
        self._heartbeat.lease.look()
        self._gate.release(Hold.LISTENER)
        self._settled_version = self._joined_version
        member.notify()
        if has_given_back and member.is_member:
            return Interruption.PARTITIONS_REVOKED
        while (interruption := self._interruption(next_by)) is None:
            await member.wait_for_change(next_by)
        log.info("group %s: rebalance: %s", member.group_id, interruption.text)
        return interruption

    async def _take_all(self, partitions: frozenset[TopicPartition]) -> None:
        member, state = self._member, self._state
        self._gate.hold(Hold.LISTENER)
        state.change(state.assignment, partitions, is_unbroken=member.is_of_the_next_generation)
        self._reads.restart_idle(asyncio.get_running_loop().time())
        member.take_assignment()
        self._events.publish(Assigned(partitions, member.identity.generation))
        if state.listener is not None:
            await self._handover.tell_of_new(state.listener, partitions)

    async def _take_what_is_new(self, partitions: frozenset[TopicPartition]) -> bool:
        """Revoke and assign partitions, and keep the others. Return whether any was revoked."""
        member, state = self._member, self._state
        before = frozenset(state.assignment)
        gone, new = before - partitions, partitions - before
        member.take_assignment(keeps=True)
        for tp in sorted(before & partitions):
            if (cursor := state.assignment[tp]).is_withheld:
                state.release(cursor)  # unsubscribed and subscribed again
        if gone:
            await self._handover.revoke(gone, "the partitions are reassigned to other members")
            if not member.is_member or not state.is_subscribed:
                return False
        await self._handover.assign(new)
        for tp in sorted(new & state.assignment.keys()):
            state.release(state.assignment[tp])
        return bool(gone)

    def _interruption(self, next_by: float | None) -> Interruption | None:
        member = self._member
        if not member.is_member:  # lost during a revocation
            return member.lost_by or Interruption.LOST_GENERATION
        if member.interruption is not None:
            return member.interruption
        if self._joined_version != self._state.subscription_version:
            return Interruption.SUBSCRIPTION_CHANGED
        if member.is_leader and (view := self._cluster.view) is not self._unchanged_in:
            if have_changed(self._shared_out, view):
                return Interruption.PARTITIONS_CHANGED
            self._unchanged_in = view
        if next_by is not None and self._loop.time() >= next_by:
            return Interruption.PARTITIONS_UNOWNED
        return None

    async def _withdraw(self, reason: str) -> None:
        member = self._member
        self._heartbeat.thread.rest()
        if member.identity.member_id and not member.is_static:
            now = asyncio.get_running_loop().time()
            await self._leave(reason, now + self._config.request_timeout_s)

    async def _leave_until_next_read(self, overdue: str) -> None:
        self._warn_of_absence(overdue)
        # Before LeaveGroup: from now on, commits are too late.
        self._member.lose_generation(Interruption.POLL_INTERVAL_EXCEEDED, overdue)
        await self._withdraw(Interruption.POLL_INTERVAL_EXCEEDED.text)
        self._member.lose_membership(Interruption.POLL_INTERVAL_EXCEEDED, overdue)
        await self.sit_out()

    # --- Changes --------------------------------------------------------------------------
    def _note_departure(self, departure: Departure) -> None:
        """An eager member that is not stable has revoked its partitions already."""
        if self._is_cooperative or self._member.state is MemberState.STABLE:
            self._handover.note_departure(departure)

    async def _give_up(self) -> Never:
        """End the group task: every read and commit raises that another consumer took its place."""
        await self._lose_what_was_kept()
        self._state.change(self._state.assignment, ())
        self._member.lose_membership(Interruption.FENCED)
        self._member.enter(MemberState.FENCED)
        raise self._member.why_lost()
