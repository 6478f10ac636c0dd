"""Notifies objects in a forked child that they belong to its parent.

asyncio makes a child forget the running loop. But a child may continue with its parent's loop, if
that stood still during the fork. So comparing the running loop is not enough.

A child inherits the sockets and the epoll instance of the parent's loop. If it closed a transport,
the parent's epoll would lose the socket. So it first replaces each descriptor with the null device.
"""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from typing import Final, Protocol


class Forkable(Protocol):
    def note_fork(self) -> None:
        """Called in a child before other code. Does no I/O: sockets may be the parent's."""


_members: Final[weakref.WeakSet[Forkable]] = weakref.WeakSet()
# Those that replace descriptors, which may fail.
_owners: Final[weakref.WeakSet[Forkable]] = weakref.WeakSet()
# Keeps inherited objects alive in the child, because garbage collection would close them.
_inherited: Final[list[object]] = []


def notify_of_forks(member: Forkable, *, has_descriptor: bool = False) -> None:
    """Call `member.note_fork` in each forked child, as long as `member` lives."""
    (_owners if has_descriptor else _members).add(member)


def leave_to_parent(descriptor: int, owner: object) -> None:
    """Replace a descriptor, unless it is -1, and keep the object that owns it."""
    _inherited.append(owner)
    if descriptor != -1:
        null = os.open(os.devnull, os.O_RDWR)  # which is not inheritable
        os.dup2(null, descriptor, inheritable=False)
        os.close(null)


def _forked() -> None:
    for member in (*_members, *_owners):
        with suppress(Exception):  # the others still have to know
            member.note_fork()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forked)
