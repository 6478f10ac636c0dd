"""Transactions outlive a broker that keeps its data in a directory, killed or stopped."""

from __future__ import annotations

import asyncio
import itertools
import re
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aiokafka_lite import records
from aiokafka_lite.broker import Broker
from aiokafka_lite.errors import CoordinatorNotAvailableError, UnstableOffsetCommitError
from aiokafka_lite.protocol.messages.transactions import EndTxnRequest
from aiokafka_lite.records import RecordSet
from tests.broker.transactions.offsets import commit as commit_offset
from tests.broker.transactions.offsets import fetched, settled
from tests.broker.transactions.requests import (
    PRODUCE_THAT_ADDS,
    VERSION_1,
    VERSION_2,
    Producer,
    await_transactions,
)
from tests.broker.wire import fetch, fetch_partition, list_offset
from tests.support.cluster import KafkaHandle
from tests.support.group_requests import GroupRequests, await_coordinator
from tests.support.programs import started
from tests.support.waiting import until
from tests.support.wire import RawClient

COMMITTED = 1
LATEST = -1


@asynccontextmanager
async def broker_on(data_dir: Path) -> AsyncIterator[tuple[Broker, KafkaHandle]]:
    async with Broker(data_dir=data_dir) as broker:
        handle = KafkaHandle("embedded", broker.bootstrap_servers)
        await await_transactions(handle)
        await await_coordinator(handle)
        await broker.node.transactions.until_loaded()
        yield broker, handle
    assert broker.failure is None


@pytest.fixture(params=["stopped", "killed"])
def how(request: pytest.FixtureRequest) -> str:
    """Whether the broker stops, or is gone with what it has written so far."""
    ended: str = request.param
    return ended


@asynccontextmanager
async def first_life(tmp_path: Path, how: str) -> AsyncIterator[tuple[Broker, KafkaHandle]]:
    """A broker whose directory ``tmp_path / "left"`` holds afterwards what it left behind."""
    async with broker_on(tmp_path / "live") as alive:
        yield alive
        if how == "killed":
            # What a process has written is in the files even when it gets no further.
            shutil.copytree(tmp_path / "live", tmp_path / "left")
    if how == "stopped":
        shutil.copytree(tmp_path / "live", tmp_path / "left")


async def committed_values(client: RawClient, topic: str, partition: int = 0) -> list[bytes]:
    """Return what a reader of committed records gets."""
    values: list[bytes] = []
    end = (
        await list_offset(client, topic, LATEST, partition=partition, isolation_level=COMMITTED)
    ).offset
    offset = 0
    while offset < end:
        data = await fetch(
            client, topic, fetch_partition(partition, offset), isolation_level=COMMITTED
        )
        aborted = [(a.producer_id, a.first_offset) for a in data.aborted_transactions or ()]
        found = RecordSet(
            topic,
            partition,
            memoryview(data.records or b""),
            fetch_offset=offset,
            aborted=aborted,
        )
        values += [record.value or b"" for record in found.take(10_000)]
        assert found.next_offset > offset
        offset = found.next_offset
    return values


def value_batch(producer: Producer, value: bytes, sequence: int) -> bytes:
    return records.build_batch(
        [(1, None, value, ())],
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        is_transactional=True,
    )


@pytest.mark.parametrize("version", [VERSION_1, VERSION_2])
async def test_decided_transaction_is_completed_after_the_restart(
    tmp_path: Path, how: str, version: int
) -> None:
    async with first_life(tmp_path, how) as (broker, kafka):
        topic = await kafka.create_topic("t", partitions=2)
        group = GroupRequests(kafka, "g")
        broker.transactions.hold_markers()
        async with kafka.raw() as client:
            producer = await Producer(client, "p").init()
            other = await Producer(client, "q").init()
            for one in (producer, other):
                await one.add(topic, 0, 1)
                for partition in (0, 1):
                    batch = value_batch(one, one.transactional_id.encode(), 0)
                    result = await one.try_produce(topic, batch, partition=partition)
                    assert result.error_code == 0
            await commit_offset(producer, group, topic, 7)
            await producer.end(commit=True, version=version)
            await other.end(commit=False, version=version)
            assert (await producer.describe()).transaction_state == "PrepareCommit"
            assert await committed_values(client, topic) == []
    async with broker_on(tmp_path / "left") as (_, kafka), kafka.raw() as client:
        again = Producer(client, "p")
        await again.until_state("CompleteCommit")
        await Producer(client, "q").until_state("CompleteAbort")
        for partition in (0, 1):
            assert await committed_values(client, "t", partition) == [b"p"]
        assert await settled(client, GroupRequests(kafka, "g"), "t") == 7
        await again.init()
        assert again.epoch == (1 if version == VERSION_1 else 2)


