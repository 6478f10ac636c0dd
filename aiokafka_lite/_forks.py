"""Tells what belongs to one process that this is a forked child of it.

asyncio has a child forget which loop runs. But a child may go on with its parent's loop, if that
stood still when the process forked, as between two `run_until_complete`. So it is not enough to
look at the running loop: everything that runs on it, or speaks for the parent, is told.
"""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from typing import Final, Protocol


class Forkable(Protocol):
    """Belongs to the process that made it."""

    def note_fork(self) -> None:
        """Note that this is a child; called before anything else runs in it.

        Does no I/O: sockets may still be the parent's. What has to be so is set first: a callback
        for a loop that another thread of the parent ran may be refused.
        """


_members: Final[weakref.WeakSet[Forkable]] = weakref.WeakSet()


def tell_of_forks(member: Forkable) -> None:
    """Have `member.note_fork` called in each forked child, as long as `member` lives."""
    _members.add(member)


def _forked() -> None:
    for member in tuple(_members):
        with suppress(RuntimeError):
            member.note_fork()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forked)
