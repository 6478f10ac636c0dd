"""What a start asks of brokers, on how many connections, and what a consumer weighs."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from aiokafka_lite import TopicPartition
from aiokafka_lite.broker import Broker
from aiokafka_lite.client.wire import Wire
from aiokafka_lite.errors import UnsupportedVersionError
from aiokafka_lite.protocol.prepared import AnyRequest
from tests.support import inside, tuning
from tests.support.programs import started
from tests.support.protocols import classic_only
from tests.support.reading import consumer_of
from tests.support.waiting import until

REPEATED: Final = ("Heartbeat", "ConsumerGroupHeartbeat", "OffsetCommit")


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as broker:
        broker.create_topic("t", 1)
        broker.produce("t", b"first")
        yield broker


def asked_by_connection(broker: Broker) -> list[list[str]]:
    """Return what was asked on each connection, but for what a member repeats."""
    asked: dict[str, list[str]] = {}
    for seen in broker.requests:
        if seen.api not in REPEATED:
            asked.setdefault(seen.peer, []).append(seen.api)
    return list(asked.values())


async def test_start_by_assign_asks_nothing_twice(broker: Broker) -> None:
    consumer = consumer_of(broker)
    await consumer.start()
    consumer.assign([TopicPartition("t", 0)])
    assert (await consumer.getone()).value == b"first"
    general, fetch = asked_by_connection(broker)
    await consumer.stop()
    # The first metadata are those of the brokers: nobody has said yet which topics matter.
    assert general == ["ApiVersions", "Metadata", "Metadata", "ListOffsets"]
    assert set(fetch) == {"Fetch"}


async def test_parts_of_a_start_that_failed_are_not_kept_by_the_next_start(broker: Broker) -> None:
    consumer = consumer_of(broker, "t")
    starting = asyncio.ensure_future(consumer.start())
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait([starting])
    del starting
    failed = inside.latest_parts(consumer)
    await consumer.start()
    gc.collect()
    assert failed() is None
    await consumer.stop()


async def test_partitions_assigned_before_the_start_are_read_with_the_metadata_of_the_start(
    broker: Broker,
) -> None:
    consumer = consumer_of(broker)
    consumer.assign([TopicPartition("t", 0)])
    await consumer.start()
    assert (await asyncio.wait_for(consumer.getone(), 10)).value == b"first"
    general, fetch = asked_by_connection(broker)
    await consumer.stop()
    assert general == ["ApiVersions", "Metadata", "ListOffsets"]
    assert set(fetch) == {"Fetch"}


async def test_the_connection_for_fetches_is_opened_while_it_is_asked_where_to_begin(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    create_connection = asyncio.get_running_loop().create_connection

    async def connecting(*arguments: Any, **options: Any) -> Any:
        steps.append("connect")
        return await create_connection(*arguments, **options)

    class Asking(Wire):
        def ask(self, pending: Any, request: AnyRequest[Any], *others: Any) -> bytes:
            steps.append(request.request_class.__name__)
            return super().ask(pending, request, *others)

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", connecting)
    tuning.wire_by(monkeypatch, Asking)
    async with consumer_of(broker) as consumer:
        with broker.on("ListOffsets").hold() as rule:
            consumer.assign([TopicPartition("t", 0)])
            await until(lambda: steps[-2:] == ["ListOffsetsRequest", "connect"])
            rule.release()
        assert (await consumer.getone()).value == b"first"


async def test_start_of_a_subscriber_asks_nothing_twice(broker: Broker) -> None:
    consumer = consumer_of(broker, "t")
    await consumer.start()
    assert (await consumer.getone()).value == b"first"
    general, fetch = asked_by_connection(broker)
    await consumer.stop()
    assert general == ["ApiVersions", "Metadata", "ListOffsets"]
    assert set(fetch) == {"Fetch"}


async def test_start_in_a_classic_group_asks_nothing_twice(broker: Broker) -> None:
    consumer = consumer_of(broker, "t", group_id="g", group_protocol="classic")
    await consumer.start()
    assert (await consumer.getone()).value == b"first"
    lanes = {asked[0]: asked for asked in asked_by_connection(broker)}
    await consumer.stop()
    assert len(lanes) == 3
    general = ["ApiVersions", "Metadata", "FindCoordinator", "OffsetFetch", "ListOffsets"]
    assert lanes["ApiVersions"] == general
    # The second time as the member that the broker made of it the first time (KIP-394).
    assert lanes["JoinGroup"] == ["JoinGroup", "JoinGroup", "SyncGroup"]
    assert set(lanes["Fetch"]) == {"Fetch"}


async def test_start_in_a_group_asks_nothing_twice(broker: Broker) -> None:
    consumer = consumer_of(broker, "t", group_id="g", group_protocol="consumer")
    await consumer.start()
    assert (await consumer.getone()).value == b"first"
    general, fetch = asked_by_connection(broker)
    await consumer.stop()
    assert general == ["ApiVersions", "Metadata", "FindCoordinator", "OffsetFetch", "ListOffsets"]
    assert set(fetch) == {"Fetch"}
    # To join, and to say what was taken.
    assert len(broker.requests.of("ConsumerGroupHeartbeat")) <= 3


@pytest.mark.parametrize(("why", "in_vain"), [("not offered", 0), ("switched off", 1)])
async def test_where_only_classic_is_to_be_had_a_start_costs_one_request_more_at_most(
    broker: Broker, why: str, in_vain: int
) -> None:
    if why == "not offered":
        broker.on("ApiVersions").answer(classic_only, times=None)
    else:
        broker.on("ConsumerGroupHeartbeat").fail(UnsupportedVersionError, times=None)
    consumer = consumer_of(broker, "t", group_id="g", group_protocol="auto")
    await consumer.start()
    assert (await consumer.getone()).value == b"first"
    assert len(broker.requests.of("ConsumerGroupHeartbeat")) == in_vain
    assert len(broker.requests.of("FindCoordinator")) == 1
    lanes = {asked[0]: asked for asked in asked_by_connection(broker)}
    await consumer.stop()
    assert lanes["JoinGroup"] == ["JoinGroup", "JoinGroup", "SyncGroup"]


# 54 and 76 KiB with CPython 3.11; objects differ in size from one Python to the next.
@pytest.mark.parametrize(
    ("way", "most_kib"), [pytest.param("no group", 60, marks=pytest.mark.slow), ("group", 80)]
)
async def test_consumer_that_waits_is_light(broker: Broker, way: str, most_kib: int) -> None:
    larger = 1.1 if sys.version_info < (3, 11) else 1.0  # as Python's objects are before 3.11
    async with started(
        *(sys.executable, "-m", "tests.consumer.programs.weighing"),
        *(broker.bootstrap_servers, "t", way, "50", str(most_kib * larger)),
        stdout=subprocess.PIPE,
    ) as program:
        output, _ = await program.communicate()
    assert program.returncode == 0
    assert float(output) < most_kib * larger
