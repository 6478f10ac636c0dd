"""`python -m aiokafka_lite broker`, as a process."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import struct
from pathlib import Path

import pytest

from aiokafka_lite import records
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.structs import ConsumerRecord
from tests.broker.wire import fetch, fetch_partition, produce, topic_metadata, until_closed
from tests.support.broker_command import address_in, refused, running
from tests.support.cluster import KafkaHandle
from tests.support.for_each import for_each
from tests.support.wire import RawClient


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
async def test_command_serves_until_it_is_told_to_end(ending: signal.Signals) -> None:
    async with running("--listen", "127.0.0.1:0", "--topic", "orders:3", "--topic", "other") as (
        process,
        line,
    ):
        assert line.startswith("TEST ONLY")
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


@pytest.mark.parametrize("rounds", [2, pytest.param(50, marks=pytest.mark.slow)])
async def test_kill_under_load_loses_nothing_acknowledged(tmp_path: Path, rounds: int) -> None:
    arguments = ("--listen", "127.0.0.1:0", "--data", str(tmp_path), "--topic", "t:1")
    rng = random.Random(rounds)
    acknowledged: dict[int, bytes] = {}
    for _ in range(rounds):
        async with (
            running(*arguments) as (process, line),
            RawClient(address_in(line)) as client,
        ):
            kept = {record.offset: record.value for record in await _read_all(client)}
            assert {offset: kept.get(offset) for offset in acknowledged} == acknowledged
            asyncio.get_running_loop().call_later(rng.uniform(0.05, 0.3), process.kill)
            await _produce_until_killed(client, rng, acknowledged)
    assert len(acknowledged) >= rounds


async def _produce_until_killed(
    client: RawClient, rng: random.Random, acknowledged: dict[int, bytes]
) -> None:
    while True:
        value = rng.randbytes(rng.randrange(1, 50_000))
        batch = records.build_batch([(0, None, value, ())])
        try:
            result = await produce(client, "t", batch)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        assert result.error_code == 0
        acknowledged[result.base_offset] = value


async def _read_all(client: RawClient) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    while True:
        offset = found[-1].offset + 1 if found else 0
        data = await fetch(client, "t", fetch_partition(offset=offset))
        read = records.decode_all(memoryview(data.records or b""))
        if not read:
            return found
        found += read


def test_address_in_use_is_one_line_that_says_what_to_do() -> None:
    with BrokerThread() as broker:
        refusal = refused("--listen", broker.bootstrap_servers)
    assert (refusal.code, refusal.stdout) == (1, "")
    message = refusal.stderr.strip()
    assert "\n" not in message
    assert broker.bootstrap_servers in message
    assert "choose another port" in message


def test_address_for_everyone_needs_a_word() -> None:
    refusal = refused("--listen", "0.0.0.0:0")
    assert refusal.code == 1
    assert "--allow-remote" in refusal.stderr


async def test_nodes_and_topics_are_as_asked_for() -> None:
    topic = "orders:4:cleanup.policy=compact,delete,retention.ms=5"
    async with running("--listen", "127.0.0.1:0", "--nodes", "3", "--topic", topic) as (_, line):
        addresses = re.findall(r"127\.0\.0\.1:\d+", line)
        assert len(set(addresses)) == 3
        async with RawClient(addresses[0]) as client:
            found = await topic_metadata(client, "orders")
        assert len(found.partitions) == 4
        assert {len(partition.replica_nodes) for partition in found.partitions} == {3}


async def test_file_is_loaded_once(tmp_path: Path) -> None:
    file = tmp_path / "seed.jsonl"
    await asyncio.to_thread(file.write_text, '{"topic": "t", "key": "k", "value": {"n": 1}}\n' * 3)
    arguments = ("--listen", "127.0.0.1:0", "--data", str(tmp_path / "d"), "--load", str(file))
    for said in (
        f"loaded 3 records from {file} into t",
        "loaded no records into t, because this topic already has records",
    ):
        async with running(*arguments) as (process, line):
            async with RawClient(address_in(line)) as client:
                assert [record.value for record in await _read_all(client)] == [b'{"n":1}'] * 3
            assert process.stdout is not None
            assert (await process.stdout.readline()).decode().strip() == said
            process.send_signal(signal.SIGINT)
            await process.wait()


def test_bad_line_ends_the_command_with_its_number(tmp_path: Path) -> None:
    file = tmp_path / "seed.jsonl"
    file.write_text('{"topic": "t"}\n{"topic": "t", "partition": 7}\n')
    refusal = refused("--listen", "127.0.0.1:0", "--load", str(file))
    assert (refusal.code, refusal.stdout) == (1, "")
    assert refusal.stderr == (
        f"error: {file}, line 2: there is no partition t-7: the topic's partition count is 1 "
        "(no records were loaded)\n"
    )


async def test_status_page_is_up_and_ends_with_the_broker() -> None:
    pytest.importorskip("aiohttp")
    async with running("--listen", "127.0.0.1:0", has_status=True) as (process, _):
        assert process.stdout is not None
        said = (await process.stdout.readline()).decode().strip()
        found = re.fullmatch(r"status: http://(127\.0\.0\.1):(\d+)/", said)
        assert found, said
        reader, writer = await asyncio.open_connection(found[1], int(found[2]))
        writer.write(f"GET /api/overview HTTP/1.1\r\nHost: {found[1]}:{found[2]}\r\n\r\n".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        process.send_signal(signal.SIGINT)
        stdout, stderr = await asyncio.wait_for(process.communicate(), 30)
        writer.close()
    assert (process.returncode, stdout.decode().strip(), stderr) == (0, "broker stopped", b"")


def test_status_port_in_use_is_one_line() -> None:
    pytest.importorskip("aiohttp")
    with BrokerThread() as broker:
        port = broker.bootstrap_servers.rpartition(":")[2]
        refusal = refused("--listen", "127.0.0.1:0", "--status-port", port, has_status=True)
    assert (refusal.code, refusal.stdout) == (1, "")
    assert refusal.stderr.count("\n") == 1
    assert "--status-port" in refusal.stderr


@for_each(
    [
        ("--topic", ":3"),
        ("--topic", "t:0"),
        ("--topic", "t:1:x"),
        ("--topic", "t:1:=x"),
        ("--listen", "nowhere:x"),
        ("--nodes", "0"),
        ("--status-port", "65536"),
        ("--status-port", "x"),
    ]
)
def test_wrong_usage_is_refused(option: str, value: str) -> None:
    refusal = refused(option, value)
    assert refusal.code == 2
    assert option in refusal.stderr


async def test_any_setting_can_be_given() -> None:
    arguments = ("--listen", "127.0.0.1:0", "--set", "max_frame_bytes=1000")
    async with running(*arguments) as (_, line), RawClient(address_in(line)) as client:
        await client.send(struct.pack(">i", 1001) + bytes(1001))
        await until_closed(client)


@pytest.mark.parametrize("wrong", ["port=1", "no_such=1", "max_frame_bytes=many"])
def test_wrong_settings_are_refused(wrong: str) -> None:
    refusal = refused("--set", wrong)
    assert (refusal.stdout, refusal.code) == ("", 2)
    assert "--set" in refusal.stderr
