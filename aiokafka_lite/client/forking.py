"""Keeps a forked child away from the sockets of its parent.

A child inherits the parent's sockets, and the very epoll instance that the parent's loop waits
with: a byte that it writes goes to the parent's broker, and closing a transport, which may happen
as garbage is collected, takes the socket out of the parent's epoll as well. So, first of all, each
descriptor is made to stand for the null device in the child, and each connection refuses requests.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from typing import Final

from aiokafka_lite._compat import Self
from aiokafka_lite.errors import ForkedError, KafkaError


class ForkAware:
    """A base of what owns a transport, which a forked child must leave alone."""

    peer: str
    error: KafkaError | None
    _transport: asyncio.Transport | None

    def __new__(cls, *_: object, **__: object) -> Self:
        self = super().__new__(cls)
        _owners.add(self)
        return self

    def forked(self) -> asyncio.BaseTransport | None:
        """Refuse all use from now on, as this is a child; return the transport."""
        self.error = ForkedError(f"the connection to {self.peer} belongs to the parent process")
        transport, self._transport = self._transport, None
        return transport


_owners: Final[weakref.WeakSet[ForkAware]] = weakref.WeakSet()
# A child's, for as long as it lives: what it inherited is not even closed as garbage.
_inherited: Final[list[asyncio.BaseTransport]] = []


def _forked() -> None:
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for owner in tuple(_owners):
        transport = owner.forked()
        if transport is None:
            continue
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:
            os.dup2(null, sock.fileno(), inheritable=False)
        _inherited.append(transport)
    os.close(null)


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forked)
