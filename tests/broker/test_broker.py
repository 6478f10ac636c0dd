"""Starting, stopping, and what is there after a restart."""

from __future__ import annotations

import asyncio
import gc
import random
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from aiokafka_lite.broker import Broker, BrokerConfig
from aiokafka_lite.errors import (
    InsecureConfigError,
    InvalidPartitionsError,
    InvalidTopicError,
    KafkaConnectionError,
    KafkaStorageError,
    PolicyViolationError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol import framing
from aiokafka_lite.protocol.messages.group_members import JoinGroupRequest, JoinGroupRequestProtocol
from aiokafka_lite.protocol.messages.metadata import MetadataRequest
from tests.broker.wire import (
    eventually,
    fetch,
    fetch_partition,
    fetch_request,
    list_offset,
    new_producer_id,
)
from tests.support.cluster import KafkaHandle
from tests.support.wire import RawClient

ROWS = [(b"key", b"value")] * 3


def handle(broker: Broker) -> KafkaHandle:
    return KafkaHandle("embedded", broker.bootstrap_servers)


@pytest.mark.every_loop
async def test_broker_serves_between_entering_and_leaving() -> None:
    async with Broker() as broker:
        assert broker.bootstrap_servers.startswith("127.0.0.1:")
        async with RawClient(broker.bootstrap_servers) as client:
            await client.request(MetadataRequest(topics=[]))
        address = (broker.node.address.host, broker.node.address.port)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=1)
    assert broker.failure is None


async def test_starting_is_quick() -> None:
    async with Broker():
        pass
    started = time.perf_counter()
    async with Broker():
        taken_s = time.perf_counter() - started
    assert taken_s < 0.02


@pytest.mark.every_loop
async def test_stopping_ends_connections_long_polls_and_joins_within_the_bound() -> None:
    before = asyncio.all_tasks()
    async with Broker(group_initial_rebalance_delay_ms=60_000) as broker:
        broker.create_topic("t")
        poll = fetch_request({"t": [fetch_partition()]}, max_wait_ms=60_000)
        join = JoinGroupRequest(
            group_id="g", session_timeout_ms=30_000, rebalance_timeout_ms=30_000,
            protocol_type="consumer", protocols=[JoinGroupRequestProtocol(name="range")],
        )  # fmt: skip
        clients = [RawClient(broker.bootstrap_servers) for _ in range(3)]
        for client in clients:
            await client.__aenter__()
        await clients[0].send(framing.encode_request(poll, 12, 1, "raw"))
        await clients[1].send(framing.encode_request(join, 2, 1, "raw"))
        await eventually(lambda: len(broker.purgatory) == 1)
        started = time.monotonic()
    assert time.monotonic() - started < 2
    assert len(broker.purgatory) == broker.connection_count == 0
    assert asyncio.all_tasks() == before
    for client in clients:
        await client.__aexit__(None, None, None)


@pytest.mark.every_loop
async def test_stopping_does_not_wait_for_a_client_that_takes_nothing() -> None:
    async with Broker(stop_timeout_s=0.1) as broker:
        broker.create_topic("t")
        for _ in range(12):
            await handle(broker).produce("t", 0, [(None, b"x" * 900_000)])
        request = fetch_request({"t": [fetch_partition(max_bytes=50 << 20)]})
        _, writer = await asyncio.open_connection(
            broker.node.address.host, broker.node.address.port
        )
        writer.write(framing.encode_request(request, 12, 1, "raw") * 20)
        await writer.drain()
        await eventually(lambda: broker.connection_count == 1)
        await asyncio.sleep(0.02)
        started = time.monotonic()
    assert time.monotonic() - started < 2
    writer.close()


async def test_stopping_twice_and_without_a_start_is_harmless() -> None:
    await Broker().stop()
    broker = Broker()
    await broker.start()
    await broker.stop()
    await broker.stop()


async def test_port_in_use_is_told_with_the_address() -> None:
    async with Broker() as first:
        with pytest.raises(
            KafkaConnectionError, match=f"{first.node.address.port}.*another program"
        ):
            await Broker(port=first.node.address.port).start()
        async with RawClient(first.bootstrap_servers) as client:
            await client.request(MetadataRequest(topics=[]))


def test_nodes_listen_on_neighbouring_ports() -> None:
    broker = Broker(nodes=3, port=9_000, node_id=5)
    addresses = [(node.id, node.address.port) for node in broker.nodes.values()]
    assert addresses == [(5, 9_000), (6, 9_001), (7, 9_002)]
    assert broker.controller_id == -1


async def test_nodes_that_have_started_stop_when_another_cannot() -> None:
    for _ in range(9):  # the port before may be taken, too
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            broker = Broker(nodes=2, port=port - 1)
            with pytest.raises(KafkaConnectionError) as failed:
                await broker.start()
        if str(port) in str(failed.value):
            break
    assert broker.live_nodes == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port - 1), timeout=1)


