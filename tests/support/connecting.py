"""Connections of tests, which name only the settings that they are about."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from aiokafka_lite.client.config import Address, ClientConfig
from aiokafka_lite.client.connection import Connection
from aiokafka_lite.client.versions import FirstVersions


def report_bug(bug: BaseException) -> None:
    """Let the loop complain about a bug in a callback of a connection."""
    context = {"message": "a bug", "exception": bug}
    asyncio.get_running_loop().call_exception_handler(context)


async def connect_to(
    host: str,
    port: int,
    *,
    kind: type[Connection] = Connection,
    ssl_context: ssl.SSLContext | None = None,
    connect_timeout_s: float = 10.0,
    **arguments: Any,
) -> Connection:
    config = ClientConfig(
        client_id="tests",
        connect_timeout_s=connect_timeout_s,
        security_protocol="PLAINTEXT" if ssl_context is None else "SSL",
        ssl_context=ssl_context,
    )
    arguments.setdefault("first_versions", FirstVersions(asyncio.get_running_loop().time))
    arguments.setdefault("on_bug", report_bug)
    return await kind.open(Address(host, port), config, **arguments)
