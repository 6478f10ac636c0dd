"""Auto-commit: commits processed offsets at an interval.

Records that are finished one by one are committed sooner, unless an interval is configured, so that
a crash repeats few of them. Partitions that the application gives up are committed at once, with
the identity of their assignment.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from aiokafka_lite._compat import Never
from aiokafka_lite._tasks import Event, TaskScope
from aiokafka_lite.consumer.assignment.observers import Departure
from aiokafka_lite.consumer.core import Core
from aiokafka_lite.consumer.membership.protocol import Offsets

if TYPE_CHECKING:
    from aiokafka_lite.consumer.commits.commits import Commits


# Between two commits of records that are finished one by one.
LEAST_PAUSE_S: Final = 0.1


class AutoCommit:
    """Commits in the task "auto-commit" of a scope, until `stop`."""

    def __init__(self, core: Core, commits: Commits, scope: TaskScope) -> None:
        self._config, self._state = core.config, core.state
        self._finished, self._observers = core.finished, core.observers
        self._commits = commits
        self._scope = scope
        # Set after a departure, or a record that was finished by itself.
        self._wake = Event()
        self._has_progress = False
        core.observers.departed.add(self._note_departure)
        core.observers.assignment_changed.add(commits.forget_returned)
        core.observers.progressed.add(self._note_progress)
        self._task = scope.supervise(self._run, name="auto-commit")

    async def stop(self) -> None:
        """Stop the task and wait for its end. Idempotent."""
        await self._scope.stop(self._task)

    async def _run(self) -> Never:
        loop = asyncio.get_running_loop()
        commits = self._commits
        latest_at = loop.time()
        while True:
            if commits.has_departed:
                await commits.commit_next_departed()
                continue
            self._wake.clear()
            if not await self._wake.wait(latest_at + self._pause_s()):
                latest_at = loop.time()
                self._look_for_progress()
                offsets = commits.not_committed_yet(self._processed_of_what_is_kept())
                if offsets and not commits.member.is_rebalancing:
                    await commits.commit_by_itself(offsets)

    def _pause_s(self) -> float:
        interval_s = self._config.auto_commit_interval_s
        if self._has_progress and not self._config.has_auto_commit_interval:
            return min(LEAST_PAUSE_S, interval_s)
        return interval_s

    def _note_progress(self) -> None:
        self._has_progress = True
        self._wake.set()

    def _look_for_progress(self) -> None:
        if self._has_progress:
            self._has_progress = False
            self._observers.progressed.add(self._note_progress)

    def _processed_of_what_is_kept(self) -> Offsets:
        """Return the processed offsets of partitions that are not being revoked."""
        assignment = self._state.assignment
        return {
            tp: offset
            for tp, offset in self._finished.processed_offsets().items()
            if not assignment[tp].is_withheld
        }

    def _note_departure(self, departure: Departure) -> None:
        offsets = self._finished.finished_offsets()
        gone = {tp: offset for tp, offset in offsets.items() if tp in departure.partitions}
        if left := self._commits.not_committed_yet(gone):
            self._commits.depart(left)
            self._wake.set()
