"""Commits what nobody asks to commit: what was handed out before the latest get, at an interval.

What the application gives up does not wait for the interval: it is committed at once, as the member
that it was assigned to.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from aiokafka_lite._compat import Never, timeout_at
from aiokafka_lite._event import Event
from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.consumer.assignment.observers import Departure
from aiokafka_lite.consumer.assignment.subscription import SubscriptionState
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.membership.protocol import GroupMember, Identity, Offsets
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.consumer.commits.commits import Commits


class Departed(NamedTuple):
    """Holds what is to be committed of partitions that the application has given up."""

    offsets: Offsets
    # As whom they were assigned; None: they were lost already.
    assigned_as: Identity | None


class AutoCommit:
    """Runs the task "auto-commit", and keeps what it has still to commit."""

    def __init__(
        self,
        config: ConsumerConfig,
        state: SubscriptionState,
        member: GroupMember,
        commits: Commits,
    ) -> None:
        self._config = config
        self._state = state
        self._member = member
        self._commits = commits
        self._task: asyncio.Task[Never] | None = None
        self._scope: TaskScope | None = None
        # What the application has given up, and is not committed yet; and what could not be.
        self.departed: list[Departed] = []
        self.forgone: dict[TopicPartition, OffsetAndMetadata] = {}
        self._departure = Event()

    def start(self, scope: TaskScope) -> None:
        """Start the task."""
        self._state.observers.on_departure(self._note_departure)
        self._state.observers.on_assignment_change(self._forget_what_is_back)
        self._scope = scope
        self._task = scope.supervise(self._run, name="auto-commit")

    async def stop(self) -> None:
        """Stop the task and wait for its end; idempotent."""
        if self._task is not None and self._scope is not None:
            await self._scope.stop(self._task)

    async def _run(self) -> Never:
        loop = asyncio.get_running_loop()
        commits = self._commits
        due_at = loop.time() + self._config.auto_commit_interval_s
        while True:
            if self.departed:
                departed = self.departed[0]
                left = await commits.commit_by_itself(departed.offsets, departed)
                self.settle(departed, left)
                continue
            self._departure.clear()
            try:
                async with timeout_at(due_at):
                    await self._departure.wait()
            except asyncio.TimeoutError:
                due_at = loop.time() + self._config.auto_commit_interval_s
                offsets = commits.not_committed_yet(self._processed_of_what_is_kept())
                if offsets and self._member.takes_commits():
                    await commits.commit_by_itself(offsets)

    def _processed_of_what_is_kept(self) -> Offsets:
        """Return what may be committed of partitions that are not being given back.

        Those that are have their last commit by whoever gives them back: a seek meanwhile is for
        the assignment to come.
        """
        assignment = self._state.assignment
        return {
            tp: offset
            for tp, offset in self._state.processed_offsets().items()
            if not assignment[tp].is_revoking
        }

    def settle(self, departed: Departed, left: Offsets) -> None:
        """Note what was committed of partitions that were given up, and what never will be."""
        if departed in self.departed:
            self.departed.remove(departed)
            self.forgone.update(left)
            self._member.notify()

    def _note_departure(self, departure: Departure) -> None:
        """Let the task commit at once what may be committed of partitions that go."""
        if left := self._commits.not_committed_yet(departure.offsets):
            self.departed.append(Departed(left, self._commits.assigned_as))
            self._departure.set()

    def _forget_what_is_back(self) -> None:
        """Forget what could not be committed of partitions that are assigned again."""
        for tp in self.forgone.keys() & self._state.assignment.keys():
            del self.forgone[tp]
