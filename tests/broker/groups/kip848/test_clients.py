"""Other people's consumers with group.protocol=consumer against the embedded broker."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from aiokafka_lite import _compat
from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.groups.kip848.group import ConsumerGroup
from aiokafka_lite.broker.thread import BrokerThread
from tests.broker.groups.kip848.requests import ConsumerGroupRequests
from tests.support.cluster import KafkaHandle
from tests.support.group_requests import await_coordinator
from tests.support.java import JavaTools
from tests.support.java_runner import JavaRunner
from tests.support.programs import started

PARTITIONS = 4
RECORDS_EACH = 25
VALUES = {f"{p}-{n}".encode() for p in range(PARTITIONS) for n in range(RECORDS_EACH)}
# Members learn of a rebalance by their next heartbeat.
QUICK = BrokerConfig(group_consumer_heartbeat_interval_ms=50)
TIMEOUT_S = 30.0


# -- confluent-kafka ----------------------------------------------------------------------------


@pytest.fixture
def thread() -> Iterator[BrokerThread]:
    """A broker for blocking clients, with a topic that has records."""
    with BrokerThread(QUICK) as thread:
        asyncio.run(fill(thread.bootstrap_servers, "t"))
        yield thread
    thread.raise_if_failed()


async def fill(address: str, topic: str) -> None:
    kafka = KafkaHandle("embedded", address)
    await await_coordinator(kafka)
    await kafka.create_topic(topic, partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        rows = [(None, f"{partition}-{n}".encode()) for n in range(RECORDS_EACH)]
        await kafka.produce(topic, partition, rows)


@contextmanager
def consuming(
    thread: BrokerThread, topic: str, **settings: str | int | bool
) -> Iterator[confluent_kafka.Consumer]:
    config: dict[str, str | int | bool] = {
        "bootstrap.servers": thread.bootstrap_servers,
        "group.id": "g",
        "group.protocol": "consumer",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "topic.metadata.refresh.interval.ms": 100,
    }
    config.update({name.replace("_", "."): value for name, value in settings.items()})
    consumer = confluent_kafka.Consumer(config)
    try:
        consumer.subscribe([topic])
        yield consumer
    finally:
        consumer.close()


class Reader:
    """Polls several consumers in turn, until something is so."""

    def __init__(self, thread: BrokerThread, *consumers: confluent_kafka.Consumer) -> None:
        self.thread = thread
        self.consumers = [*consumers]
        self.seen: Counter[bytes] = Counter()

    def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(int(TIMEOUT_S / 0.01)):
            if condition():
                return
            for consumer in self.consumers:
                for message in consumer.consume(100, 0.01):
                    assert message.error() is None, message.error()
                    self.seen[message.value() or b""] += 1
        raise TimeoutError([consumer.assignment() for consumer in self.consumers])

    def until_shared(self, *counts: int) -> None:
        """Wait until the consumers have so many partitions, in whatever order."""
        self.until(lambda: sorted(len(c.assignment()) for c in self.consumers) == sorted(counts))

    def until_all_seen(self) -> None:
        self.until(lambda: all(value in self.seen for value in VALUES))

    def until_all_read(self) -> None:
        """Wait until each consumer is at the end of its partitions: it can commit there."""
        self.until(
            lambda: all(
                tp.offset == RECORDS_EACH
                for consumer in self.consumers
                for tp in consumer.position(consumer.assignment())
            )
        )


def group_of(thread: BrokerThread) -> ConsumerGroup:
    group = thread.broker.node.groups.groups["g"]
    assert isinstance(group, ConsumerGroup)
    return group


def test_confluent_members_share_a_topic_while_others_come_and_go(thread: BrokerThread) -> None:
    with consuming(thread, "t") as first:
        reader = Reader(thread, first)
        reader.until_shared(4)
        with consuming(thread, "t") as second:
            reader.consumers.append(second)
            reader.until_shared(2, 2)
            with consuming(thread, "t") as third:
                reader.consumers.append(third)
                reader.until_shared(1, 1, 2)
                reader.until_all_read()
                for consumer in reader.consumers:
                    consumer.commit(asynchronous=False)
                reader.consumers.remove(third)
            reader.until_shared(2, 2)
            reader.consumers.remove(second)
        reader.until_shared(4)
        tps = [confluent_kafka.TopicPartition("t", p) for p in range(PARTITIONS)]
        committed = [tp.offset for tp in first.committed(tps, timeout=5)]
        assert committed == [RECORDS_EACH] * PARTITIONS
        assert set(reader.seen) == VALUES
    assert group_of(thread).is_empty


def test_confluent_member_resumes_where_another_committed(thread: BrokerThread) -> None:
    with consuming(thread, "t") as first:
        reader = Reader(thread, first)
        reader.until_all_seen()
        first.commit(asynchronous=False)
    rows = [(None, b"one more")]
    asyncio.run(KafkaHandle("embedded", thread.bootstrap_servers).produce("t", 0, rows))
    with consuming(thread, "t") as second:
        reader = Reader(thread, second)
        reader.until(lambda: bool(reader.seen))
        assert reader.seen == {b"one more": 1}


def test_confluent_static_member_gets_its_partitions_back(thread: BrokerThread) -> None:
    with consuming(thread, "t", group_instance_id="one") as first:
        with consuming(thread, "t", group_instance_id="two") as second:
            reader = Reader(thread, first, second)
            reader.until_shared(2, 2)
            before = sorted(tp.partition for tp in second.assignment())
            reader.consumers.remove(second)
        reader.until_shared(2)  # its place is kept
        assert len(group_of(thread).members) == 2
        with consuming(thread, "t", group_instance_id="two") as second:
            reader.consumers.append(second)
            reader.until_shared(2, 2)
            assert sorted(tp.partition for tp in second.assignment()) == before


def test_confluent_members_subscribe_by_regular_expression(thread: BrokerThread) -> None:
    with consuming(thread, "^t$|^made-.*") as consumer:
        reader = Reader(thread, consumer)
        reader.until_shared(4)
        reader.until_all_seen()


def test_confluent_member_gets_new_partitions(thread: BrokerThread) -> None:
    with consuming(thread, "t") as consumer:
        reader = Reader(thread, consumer)
        reader.until_shared(4)
        admin = AdminClient({"bootstrap.servers": thread.bootstrap_servers})
        growth = [NewPartitions("t", 6)]
        admin.create_partitions(growth)["t"].result(5)
        reader.until_shared(6)


def test_confluent_member_joins_again_when_its_session_has_expired(thread: BrokerThread) -> None:
    with consuming(thread, "t") as consumer:
        reader = Reader(thread, consumer)
        reader.until_shared(4)
        (member_id,) = group_of(thread).members
        thread.call(lambda broker: broker.expire_session("g", member_id))
        assert not group_of(thread).members
        reader.until(lambda: bool(group_of(thread).members))
        reader.until_shared(4)


# -- Kafka's own tools --------------------------------------------------------------------------

GROUP_COMMAND = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
GROUP_FORMATTER = "org.apache.kafka.tools.consumer.GroupMetadataMessageFormatter"
VERIFIABLE_CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(config=QUICK) as broker:
        await fill(broker.bootstrap_servers, "t")
        yield broker
    assert broker.failure is None


@pytest.mark.java
async def test_java_consumer_consumes_and_commits(broker: Broker, java_runner: JavaRunner) -> None:
    total = PARTITIONS * RECORDS_EACH
    result = await asyncio.to_thread(
        java_runner.run, "console-consumer", "--bootstrap-server", broker.bootstrap_servers,
        "--topic", "t", "--group", "g", "--command-property", "group.protocol=consumer",
        "--from-beginning", "--max-messages", str(total), "--timeout-ms", "20000",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert {line.encode() for line in result.stdout.splitlines()} == VALUES
    group = ConsumerGroupRequests(KafkaHandle("embedded", broker.bootstrap_servers), "g")
    committed = [(await group.fetch("t", p)).committed_offset for p in range(PARTITIONS)]
    assert committed == [RECORDS_EACH] * PARTITIONS
    assert (await group.described()).group_state == "Empty"


class Verifiable:
    """A VerifiableConsumer that runs; it tells what happens to it, one JSON object a line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.events: list[dict[str, object]] = []

    async def until(self, name: str, **facts: object) -> None:
        """Read events up to one of this name with these facts."""
        assert self._process.stdout is not None
        async with _compat.timeout(TIMEOUT_S):
            while True:
                line = await self._process.stdout.readline()
                assert line, "it has ended"
                event: dict[str, object] = json.loads(line)
                self.events.append(event)
                if event["name"] == name and facts.items() <= event.items():
                    return

    async def stop(self) -> None:
        if self._process.returncode is None:
            self._process.terminate()
            await self._process.communicate()


