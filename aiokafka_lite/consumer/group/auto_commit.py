"""Commits that nobody asks for: of what was handed out before the latest get, time and again.

Partitions that the application takes out of its assignment are not waited for: what was processed
of them is committed at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from aiokafka_lite._compat import Never, timeout_at
from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.group.member import Member
from aiokafka_lite.consumer.state import SubscriptionState
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.consumer.group.commits import Commits

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class AutoCommit:
    """The task "auto-commit", and what it has still to commit."""

    def __init__(
        self, config: ConsumerConfig, state: SubscriptionState, member: Member, commits: Commits
    ) -> None:
        self._config = config
        self._state = state
        self._member = member
        self._commits = commits
        self._task: asyncio.Task[Never] | None = None
        self._scope: TaskScope | None = None
        # What may be committed of partitions that the application has unassigned since.
        self.departed: dict[TopicPartition, OffsetAndMetadata] = {}
        self._departure = asyncio.Event()

    def start(self, scope: TaskScope) -> None:
        """Start the task."""
        self._state.observers.on_departure(self._note_departure)
        self._scope = scope
        self._task = scope.supervise(self._run, name="auto-commit")

    async def stop(self) -> None:
        """Stop the task and wait for its end; idempotent."""
        task, scope = self._task, self._scope
        if task is not None and scope is not None and not task.done():
            scope.cancel(task)
            await asyncio.wait({task})

    async def _run(self) -> Never:
        loop = asyncio.get_running_loop()
        commits = self._commits
        due_at = loop.time() + self._config.auto_commit_interval_s
        while True:
            try:
                async with timeout_at(due_at):
                    await self._departure.wait()
            except asyncio.TimeoutError:
                due_at = loop.time() + self._config.auto_commit_interval_s
                offsets = commits.not_committed_yet(self._state.processed_offsets())
                if offsets and not commits.is_between_assignments:
                    await commits.commit_by_itself(offsets)
            else:
                self._departure.clear()
                departed = dict(self.departed)
                await commits.commit_by_itself(departed)
                for tp, offset in departed.items():
                    if self.departed.get(tp) is offset:
                        del self.departed[tp]
                self._member.notify()

    def _note_departure(self, offsets: Offsets) -> None:
        """Have the task commit at once what was processed of partitions that go."""
        if left := self._commits.not_committed_yet(offsets):
            self.departed.update(left)
            self._departure.set()
