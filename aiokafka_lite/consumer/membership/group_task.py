"""The group task of a membership, for both group protocols.

It runs from `start` until the consumer stops, and is restarted after a transient error. If the
application requests no records for too long, the member leaves the group until the next read.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Final, NamedTuple, Protocol

from aiokafka_lite._compat import Never
from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.consumer.assignment.finished import Finished
from aiokafka_lite.consumer.assignment.observers import Observers
from aiokafka_lite.consumer.assignment.reads import Reads
from aiokafka_lite.consumer.assignment.subscription import SubscriptionState, is_subscribed
from aiokafka_lite.consumer.assignment.works import Works
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.events import Events
from aiokafka_lite.consumer.gate import Gate
from aiokafka_lite.consumer.membership.coordinator import Coordinator
from aiokafka_lite.consumer.membership.heartbeat_thread import OpenCluster
from aiokafka_lite.consumer.membership.protocol import GroupMember, LastCommits
from aiokafka_lite.errors import ConsumerStoppedError, KafkaError

# Of the time to stop: the part for leaving the group, and the part in which to return.
LEAVE_SHARE: Final = 0.25
RETURN_SHARE: Final = 0.02
# Leaving saves the other members a session timeout, which is worth a short wait only.
LEAVE_MAX_S: Final = 2.0


class Surroundings(NamedTuple):
    config: ConsumerConfig
    state: SubscriptionState
    reads: Reads
    works: Works
    finished: Finished
    gate: Gate
    events: Events
    observers: Observers
    cluster: Cluster
    coordinator: Coordinator
    commits: LastCommits
    scope: TaskScope
    rng: random.Random
    open_cluster: OpenCluster | None = None


class Ending(NamedTuple):
    commit_by: float
    leave_by: float


def ending(now: float, deadline: float) -> Ending:
    left_s = max(0.0, deadline - now)
    leave_by = deadline - left_s * RETURN_SHARE
    return Ending(leave_by - min(LEAVE_MAX_S, left_s * LEAVE_SHARE), leave_by)


class Settling(Protocol):
    @property
    def is_settled(self) -> bool: ...


class GroupTask:
    def __init__(self, around: Surroundings, member: GroupMember, membership: Settling) -> None:
        self._config = around.config
        self._state = around.state
        self._reads, self._works = around.reads, around.works
        self._scope = around.scope
        self._gate = around.gate
        self._member = member
        self._membership = membership
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Never] | None = None
        self._is_halted = False
        self._error: KafkaError | None = None
        # The member has left the group until the application's next read.
        self.sits_out = False

    # --- Its life -------------------------------------------------------------------------
    def start(self, run: Callable[[], Coroutine[None, None, Never]]) -> asyncio.Task[Never]:
        self._task = self._scope.supervise(run, name="group")
        self._task.add_done_callback(lambda _: self._member.notify())
        return self._task

    def halt(self) -> None:
        """Cancel the task, and return at once. Idempotent."""
        if self._task is not None and not self._is_halted:
            self._is_halted = True
            self._scope.cancel(self._task)

    async def halted(self) -> None:
        self.halt()
        if self._task is not None:
            await asyncio.wait({self._task})

    # --- Waits for an assignment ----------------------------------------------------------
    async def wait_assigned(self) -> None:
        """Wait until the present subscription has an assignment, which may be empty.

        Raises:
            KafkaError: A permanent error keeps the member from joining.
            ConsumerStoppedError: The consumer was stopped.
        """
        while is_subscribed(self._state) and not self._membership.is_settled:
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
    def is_away(self) -> bool:
        return self._reads.idle_s(self._loop.time()) >= self._config.max_poll_interval_s

    async def sit_out(self) -> None:
        """Wait until the application requests records again, or unsubscribes."""
        self.sits_out = True
        try:
            while is_subscribed(self._state) and self.is_away:
                await self._member.wait_for_change()
        finally:
            self.sits_out = False
