"""The process of one reader: a consumer in a group of its own, with the same settings for all.

    python -m tests.support.failover.reader CLIENT BOOTSTRAP TOPIC GROUP JOURNAL

It stops when its standard input ends.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol, TypeAlias, TypeVar

from tests.support.failover.journal import Failed, JournalWriter, Rebalanced, Received
from tests.support.failover.writer import VALUE

GET_S: Final = 0.1
# What the three have in common. Everything else is each client's default.
SESSION_TIMEOUT_MS: Final = 10_000
HEARTBEAT_INTERVAL_MS: Final = 3_000
AUTO_COMMIT_INTERVAL_MS: Final = 1_000


class Partition(Protocol):
    """A topic and a partition, of whichever client."""

    @property
    def partition(self) -> int: ...


class Record(Protocol):
    """A record, of whichever client."""

    @property
    def offset(self) -> int: ...
    @property
    def value(self) -> object: ...


class Keeper:
    """Writes down what comes, for a client of any kind."""

    def __init__(self, path: Path) -> None:
        self._journal = JournalWriter(path)

    def received(self, partition: int, offset: int, value: object) -> None:
        assert isinstance(value, bytes)
        sequence, sent_ns = VALUE.unpack(value)
        entry = Received(partition, sequence, offset, sent_ns, time.monotonic_ns())
        self._journal.note(entry)

    def rebalanced(self, partitions: Iterable[Partition], *, is_assigned: bool) -> None:
        indexes = sorted(each.partition for each in partitions)
        self._journal.note(Rebalanced(is_assigned, indexes, time.monotonic_ns()))
        self._journal.flush()

    def failed(self, error: object) -> None:
        self._journal.note(Failed(repr(error), time.monotonic_ns()))

    def flush(self) -> None:
        self._journal.flush()


def main(client: str, bootstrap_servers: str, topic: str, group: str, path: Path) -> None:
    """Read until the standard input ends."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    keeper = Keeper(path)
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(ended,), daemon=True).start()
    READERS[client](bootstrap_servers, topic, group, keeper, ended)
    keeper.flush()


def _wait_for_end(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


def _read_confluent(
    bootstrap_servers: str, topic: str, group: str, keeper: Keeper, ended: threading.Event
) -> None:
    import confluent_kafka

    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
            "auto.commit.interval.ms": AUTO_COMMIT_INTERVAL_MS,
        }
    )

    def assigned(_: object, partitions: Sequence[confluent_kafka.TopicPartition]) -> None:
        keeper.rebalanced(partitions, is_assigned=True)

    def revoked(_: object, partitions: Sequence[confluent_kafka.TopicPartition]) -> None:
        keeper.rebalanced(partitions, is_assigned=False)

    consumer.subscribe([topic], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
    flushed = time.monotonic()
    while not ended.is_set():
        message = consumer.poll(GET_S)
        if message is not None:
            if message.error() is not None:
                keeper.failed(message.error())
            else:
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                keeper.received(partition, offset, message.value())
        if time.monotonic() - flushed > GET_S:
            flushed = time.monotonic()
            keeper.flush()
    keeper.flush()
    consumer.close()


# Mappings are invariant in their keys: one type will not do for two clients.
PartitionT = TypeVar("PartitionT", bound=Partition)
GetMany: TypeAlias = Callable[[], Awaitable[Mapping[PartitionT, Sequence[Record]]]]


async def _read_asyncio(
    getmany: GetMany[PartitionT], keeper: Keeper, ended: threading.Event
) -> None:
    try:
        while not ended.is_set():
            try:
                batches = await getmany()
            except Exception as error:  # noqa: BLE001 -- whatever it is, it is written down
                keeper.failed(error)
                await asyncio.sleep(GET_S)
                continue
            for tp, batch in batches.items():
                for record in batch:
                    keeper.received(tp.partition, record.offset, record.value)
            keeper.flush()
    finally:
        keeper.flush()


def _read_awaiting(
    client: str,
    bootstrap_servers: str,
    topic: str,
    group: str,
    keeper: Keeper,
    ended: threading.Event,
) -> None:
    """Read with a client that has aiokafka's surface, by the name of its module."""
    module = import_module(client)

    class Listener(module.ConsumerRebalanceListener):  # type: ignore[misc, name-defined] # either's
        def on_partitions_assigned(self, assigned: Iterable[Partition]) -> None:
            keeper.rebalanced(assigned, is_assigned=True)

        def on_partitions_revoked(self, revoked: Iterable[Partition]) -> None:
            keeper.rebalanced(revoked, is_assigned=False)

    async def read() -> None:
        consumer = module.AIOKafkaConsumer(
            bootstrap_servers=bootstrap_servers,
            group_id=group,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            auto_commit_interval_ms=AUTO_COMMIT_INTERVAL_MS,
            # The protocol that the others speak; they have no such argument.
            **({"group_protocol": "classic"} if client == "aiokafka_lite" else {}),
        )
        consumer.subscribe([topic], listener=Listener())
        await consumer.start()
        try:
            getmany = partial(consumer.getmany, timeout_ms=int(GET_S * 1000))
            await _read_asyncio(getmany, keeper, ended)
        finally:
            await consumer.stop()

    asyncio.run(read())


Read = Callable[[str, str, str, Keeper, threading.Event], None]
READERS: Final[Mapping[str, Read]] = {
    "lite": partial(_read_awaiting, "aiokafka_lite"),
    "aiokafka": partial(_read_awaiting, "aiokafka"),
    "confluent": _read_confluent,
}

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], Path(sys.argv[5]))
