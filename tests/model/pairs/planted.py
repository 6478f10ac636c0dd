"""Bugs that are planted to see that the model finds them: each replaces one method.

What a checker was never seen to find, it may not look for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pytest

from aiokafka_lite.consumer.assignment.assignment import Assignment
from aiokafka_lite.consumer.assignment.batches import OpenBatch
from aiokafka_lite.consumer.assignment.cursor import NO_EPOCH, Cursor
from aiokafka_lite.consumer.assignment.progress import Progress
from aiokafka_lite.consumer.assignment.readers import Readers
from aiokafka_lite.consumer.commits import commits as commits_module
from aiokafka_lite.consumer.commits.commits import Commits
from aiokafka_lite.consumer.commits.requests import commit_request
from aiokafka_lite.consumer.processing.lanes import Lanes
from aiokafka_lite.consumer.processing.run import Run


@dataclass(frozen=True)
class Bug:
    """A bug: what takes the place of what, and the kinds of groups that may meet it."""

    name: str
    owner: Any
    method: str
    stand_in: Callable[..., object]
    kinds: tuple[str, ...]

    def plant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have it until the end of the test."""
        monkeypatch.setattr(self.owner, self.method, self.stand_in)


def _nothing(*_: object, **__: object) -> None:
    pass


async def _commits_nothing(*_: object, **__: object) -> dict[object, object]:
    return {}


def _one_too_far(member: Any, identity: Any, offsets: Any, ids: Any) -> object:
    behind = {tp: entry._replace(offset=entry.offset + 1) for tp, entry in offsets.items()}
    return commit_request(member, identity, behind, ids)


_end_of_batch = OpenBatch._end


def _always_done(batch: OpenBatch, *, is_done: bool) -> None:
    _end_of_batch(batch, is_done=True)


def _first_epoch(cursor: Cursor, offset: int) -> int:
    return cursor.epoch_starts[0].leader_epoch if cursor.epoch_starts else NO_EPOCH


def _all_that_was_returned(assignment: Assignment, partition: Cursor) -> int | None:
    return partition.position


_lanes_init = Lanes.__init__


def _in_no_order(lanes: Lanes, _: object) -> None:
    _lanes_init(lanes, None)


_finish = Progress.finish


def _finish_all_before(progress: Progress, offset: int, holder: object) -> bool | None:
    progress.finish_before(offset)
    return _finish(progress, offset, holder)


def _cut_off_nothing(run: Run, jobs: object) -> None:
    list(jobs)  # type: ignore[call-overload]


EACH: Final = ("plain", "records")
BUGS: Final = (
    Bug(
        "a commit names the offset after the next",
        commits_module,
        "commit_request",
        _one_too_far,
        EACH,
    ),
    Bug("a looked-up seek keeps finished ranges", Progress, "forget_ahead", _nothing, ("records",)),
    Bug("finished ranges are not passed over", Assignment, "start_behind", _nothing, ("records",)),
    Bug(
        "a read finishes the records of other tasks",
        Readers,
        "is_alone",
        lambda *_: True,
        ("plain",),
    ),
    Bug("a block that is left by an error is done", OpenBatch, "_end", _always_done, ("plain",)),
    Bug(
        "the last commit at a revocation is left out",
        Commits,
        "commit_last",
        _commits_nothing,
        EACH,
    ),
    Bug("a stop commits nothing", Commits, "commit_at_the_end", _commits_nothing, EACH),
    Bug("a truncation forgets no commit", Cursor, "truncated", _nothing, EACH),
    Bug("a commit has the epoch of the first record", Cursor, "epoch_before", _first_epoch, EACH),
    Bug("records of a key are handled side by side", Lanes, "__init__", _in_no_order, ("records",)),
    Bug(
        "a record that is finished finishes those before it",
        Progress,
        "finish",
        _finish_all_before,
        ("records",),
    ),
    Bug(
        "commit() covers what handlers work on",
        Assignment,
        "_handed_out_and_done",
        _all_that_was_returned,
        ("records",),
    ),
    Bug("a back-off never ends", Cursor, "end_back_off", _nothing, EACH),
)
