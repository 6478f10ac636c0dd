"""What tests do with a broker without a client, beside what clients see of it."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import aiokafka
import pytest

from aiokafka_lite import TopicPartition
from aiokafka_lite.broker import Broker, BrokerConfig, NewRecord
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import (
    CoordinatorNotAvailableError,
    ForkedError,
    InvalidRecordError,
    InvalidTopicError,
    LeaderNotAvailableError,
    MessageSizeTooLargeError,
    UnknownTopicOrPartitionError,
    WrongLoopError,
)
from aiokafka_lite.records import ControlType, build_batch, control_batch
from aiokafka_lite.records.partitioner import partition_for_key
from tests.support.for_each import for_each


async def test_clients_read_what_was_written_directly() -> None:
    async with Broker() as broker:
        broker.create_topic("t", 2)
        written = broker.produce(
            "t", "välue", key="k", headers=[("h", "x"), ("none", None)], timestamp_ms=7, partition=1
        )
        assert (written.topic_partition, written.offset) == (TopicPartition("t", 1), 0)
        assert (written.timestamp, written.timestamp_type) == (7, 0)
        async with aiokafka.AIOKafkaConsumer(
            "t", bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest"
        ) as consumer:
            record = await asyncio.wait_for(consumer.getone(), 20)
        assert (record.partition, record.offset, record.timestamp) == (1, 0, 7)
        assert (record.key, record.value) == (b"k", "välue".encode())
        assert record.headers == (("h", b"x"), ("none", None))


@for_each(
    [
        ({"value": {"a": 1}}, r"value must be bytes, a str \(written in UTF-8\) or None, not dict"),
        ({"value": "v", "key": 42}, "key must be bytes, .* not int"),
        ({"value": "v", "headers": [("h", 1.5)]}, "header 'h' must be bytes, .* not float"),
        ({"value": "v", "headers": [(b"h", "x")]}, "a header's name must be a str, not bytes"),
        ({"value": "v", "headers": {"trace": "a1"}}, "pairs of name and value.*, not 'trace'"),
    ]
)
def test_what_cannot_be_written_is_told_what_can(given: dict[str, Any], what: str) -> None:
    with BrokerThread() as broker:
        with pytest.raises(TypeError, match=what):
            broker.produce("t", **given)
        assert broker.records("t") == []
        broker.produce("t", "next")
        assert [record.offset for record in broker.records("t")] == [0]


def test_all_kinds_of_bytes_are_written() -> None:
    with BrokerThread() as broker:
        values: list[Any] = [bytearray(b"v"), memoryview(b"v"), b"v", "v"]
        for value in values:
            broker.produce("t", value)
        assert {record.value for record in broker.records("t")} == {b"v"}


async def test_write_wakes_a_consumer_that_waits() -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        async with aiokafka.AIOKafkaConsumer(
            "t", bootstrap_servers=broker.bootstrap_servers, fetch_max_wait_ms=60_000
        ) as consumer:
            await consumer.seek_to_end()
            get = asyncio.create_task(consumer.getone())
            await broker.wait_until(lambda: len(broker.purgatory) > 0)
            broker.produce("t", "now")
            assert (await asyncio.wait_for(get, 20)).value == b"now"


async def test_records_are_those_that_clients_wrote() -> None:
    async with Broker() as broker:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, compression_type="gzip"
        ) as producer:
            for number in range(3):
                await producer.send_and_wait("t", b"%d" % number, key=b"k", headers=[("h", b"x")])
        assert [record.value for record in broker.records("t")] == [b"0", b"1", b"2"]
        first = broker.records("t", 0)[0]
        assert (first.topic, first.partition, first.offset) == ("t", 0, 0)
        assert (first.key, first.headers) == (b"k", (("h", b"x"),))


async def test_many_records_take_many_batches_and_keep_their_order() -> None:
    records = [NewRecord(b"%06d" % n * 100, f"key-{n % 7}") for n in range(3_000)]
    async with Broker() as broker:
        broker.create_topic("t", 3)
        written = broker.produce_all("t", records, codec="zstd")
        for metadata, record in zip(written, records, strict=True):
            assert isinstance(record.key, str)
            assert metadata.partition == partition_for_key(record.key.encode(), 3)
        by_place = {(each.partition, each.offset): each.value for each in broker.records("t")}
        assert len(by_place) == 3_000
        assert [by_place[each.partition, each.offset] for each in written] == [
            record.value for record in records
        ]


async def test_records_without_a_key_are_spread() -> None:
    async with Broker(num_partitions=3) as broker:
        broker.produce_all("t", [NewRecord("x")] * 7)
        broker.produce("t", "x")
        assert broker.end_offsets("t") == [3, 3, 2]


async def test_what_a_producer_would_be_refused_is_refused() -> None:
    async with Broker(auto_create_topics=False) as broker:
        with pytest.raises(UnknownTopicOrPartitionError):
            broker.produce("none", "x")
        broker.create_topic("compacted", 1, {"cleanup.policy": "compact"})
        with pytest.raises(InvalidRecordError, match="has no key"):
            broker.produce("compacted", "x")
        broker.create_topic("small", 1, {"max.message.bytes": "500"})
        with pytest.raises(MessageSizeTooLargeError):
            broker.produce("small", "x" * 501)
        with pytest.raises(UnknownTopicOrPartitionError, match="partition count is 1"):
            broker.produce("small", "x", partition=1)
        await broker.open_internal_topic("__consumer_offsets")
        with pytest.raises(InvalidTopicError):
            broker.produce("__consumer_offsets", "x")
        # Batches are as small as the topic wants them.
        broker.produce_all("small", [NewRecord("x" * 100, headers=[("h", "y" * 20)])] * 50)
        assert broker.end_offsets("small") == [50]


async def test_topic_with_the_brokers_time_says_so() -> None:
    async with Broker(clock=lambda: 99) as broker:
        broker.create_topic("t", 1, {"message.timestamp.type": "LogAppendTime"})
        written = broker.produce("t", "x", timestamp_ms=1)
        assert (written.timestamp, written.timestamp_type) == (99, 1)
        (record,) = broker.records("t")
        assert (record.timestamp, record.timestamp_type) == (99, 1)


async def test_reading_starts_where_the_log_does() -> None:
    async with Broker() as broker:
        broker.produce_all("t", [NewRecord(str(n)) for n in range(5)])
        broker.partition("t", 0).delete_before(3)
        assert [record.value for record in broker.records("t")] == [b"3", b"4"]
        for topic, partition in (("none", None), ("t", 1)):
            with pytest.raises(UnknownTopicOrPartitionError):
                broker.records(topic, partition)


async def test_topic_without_a_leader_takes_nothing() -> None:
    async with Broker(nodes=2) as broker:
        broker.create_topic("t", 1, replication_factor=1)
        await broker.stop_node(broker.leader_of(TopicPartition("t", 0)))
        with pytest.raises(LeaderNotAvailableError):
            broker.produce("t", "x")


async def test_committed_records_are_told_from_aborted_and_open_ones() -> None:
    async with Broker() as broker:
        broker.produce("t", "plain")
        partition = broker.partition("t", 0)
        for producer_id, value, end in (
            (1, b"aborted", ControlType.ABORT),
            (2, b"committed", ControlType.COMMIT),
            (3, b"open", None),
        ):
            partition.append(
                build_batch(
                    [(0, None, value, ())],
                    producer_id=producer_id,
                    producer_epoch=0,
                    base_sequence=0,
                    is_transactional=True,
                )
            )
            if end is not None:
                partition.append(
                    control_batch(end, producer_id=producer_id, producer_epoch=0, timestamp_ms=0)
                )
        broker.produce("t", "behind")
        values = [record.value for record in broker.records("t")]
        assert values == [b"plain", b"aborted", b"committed", b"open", b"behind"]
        committed = broker.records("t", isolation_level="read_committed")
        assert [record.value for record in committed] == [b"plain", b"committed"]


async def test_wait_for_records_ends_when_they_are_there() -> None:
    async with Broker() as broker:
        loop = asyncio.get_running_loop()
        loop.call_later(0.01, broker.produce, "t", "one")  # which creates the topic
        loop.call_later(0.03, broker.produce, "t", "two")
        found = await broker.wait_for_records("t", 2)
        assert [record.value for record in found] == [b"one", b"two"]


@pytest.mark.virtual_time
async def test_waiting_in_vain_says_what_is_missing() -> None:
    async with Broker() as broker:
        broker.produce("t", "x")
        with pytest.raises(TimeoutError, match=r"'t' has 1 records, but at least 2 .*, after 7 s"):
            await broker.wait_for_records("t", 2, timeout_s=7)
        with pytest.raises(TimeoutError, match="topic 'none' has 0 records"):
            await broker.wait_for_records("none")
        with pytest.raises(TimeoutError, match=r"group 'g' has not committed .*: 1 of t-0"):
            await broker.wait_for_commits("g", "t")
        with pytest.raises(
            TimeoutError, match=r"group 'g' has 0 members \(state: not found\), but at least 2"
        ):
            await broker.wait_for_members("g", 2)
        with pytest.raises(TimeoutError, match="there is no topic 'none'"):
            await broker.wait_for_commits("g", "none")


async def test_wait_for_commits_ends_when_a_group_has_read_all() -> None:
    async with Broker(num_partitions=2) as broker:
        broker.produce_all("t", [NewRecord(str(n), partition=0) for n in range(3)])
        async with aiokafka.AIOKafkaConsumer(
            "t",
            bootstrap_servers=broker.bootstrap_servers,
            group_id="g",
            auto_offset_reset="earliest",
            auto_commit_interval_ms=10,
        ) as consumer:
            await broker.wait_for_members("g")
            for _ in range(3):
                await consumer.getone()
            committed = await broker.wait_for_commits("g", "t")
        assert committed[TopicPartition("t", 0)] == 3
        assert broker.committed("g") == committed
        assert broker.committed("nobody") == {}


async def test_committed_returns_no_stale_offsets_while_the_coordinator_loads() -> None:
    tp = TopicPartition("t", 0)
    async with Broker(nodes=2) as broker:
        broker.create_topic("t", 1)
        async with AIOKafkaConsumer(
            bootstrap_servers=broker.bootstrap_servers, group_id="g", enable_auto_commit=False
        ) as consumer:
            consumer.assign([tp])
            for offset in range(1, 151):  # more than are read at once
                await consumer.commit({tp: offset})
        broker.move_coordinator("g")
        found = [broker.committed("g")]
        while found[-1] != {tp: 150}:
            await asyncio.sleep(0)
            found.append(broker.committed("g"))
        assert found[:-1] == [{}] * (len(found) - 1)


# The same from another thread


def test_thread_does_what_the_broker_does() -> None:
    with BrokerThread() as broker:
        assert broker.produce("t", "a", key="k").offset == 0
        broker.produce_all("t", (NewRecord(value) for value in "bc"))
        assert [record.value for record in broker.records("t")] == [b"a", b"b", b"c"]
        assert [record.value for record in broker.wait_for_records("t", 3)] == [b"a", b"b", b"c"]
        assert broker.committed("g") == {}
        broker.wait_until(lambda inner: inner.end_offsets("t") == [3])
        with pytest.raises(TimeoutError):
            broker.wait_for_commits("g", "t", timeout_s=0.01)


def test_thread_moves_leaders_and_stops_nodes() -> None:
    tp = TopicPartition("t", 0)
    with BrokerThread(BrokerConfig(nodes=3)) as broker:
        broker.create_topic("t", 1)
        first = broker.leader_of(tp)
        moved_to = broker.move_leader(tp)
        assert broker.leader_of(tp) == moved_to != first
        broker.stop_node(moved_to)
        third = broker.leader_of(tp)
        assert third != moved_to
        broker.start_node(moved_to)
        broker.hold_replica(tp, moved_to)
        broker.release_replica(tp, moved_to)
        with pytest.raises(CoordinatorNotAvailableError, match="start a member of the group"):
            broker.move_coordinator("g")
        broker.run(lambda broker: broker.open_internal_topic("__consumer_offsets"))
        coordinator = broker.coordinator_of("g")
        assert broker.move_coordinator("g") == broker.coordinator_of("g") != coordinator
        broker.produce("t", "x")
        broker.add_partitions("t", 3)
        assert broker.end_offsets("t") == [1, 0, 0]
        broker.recreate_topic("t")
        assert broker.end_offsets("t") == [0, 0, 0]


async def test_waiting_in_a_coroutine_is_refused_with_the_way_out() -> None:
    with BrokerThread() as broker:
        for wait in (
            lambda: broker.wait_for_records("t"),
            lambda: broker.wait_for_commits("g", "t"),
            lambda: broker.wait_until(lambda _: True),
            lambda: broker.wait_for_members("g"),
        ):
            _assert_refused(wait)
        wait_for_it = asyncio.to_thread(broker.wait_for_records, "t", timeout_s=60)
        waiting = asyncio.create_task(wait_for_it)
        broker.produce("t", "x")
        assert [record.value for record in await waiting] == [b"x"]


def test_use_in_the_brokers_own_thread_is_refused_and_does_not_wait_for_itself() -> None:
    with BrokerThread() as broker:
        for use in (
            lambda: broker.topics,
            lambda: broker.produce("t", "v"),
            lambda: broker.requests.of("Fetch"),
            lambda: broker.wait_for_records("t"),
        ):
            with pytest.raises(RuntimeError, match="in its own thread, which would wait"):
                broker.wait_until(lambda _, use=use: bool(use()))  # type: ignore[misc]
            with pytest.raises(RuntimeError, match="in its own thread, which would wait"):
                broker.call(lambda _, use=use: use())  # type: ignore[misc]
        assert broker.topics == {}


def test_thread_before_its_start_or_started_again_is_refused() -> None:
    broker = BrokerThread()
    for use in (
        lambda: broker.produce("t", "v"),
        lambda: broker.topics,
        lambda: broker.on("Fetch").silence(),
        lambda: len(broker.requests),
        lambda: broker.wait_for_records("t"),
        lambda: broker.__exit__(None, None, None),
    ):
        with pytest.raises(RuntimeError, match="was not started"):
            use()
    with broker:
        running = threading.active_count()
        for _ in range(2):
            with pytest.raises(RuntimeError, match="only once"):
                broker.__enter__()
        assert threading.active_count() == running
        assert broker.topics == {}
    with pytest.raises(RuntimeError, match="only once"):
        broker.__enter__()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is nothing to fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the broker has a thread
def test_thread_in_a_forked_child_refuses_use_and_leaves_the_broker_running() -> None:
    with BrokerThread() as broker:
        if (child := os.fork()) == 0:
            try:
                broker.produce("t", "v")
            except ForkedError:
                broker.__exit__(None, None, None)
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        broker.produce("t", "v")
        assert broker.end_offsets("t") == [1]


def test_failed_broker_fails_its_block_unless_that_has_failed_before() -> None:
    def fail(broker: BrokerThread, error: Exception | None = None) -> None:
        broker.on_connect(when=lambda peer: peer[1_000] == "x").refuse()
        host, _, port = broker.bootstrap_servers.partition(":")
        with socket.create_connection((host, int(port))) as client, suppress(ConnectionError):
            client.recv(1)
        if error is not None:
            raise error

    with pytest.raises(IndexError), BrokerThread() as broker:
        fail(broker)
    with pytest.raises(AssertionError, match="of the test"), BrokerThread() as broker:
        fail(broker, AssertionError("of the test"))


def test_coroutine_functions_are_refused_where_their_result_would_always_be_true() -> None:
    async def is_so(*given: object) -> bool:
        return False

    given: Any = is_so
    with BrokerThread() as broker:
        for call in (
            lambda: broker.wait_until(given),
            lambda: broker.wait_until(lambda inner: given(inner)),
            lambda: broker.call(given),
            lambda: broker.call(lambda inner: given(inner)),
            lambda: broker.on("Fetch", when=given),
            lambda: broker.on_connect(when=given),
            lambda: broker.requests.of(when=given),
            lambda: broker.requests.wait_for(when=given),
            lambda: broker.on("Fetch").answer(given),
            lambda: broker.on("Fetch").on_frame(given),
            lambda: broker.on("Fetch").rewrite_batch(given),
        ):
            with pytest.raises(TypeError, match="plain function"):
                call()
        with pytest.raises(TypeError, match="takes a coroutine function: use call"):
            broker.run(lambda inner: given and 5)  # type: ignore[arg-type, return-value]


async def test_broker_in_another_thread_is_refused_instead_of_damaging_its_logs() -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        tp = TopicPartition("t", 0)
        for use in (
            lambda: broker.produce("t", "v"),
            lambda: broker.produce_all("t", []),
            lambda: broker.records("t"),
            lambda: broker.create_topic("n"),
            lambda: broker.delete_topic("t"),
            lambda: broker.recreate_topic("t"),
            lambda: broker.add_partitions("t", 2),
            lambda: broker.move_leader(tp),
            lambda: broker.truncate(tp, 0),
            lambda: broker.hold_replica(tp, 1),
            lambda: broker.release_replica(tp, 1),
            lambda: broker.expire_session("g", "m"),
            lambda: broker.on("Fetch").silence(),
            lambda: broker.on_connect().refuse(),
            lambda: asyncio.run(broker.wait_for_records("t", 0)),
            lambda: asyncio.run(broker.stop_node(1)),
            lambda: asyncio.run(broker.start_node(1)),
        ):
            with pytest.raises(WrongLoopError, match="use a BrokerThread"):
                await asyncio.to_thread(use)
        broker.produce("t", "v")
        assert (broker.end_offsets("t"), len(broker.topics)) == ([1], 1)
    assert len(await asyncio.to_thread(broker.records, "t")) == 1


async def test_broker_that_is_not_running_is_told_instead_of_an_address_or_a_write() -> None:
    broker = Broker()
    with pytest.raises(RuntimeError, match="is not running: use `async with Broker"):
        _ = broker.bootstrap_servers
    for _ in range(2):
        with pytest.raises(RuntimeError, match="is not running"):
            broker.produce("t", "v")
        with pytest.raises(RuntimeError, match="is not running"):
            await broker.start_node(1)
        with pytest.raises(RuntimeError, match="is not running"):
            await broker.wait_for_members("g")
        with pytest.raises(RuntimeError, match="is not running"):
            await broker.clean_logs()
        with pytest.raises(RuntimeError, match="is not running"):
            broker.committed("g")
        assert "t" not in broker.topics
        async with broker:
            with pytest.raises(RuntimeError, match="is running already"):
                await broker.start()
            assert broker.produce("u", "v").offset == 0
            await broker.wait_for_records("u")
            broker.delete_topic("u")


def _assert_refused(wait: Callable[[], object]) -> None:
    with pytest.raises(RuntimeError, match=r"asyncio\.to_thread"):
        wait()


def test_waiting_ends_with_the_broker() -> None:
    raised: list[BaseException] = []
    has_begun = threading.Event()

    def never(_: Broker) -> bool:
        has_begun.set()
        return False

    def wait(broker: BrokerThread) -> None:
        try:
            broker.wait_until(never, timeout_s=3_600)
        except RuntimeError as error:
            raised.append(error)

    with BrokerThread() as broker:
        thread = threading.Thread(target=wait, args=(broker,))
        thread.start()
        assert has_begun.wait(30)
    thread.join(30)
    assert not thread.is_alive()
    assert str(raised[0]) == "the broker was stopped during the call"
    with pytest.raises(RuntimeError, match="the broker was stopped"):
        broker.produce("t", "x")
