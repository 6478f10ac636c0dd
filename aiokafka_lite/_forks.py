"""Notifies objects that belong to one process in its forked children.

asyncio makes a child forget the running loop. But a child may continue with its parent's loop, if
that stood still during the fork. So comparing the running loop is not enough.
"""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from typing import Final, Protocol


class Forkable(Protocol):
    def note_fork(self) -> None:
        """Called in a child before any other code. Does no I/O: sockets may still be the parent's.

        Set state first: a callback for a loop that ran in another thread of the parent may be
        refused.
        """


_members: Final[weakref.WeakSet[Forkable]] = weakref.WeakSet()


def tell_of_forks(member: Forkable) -> None:
    """Call `member.note_fork` in each forked child, as long as `member` lives."""
    _members.add(member)


def _forked() -> None:
    for member in tuple(_members):
        with suppress(RuntimeError):
            member.note_fork()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forked)
