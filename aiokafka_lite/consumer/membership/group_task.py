"""What a membership has in its group task, whichever protocol: its life, and who waits for it.

The task runs from `start` until the consumer stops; one that dies of something that passes is
started again. Those who wait for an assignment are told of what keeps the member from one. And an
application that asks for no records for too long is waited for, outside the group.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Final, NamedTuple, Protocol

from aiokafka_lite._compat import Never
from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client import Cluster
from aiokafka_lite.consumer.assignment.finished import Finished
from aiokafka_lite.consumer.assignment.observers import Observers
from aiokafka_lite.consumer.assignment.reads import Reads
from aiokafka_lite.consumer.assignment.subscription import SubscriptionState
from aiokafka_lite.consumer.assignment.topics import is_subscribed
from aiokafka_lite.consumer.assignment.works import Works
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.events.stream import Events
from aiokafka_lite.consumer.gate import Gate
from aiokafka_lite.consumer.membership.coordinator import Coordinator
from aiokafka_lite.consumer.membership.protocol import GroupMember, LastCommits
from aiokafka_lite.consumer.membership.stand_in import OpenCluster
from aiokafka_lite.errors import ConsumerStoppedError, KafkaError

# Of the time to stop: the part kept for saying so to the group, and the part in which to return.
LEAVE_SHARE: Final = 0.25
RETURN_SHARE: Final = 0.02
# To say that a member leaves spares the others the session timeout. It is not worth more than a
# short wait: a coordinator that cannot be reached will not miss this member either.
LEAVE_MAX_S: Final = 2.0


class Surroundings(NamedTuple):
    """What a membership is made of, beside its member.

    Attributes:
        reads: Of the consumer.
        works: Are waited for.
        finished: Tell what to commit.
        gate: Told of errors that do not pass by themselves.
        events: Where it tells what happens.
        observers: Told of changes of the state.
        commits: Makes the last commits.
        scope: Supervises its tasks.
        open_cluster: Makes the connections of a thread that heartbeats; None: there is none.
    """

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
    """Loop times by which a member that leaves has to be done."""

    # With its last commit.
    commit_by: float
    # With everything.
    leave_by: float


def ending(now: float, deadline: float) -> Ending:
    """Share out the time that a member has to leave."""
    left_s = max(0.0, deadline - now)
    leave_by = deadline - left_s * RETURN_SHARE
    return Ending(leave_by - min(LEAVE_MAX_S, left_s * LEAVE_SHARE), leave_by)


class Settling(Protocol):
    """A membership, as far as its group task asks it."""

    @property
    def is_settled(self) -> bool:
        """Whether the assignment answers to the present subscription."""


class GroupTask:
    """The group task of one membership.

    Args:
        around: The parts of the membership.
        member: Its changes wake all waiters.
        membership: The membership.
    """

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
        # Whether the member is out of its group as the application stays away.
        self.sits_out = False

    # --- Its life -------------------------------------------------------------------------
    def start(self, run: Callable[[], Coroutine[None, None, Never]]) -> asyncio.Task[Never]:
        """Start the task; its end is a change of the member."""
        self._task = self._scope.supervise(run, name="group")
        self._task.add_done_callback(lambda _: self._member.notify())
        return self._task

    def halt(self) -> None:
        """Begin to end the task; idempotent."""
        if self._task is not None and not self._is_halted:
            self._is_halted = True
            self._scope.cancel(self._task)

    async def halted(self) -> None:
        """End the task, and wait until it has ended."""
        self.halt()
        if self._task is not None:
            await asyncio.wait({self._task})

    # --- Who waits for an assignment ------------------------------------------------------
    async def wait_assigned(self) -> None:
        """Wait until the present subscription has got an assignment, which may be empty.

        Raises:
            KafkaError: What keeps the member from joining and will not pass by itself.
            ConsumerStoppedError: The consumer was stopped meanwhile.
        """
        while is_subscribed(self._state) and not self._membership.is_settled:
            self._scope.raise_if_failed()
            if self._error is not None:
                raise self._error
            task = self._task
            if task is None or task.done():
                # It may have died just now, and its scope not have heard of it yet.
                if task is not None and not task.cancelled() and (died := task.exception()):
                    raise died
                raise ConsumerStoppedError(
                    "the consumer was stopped before it was assigned partitions"
                )
            await self._member.wait_for_change()
        self._scope.raise_if_failed()

    def surface(self, error: KafkaError) -> None:
        """Let the application hear of an error that will not pass by itself."""
        self._error = error
        self._gate.post(error)
        self._member.notify()

    def forget_error(self) -> None:
        """Note that nothing keeps the member from joining, or that it is tried anew."""
        self._error = None

    # --- The application is away ----------------------------------------------------------
    def overdue_text(self) -> str:
        """Say how long no record was asked for, and what the application is busy with."""
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
        """Whether no record was asked for within `max_poll_interval_ms`."""
        return self._reads.idle_s(self._loop.time()) >= self._config.max_poll_interval_s

    async def sit_out(self) -> None:
        """Wait until the application asks for records again, or is subscribed to nothing."""
        self.sits_out = True
        try:
            while is_subscribed(self._state) and self.is_away:
                await self._member.wait_for_change()
        finally:
            self.sits_out = False
