"""`--timeout`: how long a command takes when brokers are there, and of no use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from aiokafka_lite import AIOKafkaConsumer, TopicPartition
from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.node import close_server
from aiokafka_lite.cli.main import build_parser
from aiokafka_lite.cli.reading import Record, Span, records_of
from aiokafka_lite.errors import (
    CoordinatorNotAvailableError,
    KafkaTimeoutError,
    NotLeaderForPartitionError,
)
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


class SilentConsumer:
    """Reads from brokers that answer fetches until a loop time."""

    def __init__(self, answered_until: float) -> None:
        self._answered_until = answered_until

    def assign(self, partitions: object) -> None: ...

    def seek(self, tp: TopicPartition, offset: int) -> None: ...

    async def poll(self, timeout_ms: float) -> dict[TopicPartition, list[Record]]:
        await asyncio.sleep(timeout_ms / 1000)
        return {}

    async def position(self, tp: TopicPartition) -> int:
        return 0

    def explain(self, tp: TopicPartition) -> str:
        return "a fetch is in flight"

    def health(self) -> SimpleNamespace:
        if not self._answered_until:
            return SimpleNamespace(last_fetch_s=None)
        silent_s = asyncio.get_running_loop().time() - self._answered_until
        return SimpleNamespace(last_fetch_s=max(0.0, silent_s))


@pytest.mark.virtual_time
@pytest.mark.parametrize("answered_until", [0.0, 100.0])
async def test_reads_end_when_no_fetch_is_answered(answered_until: float) -> None:
    loop = asyncio.get_running_loop()
    consumer = cast("AIOKafkaConsumer", SilentConsumer(answered_until))
    tp = TopicPartition("t", 0)
    found = records_of(consumer, {tp: Span(0, 1)}, patience_s=60.0)
    with pytest.raises(KafkaTimeoutError, match=r"no fetch for 60 s: .* a fetch is in flight"):
        assert [records async for records in found if records] == []
    assert loop.time() == pytest.approx(answered_until + 60, abs=0.2)