async def test_open_transaction_goes_on_after_the_restart(tmp_path: Path, how: str) -> None:
    async with first_life(tmp_path, how) as (_, kafka):
        topic = await kafka.create_topic("t")
        group = GroupRequests(kafka, "g")
        async with kafka.raw() as client:
            producer = await Producer(client, "p").init()
            await producer.add(topic)
            await producer.produce(topic, 2)
            await commit_offset(producer, group, topic, 7)
    async with broker_on(tmp_path / "left") as (_, kafka), kafka.raw() as client:
        producer.client = client
        assert (await producer.describe()).transaction_state == "Ongoing"
        assert await committed_values(client, "t") == []
        unstable = await fetched(client, GroupRequests(kafka, "g"), "t")
        assert unstable == (UnstableOffsetCommitError.errno, -1)
        assert await producer.produce("t", 1) == 2
        await producer.end(commit=True)
        await producer.until_state("CompleteCommit")
        assert len(await committed_values(client, "t")) == 3
        assert await settled(client, GroupRequests(kafka, "g"), "t") == 7


async def test_stopping_coordinator_leaves_transactions_to_the_next_start(tmp_path: Path) -> None:
    async with broker_on(tmp_path) as (broker, kafka):
        topic = await kafka.create_topic("t")
        async with kafka.raw() as client:
            producer = await Producer(client, "p").init()
            await producer.add(topic)
            broker.node.transactions.close()  # connections are closed later
            end = EndTxnRequest(
                transactional_id="p",
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                committed=True,
            )
            refused = await client.request(end, VERSION_1)
            assert refused.error_code == CoordinatorNotAvailableError.errno
    async with broker_on(tmp_path) as (_, kafka), kafka.raw() as client:
        producer.client = client
        assert (await producer.describe()).transaction_state == "Ongoing"
        await producer.end(commit=True)


async def test_transaction_times_out_across_the_restart(tmp_path: Path, how: str) -> None:
    async with first_life(tmp_path, how) as (broker, kafka):
        topic = await kafka.create_topic("t")
        async with kafka.raw() as client:
            producer = await Producer(client, "p", timeout_ms=900_000).init()
            await producer.add(topic)
            await producer.produce(topic, 2)
        later = broker.clock() + 900_000
    async with Broker(data_dir=tmp_path / "left", clock=lambda: later) as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        async with kafka.raw() as client:
            await Producer(client, "p").until_state("CompleteAbort")
            assert (await list_offset(client, "t", LATEST, isolation_level=COMMITTED)).offset == 3


async def test_ids_that_nobody_uses_are_forgotten_for_good(tmp_path: Path) -> None:
    now_ms = 1_800_000_000_000

    def open_broker() -> Broker:
        return Broker(
            data_dir=tmp_path, clock=lambda: now_ms, transactional_id_expiration_ms=60_000
        )

    async with open_broker() as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        await await_transactions(kafka)
        topic = await kafka.create_topic("t")
        async with kafka.raw() as client:
            await Producer(client, "idle").init()
            busy = await Producer(client, "busy").init()
            await busy.add(topic)
            now_ms += 59_999
            await broker.clean_logs()
            assert set(broker.node.transactions.transactions) == {"idle", "busy"}
            now_ms += 1
            await broker.clean_logs()
            assert set(broker.node.transactions.transactions) == {"busy"}
    async with open_broker() as broker:
        await broker.node.transactions.until_loaded()
        assert set(broker.node.transactions.transactions) == {"busy"}


async def _write_until_killed(
    kafka: KafkaHandle, topic: str, number: int, acknowledged: list[int]
) -> None:
    """Commit one transaction after the other, and note those that were acknowledged."""
    async with kafka.raw() as client:
        try:
            producer = await Producer(client, f"p{number}").init()
            for count in itertools.count():
                for partition in (0, 1):
                    batch = value_batch(producer, b"%d:%d" % (number, count), 0)
                    result = await producer.try_produce(
                        topic, batch, partition=partition, version=PRODUCE_THAT_ADDS
                    )
                    assert result.error_code == 0
                await producer.end(commit=count % 3 != 2, version=VERSION_2)
                acknowledged.append(count)
        except (OSError, asyncio.IncompleteReadError):
            pass  # it is dead


async def test_transactions_are_whole_after_kill_9(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "aiokafka_lite", "broker", "--listen", "127.0.0.1:0"]
    async with started(
        *command, "--data", str(tmp_path), stdout=asyncio.subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        banner = (await process.stdout.readline()).decode()
        found = re.search(r"127\.0\.0\.1:\d+", banner)
        assert found is not None, banner
        kafka = KafkaHandle("embedded", found.group())
        await await_transactions(kafka)
        topic = await kafka.create_topic("t", partitions=2)
        acknowledged: list[list[int]] = [[] for _ in range(4)]
        writing = asyncio.gather(
            *(_write_until_killed(kafka, topic, *each) for each in enumerate(acknowledged))
        )
        await until(lambda: any(len(counts) > 9 for counts in acknowledged))
        process.kill()  # in the middle of the next ones
        await writing
    async with broker_on(tmp_path) as (_, kafka), kafka.raw() as client:
        for number in range(4):
            await Producer(client, f"p{number}").init()  # aborts what is open
        seen = [await committed_values(client, "t", partition) for partition in (0, 1)]
        assert sorted(seen[0]) == sorted(seen[1])
        assert len(set(seen[0])) == len(seen[0])
        for number, counts in enumerate(acknowledged):
            mine = {int(value[2:]) for value in seen[0] if value.startswith(b"%d:" % number)}
            last = max(counts, default=-1)
            assert {c for c in mine if c <= last} == {c for c in counts if c % 3 != 2}
            # The one that was not answered any more may have been committed.
            assert max(mine, default=-1) <= last + 1