@asynccontextmanager
async def verifiable(
    broker: Broker, java_tools: JavaTools, *arguments: str
) -> AsyncIterator[Verifiable]:
    command = java_tools.command(
        VERIFIABLE_CONSUMER, "--bootstrap-server", broker.bootstrap_servers, "--topic", "t",
        "--group-protocol", "consumer", "--group-id", "g", "--reset-policy", "earliest",
        *arguments,
    )  # fmt: skip
    async with started(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    ) as process:
        consumer = Verifiable(process)
        yield consumer
        await consumer.stop()


@pytest.mark.java
@pytest.mark.slow
@pytest.mark.parametrize("assignor", ["uniform", "range"])
async def test_java_members_rebalance_and_are_described(
    broker: Broker, java_tools: JavaTools, assignor: str
) -> None:
    at = ("--bootstrap-server", broker.bootstrap_servers, "--describe", "--group", "g")
    choice = ("--group-remote-assignor", assignor)
    async with verifiable(broker, java_tools, *choice, "--group-instance-id", "one") as first:
        await first.until("partitions_assigned")
        await first.until("records_consumed")
        async with verifiable(broker, java_tools, *choice) as second:
            await first.until("partitions_revoked")
            await second.until("partitions_assigned")
            group = ConsumerGroupRequests(KafkaHandle("embedded", broker.bootstrap_servers), "g")
            for _ in range(500):
                described = await group.described()
                if (described.group_state, len(described.members)) == ("Stable", 2):
                    break
                await asyncio.sleep(0.02)
            state = await java_tools.run(GROUP_COMMAND, *at, "--state")
            assert state.returncode == 0, state.stderr
            assert {assignor, "Stable"} <= {*state.stdout.split()}
            members = await java_tools.run(GROUP_COMMAND, *at, "--members", "--verbose")
            assert members.returncode == 0, members.stderr
            assert "one" in members.stdout
            assert members.stdout.count("t:") == 2 * 2, members.stdout
        await first.until("partitions_assigned")
    listed = await java_tools.run(
        GROUP_COMMAND, "--bootstrap-server", broker.bootstrap_servers, "--list", "--type",
        "consumer", "--state",
    )  # fmt: skip
    assert listed.returncode == 0, listed.stderr
    assert "g" in listed.stdout


@pytest.mark.java
async def test_kafkas_formatter_prints_the_record_of_a_group(
    broker: Broker, java_runner: JavaRunner
) -> None:
    group = ConsumerGroupRequests(KafkaHandle("embedded", broker.bootstrap_servers), "printed")
    member = await group.member()
    partition = broker.node.groups.partition_for("printed")
    result = await asyncio.to_thread(
        java_runner.run, "console-consumer", "--bootstrap-server", broker.bootstrap_servers,
        "--topic", "__consumer_offsets", "--partition", str(partition), "--offset", "earliest",
        "--formatter", GROUP_FORMATTER, "--max-messages", "2", "--timeout-ms", "20000",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    created, stable = json.loads("[" + result.stdout.replace("}{", "},{") + "]")
    assert created["key"] == stable["key"] == {"type": 2, "data": {"group": "printed"}}
    assert created["value"]["data"]["members"] == []
    assert stable["value"]["version"] == 3
    assert stable["value"]["data"]["generation"] == member.generation
    (printed,) = stable["value"]["data"]["members"]
    assert printed["memberId"] == member.member_id
