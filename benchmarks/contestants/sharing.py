"""The process of a member of a share group. It takes its orders on standard input.

The first line names the group, and the second one ends the member. What it prints:

    ready VERSION                            before its consumer is made
    making|first|done NANOSECONDS CPU COUNT  monotonic time, the process's CPU time, records so far
    row PARTITION OFFSET DELIVERY BEGAN ENDED FATE    each delivery to a handler, at the end
    end

`java/Sharing.java` is the same for Java's client.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.measure import cpu_seconds

if TYPE_CHECKING:
    from confluent_kafka import Message, ShareConsumer

UNKNOWN: Final = 0
LOST: Final = 1
ACCEPTED: Final = 2
"""What the client reported of a record: nothing, that its lock is lost, that it is accepted."""
_POLL_S: Final = 0.1
MOST: Final = 10_000
"""As many records as the broker locks of all partitions, by its default."""
_TICK_S: Final = 0.005


@dataclass(slots=True)
class Row:
    """One delivery of a record to a handler; monotonic times in nanoseconds."""

    partition: int
    offset: int
    delivery_count: int
    began: int
    ended: int = 0
    fate: int = UNKNOWN

    def __str__(self) -> str:
        words = self.partition, self.offset, self.delivery_count, self.began, self.ended, self.fate
        return f"row {' '.join(map(str, words))}"


@dataclass(frozen=True, slots=True)
class Orders:
    """What a member is to do.

    Attributes:
        group: Its group.
        address: The cluster's.
        topic: What it subscribes to.
        concurrency: How many handlers run at a time.
        pause_s: How long a handler waits.
        expected: How many records to drain.
        is_stopped: Set when the member is to leave.
    """

    group: str
    address: str
    topic: str
    concurrency: int
    pause_s: float
    expected: int
    is_stopped: threading.Event


def _tell(word: str, count: int = 0) -> None:
    print(word, time.monotonic_ns(), int(cpu_seconds() * 1e9), count, flush=True)


# --- Ours ----------------------------------------------------------------------------------------
async def lite_take(orders: Orders) -> None:
    """Take a first record with ours, and hold it."""
    from aiokafka_lite import AIOKafkaShareConsumer

    _tell("making")
    async with AIOKafkaShareConsumer(
        orders.topic, bootstrap_servers=orders.address, group_id=orders.group
    ) as consumer:
        await consumer.getone()
        _tell("first", 1)
        await asyncio.to_thread(orders.is_stopped.wait)


async def lite_drain(orders: Orders) -> None:
    """Read records with ours as fast as it can; each read accepts those before."""
    from aiokafka_lite import AIOKafkaShareConsumer

    async with AIOKafkaShareConsumer(
        orders.topic, bootstrap_servers=orders.address, group_id=orders.group
    ) as consumer:
        found = await consumer.getmany(max_records=MOST, timeout_ms=None)
        count = sum(map(len, found.values()))
        _tell("first", count)
        while count < orders.expected and not orders.is_stopped.is_set():
            found = await consumer.getmany(max_records=MOST, timeout_ms=100)
            for records in found.values():
                for record in records:
                    count += record.value is not None
        _tell("done", count)


async def lite_handle(orders: Orders) -> None:
    """Handle records with `run` of ours."""
    from aiokafka_lite import AIOKafkaShareConsumer
    from aiokafka_lite.events import LeaseLost
    from aiokafka_lite.structs import ConsumerRecord

    rows: list[Row] = []
    latest: dict[tuple[int, int], Row] = {}

    async def handle(record: ConsumerRecord[bytes, bytes]) -> None:
        if not rows:
            _tell("first", 1)
        row = Row(record.partition, record.offset, record.delivery_count, time.monotonic_ns())
        rows.append(row)
        latest[row.partition, row.offset] = row
        try:
            await asyncio.sleep(orders.pause_s)
        finally:
            row.ended = time.monotonic_ns()

    async def listen() -> None:
        async for event in consumer.events():
            if isinstance(event, LeaseLost):
                for offset in range(*event.offsets):
                    row = latest.get((event.tp.partition, offset))
                    if row is not None:
                        row.fate = LOST

    async with AIOKafkaShareConsumer(
        orders.topic, bootstrap_servers=orders.address, group_id=orders.group
    ) as consumer:
        listening = asyncio.ensure_future(listen())
        running = asyncio.ensure_future(consumer.run(handle, concurrency=orders.concurrency))
        stopping = asyncio.ensure_future(asyncio.to_thread(orders.is_stopped.wait))
        await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
        await consumer.stop()
        await running
    await listening
    _report(rows)


# --- confluent-kafka -----------------------------------------------------------------------------
def _share_consumer(orders: Orders, **settings: str | int) -> ShareConsumer:
    from confluent_kafka import ShareConsumer

    consumer = ShareConsumer(
        {
            "bootstrap.servers": orders.address,
            "group.id": orders.group,
            "log_level": 2,
            **{name.replace("_", "."): setting for name, setting in settings.items()},
        }
    )
    consumer.subscribe([orders.topic])
    return consumer


def _polled(consumer: ShareConsumer) -> list[Message]:
    messages = list(consumer.poll(_POLL_S))
    for message in messages:
        if message.error() is not None:
            raise RuntimeError(str(message.error()))
    return messages


async def confluent_take(orders: Orders) -> None:
    """Take a first record with confluent-kafka, and hold it."""
    _tell("making")
    consumer = _share_consumer(orders)
    while not _polled(consumer):
        pass
    _tell("first", 1)
    await asyncio.to_thread(orders.is_stopped.wait)
    consumer.close()


async def confluent_drain(orders: Orders) -> None:
    """Read records with confluent-kafka as fast as it can; each poll accepts those before."""
    consumer = _share_consumer(orders)
    count = 0
    while not count:
        count = len(_polled(consumer))
    _tell("first", count)
    while count < orders.expected and not orders.is_stopped.is_set():
        for message in consumer.poll(_POLL_S):
            count += message.value() is not None
    _tell("done", count)
    consumer.close()


async def confluent_handle(orders: Orders) -> None:
    """Handle the records of each poll concurrently; the next poll sends what they came to."""
    rows: list[Row] = []
    latest: dict[tuple[int, int], Row] = {}

    def answered(offsets: object, error: object) -> None:
        assert isinstance(offsets, dict)
        for place, found in offsets.items():
            for offset in found:
                row = latest.get((place.partition, offset))
                if row is not None:
                    row.fate = ACCEPTED if error is None else LOST

    async def handle(row: Row) -> None:
        row.began = time.monotonic_ns()
        await asyncio.sleep(orders.pause_s)
        row.ended = time.monotonic_ns()

    consumer = _share_consumer(
        orders, share_acknowledgement_mode="explicit", max_poll_records=orders.concurrency
    )
    consumer.set_acknowledgement_commit_callback(answered)
    while not orders.is_stopped.is_set():
        messages = _polled(consumer)
        if messages and not rows:
            _tell("first", len(messages))
        new = []
        for message in messages:
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            row = Row(partition, offset, message.delivery_count() or 0, 0)
            latest[partition, offset] = row
            new.append(row)
        rows += new
        for start in range(0, len(new), orders.concurrency):
            await asyncio.gather(*map(handle, new[start : start + orders.concurrency]))
        for message in messages:
            consumer.acknowledge(message)
    consumer.close()
    _report(rows)


def _report(rows: Sequence[Row]) -> None:
    for row in rows:
        print(row)


# --- The process ---------------------------------------------------------------------------------
def _listen(is_stopped: threading.Event) -> None:
    sys.stdin.readline()
    is_stopped.set()


def main(client: str, way: str, *words: str) -> None:
    """Be a member by `client`'s function for a way: "take", "drain" or "handle"."""
    address, topic, concurrency, pause_ms, expected = words
    module = {"lite": "aiokafka_lite", "confluent": "confluent_kafka"}[client]
    print("ready", importlib.import_module(module).__version__, flush=True)
    orders = Orders(
        sys.stdin.readline().strip(),
        address,
        topic,
        int(concurrency),
        int(pause_ms) / 1000,
        int(expected),
        threading.Event(),
    )
    threading.Thread(target=_listen, args=(orders.is_stopped,), daemon=True).start()
    function: Callable[[Orders], Coroutine[None, None, None]] = globals()[f"{client}_{way}"]
    asyncio.run(function(orders))
    print("end", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
