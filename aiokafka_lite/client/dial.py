"""Opens transports to the addresses that a host resolves to (KIP-302)."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from aiokafka_lite._compat import timeout
from aiokafka_lite._threads import resolving
from aiokafka_lite.client.config import Address
from aiokafka_lite.client.keep_alive import keep_alive
from aiokafka_lite.client.network_errors import (
    NETWORK_ERRORS,
    FailedAddresses,
    hosts,
    is_numeric,
    unresolved,
)

P = TypeVar("P", bound=asyncio.BaseProtocol)


class StepLimit(NamedTuple):
    """A limit for each step of opening a connection, and a deadline for all of them."""

    step_s: float
    deadline: float | None = None

    def left_s(self) -> float:
        if self.deadline is None:
            return self.step_s
        left_s = self.deadline - asyncio.get_running_loop().time()
        return max(0.0, min(self.step_s, round(left_s, 3)))  # for messages


async def dial(
    protocol_factory: Callable[[], P],
    address: Address,
    *,
    ssl_context: ssl.SSLContext | None,
    limit: StepLimit,
) -> P:
    """Connect to the first address that accepts. Cancellation leaves no connection open."""
    loop = asyncio.get_running_loop()
    failures = FailedAddresses(address, timeout_s=limit.left_s(), uses_tls=ssl_context is not None)
    for host in await _resolve(address, limit.left_s()):
        try:
            async with timeout(limit.left_s()):
                transport, protocol = await loop.create_connection(
                    protocol_factory,
                    host,
                    address.port,
                    ssl=ssl_context,
                    # SNI has no trailing dot (RFC 6066), fully qualified names may have one.
                    server_hostname=address.host.rstrip(".") if ssl_context else None,
                )
        except asyncio.TimeoutError:
            failures.add(host, TimeoutError())  # another class before Python 3.11
        except NETWORK_ERRORS as error:
            failures.add(host, error)
        else:
            keep_alive(transport.get_extra_info("socket"))
            return protocol
    raise failures.error()


async def _resolve(address: Address, timeout_s: float) -> list[str]:
    if is_numeric(address.host):
        return [address.host]
    loop = asyncio.get_running_loop()
    try:
        async with timeout(timeout_s):
            # The loop's own method would use the application's executor.
            found = await loop.run_in_executor(
                resolving(),
                partial(socket.getaddrinfo, *address, type=socket.SOCK_STREAM),
            )
    except asyncio.TimeoutError:
        raise unresolved(address, TimeoutError(), timeout_s) from None
    except NETWORK_ERRORS as error:
        raise unresolved(address, error, timeout_s) from error
    return hosts(found)
