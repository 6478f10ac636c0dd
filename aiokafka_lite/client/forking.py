"""Prevents a forked child from using its parent's sockets.

A child inherits the sockets and the epoll instance of the parent's loop. If it closed a transport,
the parent's epoll would lose the socket. So it first replaces each descriptor with the null device.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from typing import Final

from aiokafka_lite._compat import Self
from aiokafka_lite.errors import ForkedError, KafkaError


class ForkAware:
    """Base of all owners of sockets."""

    __slots__ = ()

    @property
    def peer(self) -> str:
        """The other end of the connection, for messages."""
        raise NotImplementedError

    def __new__(cls, *_: object, **__: object) -> Self:
        self = super().__new__(cls)
        _owners.add(self)
        return self

    def forked(self) -> tuple[int, object] | None:
        """Refuse all later use. Return the socket's descriptor, -1 without one, and its owner."""
        return self._give_up_socket(
            ForkedError(
                f"the connection to {self.peer} belongs to the parent process, so this forked "
                "process cannot use it: create another client in this process"
            )
        )

    def _give_up_socket(self, error: KafkaError) -> tuple[int, object] | None:
        """Refuse all later use with an error, and drop the socket."""
        raise NotImplementedError


_owners: Final[weakref.WeakSet[ForkAware]] = weakref.WeakSet()
# Keeps inherited objects alive in the child, because garbage collection would close them.
_inherited: Final[list[object]] = []


def detach(owners: Iterable[ForkAware]) -> list[object]:
    """Replace these owners' descriptors. Return the objects that own them."""
    null = os.open(os.devnull, os.O_RDWR)  # which is not inheritable
    socket_owners = []
    for owner in owners:
        if (given_up := owner.forked()) is None:
            continue
        descriptor, socket_owner = given_up
        if descriptor != -1:
            os.dup2(null, descriptor, inheritable=False)
        socket_owners.append(socket_owner)
    os.close(null)
    return socket_owners


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=lambda: _inherited.extend(detach(tuple(_owners))))
