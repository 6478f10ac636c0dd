"""The process of one member of a group, which reports what it was handed.

    python -m benchmarks.contestants.members CLIENT:PROTOCOL BOOTSTRAP TOPIC GROUP

It does what it is told on its standard input, a word a line: `start` makes the consumer and reads,
`count` tells how many records there were, `stop` (or the end) stops it. It says `ready` once the
client is imported and `first` at the first record; in the end it tells the count, and its `Report`.
"""

from __future__ import annotations

import asyncio
import struct
import sys
import threading
import time
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Final, Protocol, TypeVar

from benchmarks.replacements import Receipt, Report

STAMP: Final = struct.Struct(">qq")
"""A value: the record's number in its partition, from 0, and when it was handed to the producer."""
GET_S: Final = 0.1
# By the classic protocol members hear of a rebalance by the answer to a heartbeat. All have the
# same interval, as by default (3 s) chance decides who is waited for how long. By the consumer
# protocol the interval is the broker's, or the client's own business.
HEARTBEAT_INTERVAL_MS: Final = 250
CLASSIC: Final = ("range", "cooperative-sticky")
CONSUMER: Final = "consumer"


class Keeper:
    """Keeps what comes, for a client of any kind, and what the process was told."""

    def __init__(self) -> None:
        self.started: Final = threading.Event()
        self.ended: Final = threading.Event()
        self.began_ns = 0
        self.errors: Final[list[str]] = []
        self._partitions: Final = array("q")
        self._offsets: Final = array("q")
        self._times_ns: Final = array("q")

    def obey(self) -> None:
        """Do what the standard input says, until it ends."""
        for line in sys.stdin:
            word = line.strip()
            if word == "start":
                self.began_ns = time.monotonic_ns()
                self.started.set()
            elif word == "count":
                _say(str(len(self._offsets)))
            elif word == "stop":
                break
        self.ended.set()
        self.started.set()

    def take(self, partition: int, offset: int, value: object) -> None:
        """Take note of a record."""
        now_ns = time.monotonic_ns()
        assert isinstance(value, bytes)
        number, _ = STAMP.unpack(value)
        if number != offset:
            self.errors.append(f"partition {partition} has record {number} at offset {offset}")
        if not self._offsets:
            _say("first")
        self._partitions.append(partition)
        self._offsets.append(offset)
        self._times_ns.append(now_ns)

    def report(self, version: str) -> Report:
        """Return what was kept."""
        columns = zip(self._partitions, self._offsets, self._times_ns, strict=True)
        return Report(version, self.began_ns, [Receipt(*row) for row in columns], self.errors)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(subject: str, bootstrap_servers: str, topic: str, group: str) -> None:
    """Be a member."""
    client, _, protocol = subject.partition(":")
    member = MEMBERS[client](protocol, bootstrap_servers, topic, group)
    keeper = Keeper()
    threading.Thread(target=keeper.obey, daemon=True).start()
    _say("ready")
    keeper.started.wait()
    if not keeper.ended.is_set():
        member.read(keeper)
    report = keeper.report(member.version)
    _say(str(len(report.receipts)))
    _say(report.to_json())


class Member(Protocol):
    """A client that is imported and has its settings."""

    @property
    def version(self) -> str:
        """The client's version."""

    def read(self, keeper: Keeper) -> None:
        """Join, read until the keeper has been told to end, and leave."""


class _Confluent:
    def __init__(self, protocol: str, bootstrap_servers: str, topic: str, group: str) -> None:
        from benchmarks.contestants.confluent import VERSION

        self.version: Final = VERSION
        self._topic = topic
        self._settings: dict[str, str | int] = {
            "bootstrap.servers": bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
        }
        if protocol == CONSUMER:
            self._settings |= {"group.protocol": CONSUMER}
        else:
            self._settings |= {
                "partition.assignment.strategy": protocol,
                "heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
            }

    def read(self, keeper: Keeper) -> None:
        import confluent_kafka

        consumer = confluent_kafka.Consumer(self._settings)
        consumer.subscribe([self._topic])
        try:
            while not keeper.ended.is_set():
                message = consumer.poll(GET_S)
                if message is None:
                    continue
                if message.error() is not None:
                    keeper.errors.append(str(message.error()))
                    continue
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                keeper.take(partition, offset, message.value())
        finally:
            consumer.close()


class Partition(Protocol):
    """A topic and a partition, of either client."""

    @property
    def partition(self) -> int: ...


class Record(Protocol):
    """A record, of either client."""

    @property
    def offset(self) -> int: ...
    @property
    def value(self) -> object: ...


# Mappings are invariant in their keys: one type will not do for two clients.
PartitionT = TypeVar("PartitionT", bound=Partition)
GetMany = Callable[[], Awaitable[Mapping[PartitionT, Sequence[Record]]]]


class _Asyncio:
    """A client that has aiokafka's surface, by the name of its module."""

    def __init__(
        self, client: str, protocol: str, bootstrap_servers: str, topic: str, group: str
    ) -> None:
        self._module = import_module(client)
        self.version: Final[str] = self._module.__version__
        self._topic = topic
        self._settings: dict[str, object] = {
            "bootstrap_servers": bootstrap_servers,
            "group_id": group,
            "auto_offset_reset": "earliest",
        }
        if client == "aiokafka_lite":
            is_consumer = protocol == CONSUMER
            self._settings["group_protocol"] = CONSUMER if is_consumer else "classic"
        if protocol != CONSUMER:
            self._settings["heartbeat_interval_ms"] = HEARTBEAT_INTERVAL_MS
            self._settings["partition_assignment_strategy"] = (self._assignor(client, protocol),)

    @staticmethod
    def _assignor(client: str, protocol: str) -> object:
        if protocol == "cooperative-sticky":
            return import_module(client).CooperativeStickyPartitionAssignor
        return import_module(f"{client}.coordinator.assignors.range").RangePartitionAssignor

    def read(self, keeper: Keeper) -> None:
        asyncio.run(self._read(keeper))

    async def _read(self, keeper: Keeper) -> None:
        consumer = self._module.AIOKafkaConsumer(self._topic, **self._settings)
        await consumer.start()
        try:
            await self._take(partial(consumer.getmany, timeout_ms=round(GET_S * 1000)), keeper)
        finally:
            await consumer.stop()

    async def _take(self, getmany: GetMany[PartitionT], keeper: Keeper) -> None:
        while not keeper.ended.is_set():
            try:
                batches = await getmany()
            except Exception as error:  # noqa: BLE001 -- whatever it is, it is reported
                keeper.errors.append(repr(error))
                await asyncio.sleep(GET_S)
                continue
            for tp, batch in batches.items():
                for record in batch:
                    keeper.take(tp.partition, record.offset, record.value)


MEMBERS: Final[Mapping[str, Callable[[str, str, str, str], Member]]] = {
    "ours": partial(_Asyncio, "aiokafka_lite"),
    "aiokafka": partial(_Asyncio, "aiokafka"),
    "confluent": _Confluent,
}

if __name__ == "__main__":
    main(*sys.argv[1:])
