"""The part of a group membership that both group protocols share, with the group task.

The task runs from `start` until the consumer stops, and is restarted after a transient error. If
the application requests no records for too long, the member leaves the group until the next read.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import Any, Final, Generic, NamedTuple, TypeVar

from aiokafka_lite._compat import Never
from aiokafka_lite.client.cluster import ignore_moves
from aiokafka_lite.client.view import ClusterView
from aiokafka_lite.consumer.assignment.observers import Departure
from aiokafka_lite.consumer.membership.handover import Handover
from aiokafka_lite.consumer.membership.heartbeat import LeasedHeartbeat
from aiokafka_lite.consumer.membership.protocol import GroupStatus, Offsets, Surroundings
from aiokafka_lite.consumer.membership.stateful import GroupMember
from aiokafka_lite.errors import ConsumerStoppedError, KafkaError, UnknownMemberIdError
from aiokafka_lite.protocol.schema import Request

log = logging.getLogger(__name__)

UNSUBSCRIBED: Final = "the consumer unsubscribed"
# Of the time to stop: the part for leaving the group, and the part in which to return.
LEAVE_SHARE: Final = 0.25
RETURN_SHARE: Final = 0.02
# Leaving saves the other members a session timeout, which is worth a short wait only.
LEAVE_MAX_S: Final = 2.0

MemberT = TypeVar("MemberT", bound=GroupMember)


class Ending(NamedTuple):
    commit_by: float
    leave_by: float


def ending(now: float, deadline: float) -> Ending:
    left_s = max(0.0, deadline - now)
    leave_by = deadline - left_s * RETURN_SHARE
    return Ending(leave_by - min(LEAVE_MAX_S, left_s * LEAVE_SHARE), leave_by)


class GroupedMembership(ABC, Generic[MemberT]):
    """Implements Membership, but for the steps of the group task, which writes the assignment.

    Tasks: "group" runs `_run`, "heartbeat" the heartbeats, "listener" one callback.
    """

    # Created by the subclass.
    _heartbeat: LeasedHeartbeat[Any]

    def __init__(self, around: Surroundings, member: MemberT) -> None:
        core = around.core
        self._core, self._config, self._state = core, core.config, core.state
        self._reads, self._works, self._gate = core.reads, core.works, core.gate
        self._events, self._observers = core.events, core.observers
        self._cluster, self._coordinator = around.cluster, around.coordinator
        self._commits, self._scope = around.commits, around.scope
        self._loop = asyncio.get_running_loop()
        self._member = member
        self._handover = Handover(around, member, why_lost=self._why_lost)
        self._task: asyncio.Task[Never] | None = None
        self._is_halted = False
        self._error: KafkaError | None = None
        # The member has left the group until the application's next read.
        self.sits_out = False
        # The subscription version of the latest assignment that is complete. None: there is none.
        self._settled_version: int | None = None
        # The latest subscription for which the group task was woken.
        self._noticed_version: int | None = None

    # --- For the consumer -----------------------------------------------------------------
    @property
    def member_id(self) -> str:
        return self._member.identity.member_id

    @property
    def generation(self) -> int:
        return self._member.identity.generation

    @property
    def is_settled(self) -> bool:
        return self._settled_version == self._state.subscription_version

    def wake_waiters(self) -> None:
        self._member.notify()

    def is_called_by_listener(self) -> bool:
        return self._handover.calls.is_calling()

    def _status(self, state: str, joining_since: float | None) -> GroupStatus:
        heartbeat = self._heartbeat
        return GroupStatus(
            self._member.group_id,
            state,
            joining_since,
            sits_out=self.sits_out,
            is_settled=self.is_settled,
            coordinator_id=self._coordinator.node_id,
            last_contact_at=heartbeat.last_contact_at,
            heartbeat_count=heartbeat.beat_count,
            heartbeat_failure_count=heartbeat.failure_count,
            stood_in_count=heartbeat.thread.count,
            withheld=self._handover.withheld,
            awaited_work=self._handover.awaited_work,
        )

    # --- Beginning and end ----------------------------------------------------------------
    async def start(self) -> None:
        self._observers.subscription_changed.add(self._application_acted)
        self._observers.acted.add(self._application_acted)
        self._observers.departed.add(self._note_departure)
        self._cluster.add_listener(self._metadata_changed, on_moves=ignore_moves)
        self.begin()
        self._heartbeat.start()

    def begin(self) -> asyncio.Task[Never]:
        self._task = self._scope.supervise(self._run, name="group")
        self._task.add_done_callback(lambda _: self._member.notify())
        return self._task

    def halt(self) -> None:
        if self._task is not None and not self._is_halted:
            self._is_halted = True
            self._scope.cancel(self._task)

    async def halted(self) -> None:
        self.halt()
        if self._task is not None:
            await asyncio.wait({self._task})

    @abstractmethod
    async def _run(self) -> Never: ...

    async def _end_what_runs(self, deadline: float) -> None:
        self._cluster.remove_listener(self._metadata_changed)
        await self.halted()
        await self._commits.stop_auto_commit()
        now = self._loop.time()
        await self._handover.calls.finish(deadline=now + max(0.0, deadline - now) / 2)

    async def _commit_at_the_end(self, offsets: Offsets, deadline: float) -> Offsets:
        uncommitted = await self._commits.commit_at_the_end(offsets, deadline=deadline)
        if not self.is_called_by_listener():
            await self._handover.settle_departed(UNSUBSCRIBED, deadline)
        return uncommitted

    async def _send_leave(self, request: Request[Any], deadline: float, reason: str = "") -> bool:
        """Retry after errors. Return whether the member has left."""
        backoff = self._core.new_backoff()
        group_id = self._member.group_id
        while True:
            try:
                await self._coordinator.request(
                    request, error_code=lambda response: response.error_code, deadline=deadline
                )
            except UnknownMemberIdError:
                pass  # it has left, and the response was lost
            except KafkaError as error:
                delay_s = backoff.next_delay_s()
                if not error.retriable or self._loop.time() + delay_s >= deadline:
                    log.warning(
                        "group %s: the coordinator did not confirm that this member left, so the "
                        "member may stay in the group until its session times out: %s",
                        group_id,
                        error,
                    )
                    return False
                await asyncio.sleep(delay_s)
                continue
            log.info("group %s: left%s", group_id, reason and f" ({reason})")
            return True

    # --- Waits for an assignment ----------------------------------------------------------
    async def wait_assigned(self) -> None:
        """See Membership. Raises ConsumerStoppedError if the consumer was stopped."""
        while self._state.is_subscribed and not self.is_settled:
            self._scope.raise_if_failed()
            if self._error is not None:
                raise self._error
            task = self._task
            if task is None or task.done():
                # The scope may not have handled its failure yet.
                if task is not None and not task.cancelled() and (died := task.exception()):
                    raise died
                raise ConsumerStoppedError(
                    "the consumer was stopped before it was assigned partitions"
                )
            await self._member.wait_for_change()
        self._scope.raise_if_failed()

    def surface(self, error: KafkaError) -> None:
        """Raise a permanent error from the next read and from `wait_assigned`."""
        self._error = error
        self._gate.post(error)
        self._member.notify()

    def forget_error(self) -> None:
        self._error = None

    # --- The application is away ----------------------------------------------------------
    def overdue_text(self) -> str:
        idle_s = self._reads.idle_s(self._loop.time())
        busy_with = ", ".join(
            f"{tp.topic}-{tp.partition} offset {first}"
            + (f" to {end - 1}" if end - first > 1 else "")
            for tp, (first, end) in sorted(self._works.being_processed().items())
        )
        return (
            f"the application requested no records for {idle_s:.1f} s, longer than "
            f"max_poll_interval_ms={self._config.max_poll_interval_ms}"
            + (f" (returned last: {busy_with})" if busy_with else "")
        )

    @property
    def poll_left_s(self) -> float:
        """The rest of max_poll_interval_ms, in which the application has to request records."""
        return self._config.max_poll_interval_s - self._reads.idle_s(self._loop.time())

    async def sit_out(self) -> None:
        self.sits_out = True
        try:
            while self._state.is_subscribed and self.poll_left_s <= 0:
                await self._member.wait_for_change()
        finally:
            self.sits_out = False

    # --- Changes --------------------------------------------------------------------------
    @abstractmethod
    def _why_lost(self) -> str | None:
        """Return why other members own the assigned partitions. None: they do not."""

    @abstractmethod
    def _note_departure(self, departure: Departure) -> None: ...

    def _warn_of_absence(self, overdue: str) -> None:
        log.warning(
            "leaving group %s, because %s. The consumer joins again when the application next "
            "requests records",
            self._member.group_id,
            overdue,
        )

    def _application_acted(self) -> None:
        # A read after the loop was blocked must not return records of lost partitions.
        self._heartbeat.lease.look()
        version = self._state.subscription_version
        awaits = self.sits_out or self._handover.awaits_application
        if awaits or self._noticed_version != version:
            self._noticed_version = version
            self._member.notify()

    def _metadata_changed(self, view: ClusterView) -> None:
        self._state.match_pattern(
            view, exclude_internal_topics=self._config.exclude_internal_topics
        )
        self._member.notify()
