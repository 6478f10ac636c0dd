"""Keeps a forked child away from the sockets of its parent.

A child inherits the parent's sockets, and the very epoll instance that the parent's loop waits
with: a byte that it writes goes to the parent's broker, and closing a transport, which may happen
as garbage is collected, takes the socket out of the parent's epoll as well. So, first of all, each
descriptor is pointed at the null device in the child, and each connection refuses requests.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from typing import Final

from aiokafka_lite._compat import Self
from aiokafka_lite.errors import ForkedError, KafkaError


class ForkAware:
    """Is a base of everything that owns a socket, which a forked child must leave alone."""

    __slots__ = ("__weakref__",)

    @property
    def peer(self) -> str:
        """Who it is connected to, for messages."""
        raise NotImplementedError

    def __new__(cls, *_: object, **__: object) -> Self:
        self = super().__new__(cls)
        _owners.add(self)
        return self

    def forked(self) -> tuple[int, object] | None:
        """Refuse all use from now on, because this is a child.

        Returns the socket's descriptor, -1 without one, and what owns it.
        """
        return self._give_up_socket(
            ForkedError(
                f"the connection to {self.peer} belongs to the parent process, so this forked "
                "process cannot use it: create another client in this process"
            )
        )

    def _give_up_socket(self, error: KafkaError) -> tuple[int, object] | None:
        """Refuse all use with an error, and forget the socket.

        Returns its descriptor and what owns it, None when there is none.
        """
        raise NotImplementedError


_owners: Final[weakref.WeakSet[ForkAware]] = weakref.WeakSet()
# A child's, for as long as it lives: what it inherited is not even closed as garbage.
_inherited: Final[list[object]] = []


def detach(owners: Iterable[ForkAware]) -> list[object]:
    """Point the sockets of these owners at the null device; return what owns the descriptors."""
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
