"""`python -m aiokafka_lite broker`, as a process."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aiokafka_lite.broker import Broker
from tests.broker.wire import topic_metadata
from tests.support.cluster import KafkaHandle
from tests.support.wire import RawClient


@asynccontextmanager
async def running(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Run the command; yields the process and the first line it prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "aiokafka_lite", "broker", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield process, (await asyncio.wait_for(process.stdout.readline(), 30)).decode()
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def address_in(line: str) -> str:
    found = re.search(r"127\.0\.0\.1:\d+", line)
    assert found, line
    return found.group()


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
async def test_command_serves_until_it_is_told_to_end(ending: signal.Signals) -> None:
    async with running("--listen", "127.0.0.1:0", "--topic", "orders:3", "--topic", "other") as (
        process,
        line,
    ):
        assert "not for production" in line
        async with RawClient(address_in(line)) as client:
            assert len((await topic_metadata(client, "orders")).partitions) == 3
            assert len((await topic_metadata(client, "other")).partitions) == 1
        process.send_signal(ending)
        stdout, stderr = await asyncio.wait_for(process.communicate(), 30)
    assert (process.returncode, stdout.decode().strip(), stderr) == (0, "broker stopped", b"")


async def test_data_directory_keeps_topics_and_records(tmp_path: Path) -> None:
    arguments = ("--listen", "127.0.0.1:0", "--data", str(tmp_path), "--topic", "t:2")
    async with running(*arguments) as (process, line):
        kafka = KafkaHandle("embedded", address_in(line))
        assert await kafka.produce("t", 1, [(b"k", b"v")]) == 0
        process.kill()
    async with running(*arguments) as (process, line):
        kafka = KafkaHandle("embedded", address_in(line))
        assert await kafka.produce("t", 1, [(b"k", b"v")]) == 1
        process.send_signal(signal.SIGINT)
        await process.wait()


async def test_address_in_use_is_one_line_that_says_what_to_do() -> None:
    async with Broker() as broker, running("--listen", broker.bootstrap_servers) as (process, line):
        _, stderr = await asyncio.wait_for(process.communicate(), 30)
    assert (process.returncode, line) == (1, "")
    message = stderr.decode().strip()
    assert "\n" not in message
    assert broker.bootstrap_servers in message
    assert "choose another port" in message


async def test_address_for_everyone_needs_a_word() -> None:
    async with running("--listen", "0.0.0.0:0") as (process, _):
        _, stderr = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 1
    assert "--allow-remote" in stderr.decode()


@pytest.mark.parametrize(
    "wrong", [("--topic", ":3"), ("--topic", "t:0"), ("--listen", "nowhere:x")]
)
async def test_wrong_usage_is_refused(wrong: tuple[str, str]) -> None:
    async with running(*wrong) as (process, _):
        _, stderr = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 2
    assert wrong[0] in stderr.decode()
