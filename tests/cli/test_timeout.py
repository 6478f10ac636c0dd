"""`--timeout`: how long a command takes when brokers are there, and of no use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.network.endpoint import close_server
from aiokafka_lite.cli.main import build_parser
from aiokafka_lite.errors import CoordinatorNotAvailableError, NotLeaderForPartitionError
from tests.cli.running import Running

TIMEOUT_S = 1.0
# Most of it is what a busy machine takes.
SPARE_S = 0.9


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(nodes=2) as broker:
        broker.create_topic("t", 2)
        yield broker


@pytest.fixture
async def silent() -> AsyncIterator[str]:
    """The address of a server that answers nothing."""

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await close_server(server)


async def failed_in_time(cli: Running, command: Sequence[str], servers: str) -> str:
    """Run a command that cannot succeed; return its error."""
    build_parser(*command[:2])  # its imports do not count
    began_at = time.monotonic()
    ended = await cli(*command, "-b", servers, "--timeout", TIMEOUT_S)
    took_s = time.monotonic() - began_at
    assert (ended.code, ended.out) == (1, b"")
    assert ended.errors.splitlines()[-1].startswith("error: ")
    assert took_s < TIMEOUT_S + SPARE_S
    return ended.errors


COMMANDS = [
    ["topics"], ["describe", "t"], ["cat", "t"], ["produce", "t"], ["replay", "t"], ["groups"],
    ["lag", "g"], ["reset", "g", "--topic", "t", "--to", "latest"], ["topics", "create", "u"],
    ["topics", "config", "t"],
]  # fmt: skip


@pytest.mark.few_rows(4)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
async def test_silent_servers_are_waited_for_once(
    cli: Running, silent: str, command: Sequence[str]
) -> None:
    await failed_in_time(cli, command, f"{silent},localhost:{silent.partition(':')[2]}")


async def test_silent_server_leaves_time_for_the_next(
    cli: Running, silent: str, broker: Broker
) -> None:
    servers = f"{silent},{broker.bootstrap_servers}"
    ended = await cli("topics", "-q", "-b", servers, "--timeout", TIMEOUT_S)
    assert (ended.code, ended.lines) == (0, ["t"])


@pytest.mark.parametrize("command", COMMANDS[6:8], ids=" ".join)
async def test_coordinator_is_waited_for_once(
    cli: Running, broker: Broker, command: Sequence[str]
) -> None:
    with broker.on("FindCoordinator").fail(CoordinatorNotAvailableError, times=None):
        await failed_in_time(cli, command, broker.bootstrap_servers)


@pytest.mark.few_rows(2)
@pytest.mark.parametrize("command", [*COMMANDS[:3], COMMANDS[4]], ids=" ".join)
async def test_offsets_are_waited_for_once(
    cli: Running, broker: Broker, command: Sequence[str]
) -> None:
    with broker.on("ListOffsets").fail(NotLeaderForPartitionError, times=None):
        await failed_in_time(cli, command, broker.bootstrap_servers)
    broker.on("ListOffsets").silence(times=None)
    await failed_in_time(cli, command, broker.bootstrap_servers)