@pytest.mark.parametrize("host", ["192.0.2.1", "::", "example.org"])
def test_addresses_that_others_can_reach_need_a_word(host: str) -> None:
    with pytest.raises(InsecureConfigError, match="allow_remote"):
        Broker(host=host)
    assert Broker(host=host, allow_remote=True).config.host == host


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_partitions": 0},
        {"port": 70_000},
        {"queued_max_requests": -1},
        {"group_consumer_session_timeout_ms": 0},
    ],
)
def test_impossible_settings_are_refused_by_name(wrong: dict[str, int]) -> None:
    ((name, _),) = wrong.items()
    with pytest.raises(ValueError, match=name):
        Broker(**wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no_such_setting"):
        Broker(no_such_setting=1)


async def test_topics_from_code() -> None:
    async with Broker(num_partitions=3, max_partitions=10) as broker:
        assert broker.create_topic("a").partition_count == 3
        assert broker.create_topic("b", 2, {"retention.ms": "1"}).config.overrides
        with pytest.raises(TopicAlreadyExistsError):
            broker.create_topic("a")
        with pytest.raises(InvalidTopicError):
            broker.create_topic("no spaces")
        with pytest.raises(PolicyViolationError):
            broker.create_topic("many", 6)
        with pytest.raises(InvalidPartitionsError):
            broker.create_topic("none", 0)
        broker.create_topic("last", 5)
        broker.delete_topic("last")
        with pytest.raises(UnknownTopicOrPartitionError):
            broker.partition("a", 3)
        assert list(broker.topics) == ["a", "b"]
        broker.delete_topic(broker.topics["a"])
        assert list(broker.topics) == ["b"]


async def test_same_seed_gives_the_same_ids() -> None:
    async with Broker(rng=random.Random(5)) as one, Broker(rng=random.Random(5)) as two:
        ids = [(b.cluster_id, b.create_topic("t").topic_id) for b in (one, two)]
    assert ids[0] == ids[1]


async def test_restart_gives_back_topics_ids_configs_and_offsets(tmp_path: Path) -> None:
    async with Broker(data_dir=tmp_path) as broker:
        kafka = handle(broker)
        await kafka.create_topic("kept", 3, {"max.message.bytes": "5000"})
        await kafka.create_topic("deleted")
        await kafka.produce("kept", 1, ROWS)
        await kafka.produce("deleted", 0, ROWS)
        old = broker.topics["deleted"].topic_id
        await kafka.delete_topic("deleted")
        async with kafka.raw() as client:
            first = await new_producer_id(client)
            assert (first, await new_producer_id(client)) == (0, 1)
        before = (broker.cluster_id, broker.topics["kept"].topic_id)

    async with Broker(data_dir=tmp_path) as broker:
        kafka = handle(broker)
        kept = broker.topics["kept"]
        assert (broker.cluster_id, kept.topic_id) == before
        assert (list(broker.topics), kept.partition_count) == (["kept"], 3)
        assert kept.config.max_message_bytes == 5000
        assert [partition.leader_epoch for partition in kept.partitions] == [0, 0, 0]
        await kafka.create_topic("deleted")
        assert broker.topics["deleted"].topic_id != old
        async with kafka.raw() as client:
            ends = [(await list_offset(client, "kept", -1, partition=p)).offset for p in range(3)]
            assert ends == [0, 3, 0]
            data = await fetch(client, "kept", fetch_partition(1))
            assert data.high_watermark == 3
            assert (await list_offset(client, "deleted", -1)).offset == 0
            assert await new_producer_id(client) > first
        assert await kafka.produce("kept", 1, ROWS) == 3

    async with Broker(data_dir=tmp_path) as broker:
        assert list(broker.topics) == ["kept", "deleted"]


async def test_what_was_acknowledged_is_kept_when_the_process_is_killed(tmp_path: Path) -> None:
    live, left = tmp_path / "some" / "where", tmp_path / "left"
    async with Broker(data_dir=live) as broker:
        kafka = handle(broker)
        await kafka.create_topic("deleted")
        await kafka.produce("deleted", 0, ROWS)
        (folder,) = await asyncio.to_thread(lambda: [*live.glob("deleted.*")])
        await kafka.create_topic("t")
        broker.add_partitions("t", 3)
        await kafka.delete_topic("deleted")
        await broker.disk.drained()
        assert not folder.exists()
        cluster_id = broker.cluster_id
        await asyncio.to_thread(_copy, live, left)
    async with Broker(data_dir=left) as broker:
        assert [(t.name, t.partition_count) for t in broker.topics.values()] == [("t", 3)]
        assert broker.cluster_id == cluster_id


async def test_cluster_id_is_kept_before_there_is_a_topic(tmp_path: Path) -> None:
    ids = []
    for _ in range(2):
        async with Broker(data_dir=tmp_path) as broker:
            ids.append(broker.cluster_id)
    assert ids[0] == ids[1]


async def test_unclean_restart_keeps_records_and_raises_the_epoch(tmp_path: Path) -> None:
    lost = tmp_path / "lost"
    async with Broker(data_dir=tmp_path / "data") as broker:
        await handle(broker).create_topic("t", 2)
        await handle(broker).produce("t", 0, ROWS)
        await asyncio.to_thread(_copy, tmp_path / "data", lost)  # as a killed process leaves it
    async with Broker(data_dir=lost) as broker:
        topic = broker.topics["t"]
        assert [partition.leader_epoch for partition in topic.partitions] == [1, 0]
        assert await handle(broker).produce("t", 0, ROWS) == 3
        async with RawClient(broker.bootstrap_servers) as client:
            fenced = await fetch(client, "t", fetch_partition(leader_epoch=0))
            assert fenced.error_code == 74
    async with Broker(data_dir=lost) as broker:
        topic = broker.topics["t"]
        assert [partition.leader_epoch for partition in topic.partitions] == [1, 0]
        assert topic.partitions[0].log.epochs.entries == [(0, 0), (1, 3)]


def _copy(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*")):
        copied = target / path.relative_to(source)
        if path.is_dir():
            copied.mkdir(parents=True)
        else:
            copied.parent.mkdir(parents=True, exist_ok=True)
            copied.write_bytes(path.read_bytes())


async def test_data_directory_belongs_to_one_broker(tmp_path: Path) -> None:
    async with Broker(data_dir=tmp_path):
        with pytest.raises(KafkaStorageError, match="another broker uses"):
            await Broker(data_dir=tmp_path).start()
    as_text: Any = str(tmp_path)
    async with Broker(config=BrokerConfig(data_dir=as_text)) as broker:
        assert broker.config.data_dir == tmp_path


WITHOUT_POSIX = """
import asyncio, os, sys
sys.modules["fcntl"] = None
for name in ("O_CLOEXEC", "pread", "pwrite", "writev", "fork", "register_at_fork"):
    if hasattr(os, name):
        delattr(os, name)
from aiokafka_lite.broker import Broker
import aiokafka_lite.cli.broker

async def main():
    async with Broker() as broker:
        broker.create_topic("t")
    await Broker(data_dir=sys.argv[1]).start()

asyncio.run(main())
"""


def test_without_posix_a_broker_runs_in_memory_and_says_what_a_data_directory_lacks(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_POSIX, tmp_path], capture_output=True, text=True
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith("aiokafka_lite.errors.KafkaStorageError: "), done.stderr
    assert "POSIX file locks" in last
    assert "keep records in memory" in last


async def test_data_directory_that_is_none_is_told(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a directory")
    with pytest.raises(KafkaStorageError, match=str(file)):
        await Broker(data_dir=file).start()
    newer = tmp_path / "newer"
    newer.mkdir()
    (newer / "cluster.json").write_text('{"format": 99}')
    with pytest.raises(KafkaStorageError, match="format 99"):
        await Broker(data_dir=newer).start()
    (newer / "cluster.json").write_text("{")
    with pytest.raises(KafkaStorageError, match=r"cluster\.json"):
        await Broker(data_dir=newer).start()


async def test_topic_deleted_halfway_is_gone_after_the_restart(tmp_path: Path) -> None:
    async with Broker(data_dir=tmp_path) as broker:
        await handle(broker).create_topic("t")
        await handle(broker).produce("t", 0, ROWS)
    leftover = tmp_path / "t.AAAAAAAAAAAAAAAAAAAAAA" / "0"
    leftover.mkdir(parents=True)
    async with Broker(config=BrokerConfig(data_dir=tmp_path)):
        assert not leftover.exists()
        assert len(await asyncio.to_thread(lambda: [*tmp_path.glob("t.*")])) == 1


@pytest.mark.every_loop
@pytest.mark.parametrize("turns", range(5))
async def test_connections_that_come_with_the_stop_are_closed(turns: int) -> None:
    broker = Broker()
    await broker.start()
    address = ("127.0.0.1", broker.node.address.port)
    # The kernel accepts these; how far the broker has got with them depends on the turns.
    clients = [socket.create_connection(address) for _ in range(3)]
    for _ in range(turns):
        await asyncio.sleep(0)
    await broker.stop()
    assert broker.connection_count == 0
    for client in clients:
        client.settimeout(5)
        try:
            assert client.recv(1) == b""
        except ConnectionResetError:
            pass  # never accepted, or aborted
        client.close()
    gc.collect()  # a transport left behind warns now
