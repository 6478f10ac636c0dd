"""`consumer.run(handler, transactions=producer)`: outputs and offsets are there once, or not."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import product
from typing import Any, Final, Literal

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.errors import (
    ConcurrentTransactions,
    CoordinatorNotAvailableError,
    IllegalOperation,
    IllegalStateError,
    InvalidTxnState,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    ProducerClosed,
    ProducerFencedError,
    StaleMemberEpochError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.events import TopicDeleted
from aiokafka_lite.processing import DeadLetters, Outputs, Retry
from aiokafka_lite.producing import AIOKafkaProducer
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.support.cluster import KafkaHandle, unique
from tests.support.waiting import eventually, until

PATIENCE_S: Final = 30.0
Record = ConsumerRecord[bytes | None, bytes | None]
Handler = Callable[[Any, Outputs], Coroutine[object, object, object]]


class Copy:
    """A topic, and another one into which handlers copy it."""

    def __init__(self, kafka: KafkaHandle, source: str, target: str) -> None:
        self.kafka = kafka
        self.source = source
        self.target = target
        self.group = unique("copy")
        self.transactional_id = unique("copy")
        self.handled: list[Record] = []

    @classmethod
    async def of(
        cls, kafka: KafkaHandle, partitions: int = 1, configs: dict[str, str] | None = None
    ) -> Copy:
        source = await kafka.create_topic(partitions=partitions)
        return cls(kafka, source, await kafka.create_topic(partitions=1, configs=configs))

    def consumer(self, **settings: object) -> AIOKafkaConsumer:
        arguments: dict[str, object] = {
            "bootstrap_servers": self.kafka.bootstrap_servers,
            "group_id": self.group,
            "auto_offset_reset": "earliest",
            "fetch_max_wait_ms": 50,
            "heartbeat_interval_ms": 100,
            "retry_backoff_ms": 20,
            **settings,
        }
        return AIOKafkaConsumer(self.source, **arguments)  # type: ignore[arg-type]

    def producer(self, **settings: object) -> AIOKafkaProducer:
        arguments: dict[str, object] = {
            "bootstrap_servers": self.kafka.bootstrap_servers,
            "transactional_id": self.transactional_id,
            "retry_backoff_ms": 20,
            **settings,
        }
        return AIOKafkaProducer(**arguments)  # type: ignore[arg-type]

    async def handle(self, record: Record, outputs: Outputs) -> None:
        self.handled.append(record)
        await asyncio.sleep(0)
        outputs.send(self.target, record.value, key=record.key)

    @asynccontextmanager
    async def running(
        self,
        handler: Handler | None = None,
        settings: dict[str, object] | None = None,
        **arguments: Any,
    ) -> AsyncIterator[AIOKafkaConsumer]:
        """Run until the block ends, then stop; what `run` raises is raised here."""
        async with timeout(PATIENCE_S), self.producer() as producer:
            async with self.consumer(**(settings or {})) as consumer:
                task = asyncio.create_task(
                    consumer.run(handler or self.handle, transactions=producer, **arguments)
                )
                try:
                    yield consumer
                finally:
                    await consumer.stop()
                    await asyncio.wait([task])
            await task

    async def committed(self, partition: int = 0) -> int | None:
        """What the group has committed, as somebody else sees it."""
        async with AIOKafkaConsumer(
            bootstrap_servers=self.kafka.bootstrap_servers,
            group_id=self.group,
            enable_auto_commit=False,
        ) as reader:
            return await reader.committed(TopicPartition(self.source, partition))

    async def copies(self, isolation_level: str = "read_committed") -> list[Record]:
        found: list[Record] = []
        async with (
            timeout(PATIENCE_S),
            AIOKafkaConsumer(
                self.target,
                bootstrap_servers=self.kafka.bootstrap_servers,
                auto_offset_reset="earliest",
                isolation_level=isolation_level,
            ) as reader,
        ):
            ends = await reader.end_offsets(reader.assignment())
            while any([await reader.position(tp) < end for tp, end in ends.items()]):
                for records in (await reader.getmany(timeout_ms=200)).values():
                    found.extend(records)
        return found

    async def counts(self) -> Counter[bytes | None]:
        return Counter(record.value for record in await self.copies())


def numbered(count: int, keys: int = 5) -> list[tuple[bytes | None, bytes | None]]:
    return [(b"%d" % (n % keys), b"%d" % n) for n in range(count)]


@pytest.fixture
async def copy(kafka: KafkaHandle) -> Copy:
    return await Copy.of(kafka)


@asynccontextmanager
async def embedded(**settings: Any) -> AsyncIterator[tuple[Broker, Copy]]:
    async with Broker(**settings) as broker:
        yield broker, await Copy.of(KafkaHandle("embedded", broker.bootstrap_servers))


# --- What is written -----------------------------------------------------------------------------
@pytest.mark.parametrize("auto_commit", [True, False])
async def test_each_output_is_there_once_in_the_order_of_its_key(
    copy: Copy, *, auto_commit: bool
) -> None:
    await copy.kafka.produce(copy.source, 0, numbered(300))
    async with copy.running(settings={"enable_auto_commit": auto_commit}) as consumer:
        await eventually(copy.committed, 300)
        assert consumer.metrics()["processing_finished_total"] == 300
    found = await copy.copies()
    assert Counter(record.value for record in found) == {b"%d" % n: 1 for n in range(300)}
    for key in {record.key for record in found}:
        numbers = [int(record.value or b"") for record in found if record.key == key]
        assert numbers == sorted(numbers)


async def test_a_list_and_its_outputs_are_committed_together(copy: Copy) -> None:
    await copy.kafka.produce(copy.source, 0, numbered(100))
    sizes: list[int] = []

    async def handle(records: list[Record], outputs: Outputs) -> None:
        sizes.append(len(records))
        for record in records:
            outputs.send(copy.target, record.value, record.key)

    async with copy.running(handle, batch_size=20):
        await eventually(copy.committed, 100)
    assert await copy.counts() == {b"%d" % n: 1 for n in range(100)}
    assert max(sizes) > 1


async def test_what_is_left_of_a_list_is_handled_again_as_a_list_and_in_order() -> None:
    async with Broker() as broker:
        copy = await Copy.of(KafkaHandle("embedded", broker.bootstrap_servers), partitions=2)
        for partition in (0, 1):
            await copy.kafka.produce(copy.source, partition, numbered(6, keys=3))
        lists: list[list[tuple[int, int]]] = []

        async def handle(records: list[Record], outputs: Outputs) -> None:
            lists.append([(record.partition, record.offset) for record in records])
            for record in records:
                outputs.send(copy.target, record.value, record.key)
            if len(lists) == 1:
                consumer.seek(TopicPartition(copy.source, 1), 0)  # these records go from the list

        async with copy.running(handle, batch_size=20, concurrency=1) as consumer:
            await eventually(lambda: copy.committed(1), 6)
            await eventually(copy.committed, 6)
        assert len(lists[0]) == 12
        left = [place for place in lists[0] if place[0] == 0]
        assert left in [[place for place in each if place[0] == 0] for each in lists[1:]]


async def test_outputs_have_what_send_was_given(copy: Copy) -> None:
    await copy.kafka.produce(copy.source, 0, numbered(1))

    async def handle(record: Record, outputs: Outputs) -> None:
        outputs.send(
            copy.target, None, b"k", partition=0, timestamp_ms=1_700_000_000_000,
            headers=[("h", b"\xff"), ("none", None)],
        )  # fmt: skip
        outputs.send(copy.target)

    begun_ms = time.time_ns() // 1_000_000
    async with copy.running(handle):
        await eventually(copy.committed, 1)
    first, second = await copy.copies()
    assert (first.key, first.value, first.timestamp) == (b"k", None, 1_700_000_000_000)
    assert list(first.headers) == [("h", b"\xff"), ("none", None)]
    assert (second.key, second.value) == (None, None)
    assert begun_ms <= second.timestamp <= time.time_ns() // 1_000_000


@pytest.mark.real_if_long
async def test_a_record_without_outputs_is_finished(copy: Copy) -> None:
    await copy.kafka.produce(copy.source, 0, numbered(10))

    async def handle(record: Record, outputs: Outputs) -> None:
        pass

    async with copy.running(handle, settings={"enable_auto_commit": False}):
        await eventually(copy.committed, 10)
    assert await copy.copies() == []


async def test_a_handler_that_fails_leaves_no_output(copy: Copy) -> None:
    await copy.kafka.produce(copy.source, 0, numbered(20))
    failed: set[int] = set()

    async def handle(record: Record, outputs: Outputs) -> None:
        outputs.send(copy.target, record.value)
        if record.offset not in failed:
            failed.add(record.offset)
            raise ConnectionError("once")

    async with copy.running(handle, retry=Retry(first_delay_ms=1), breaker=None):
        await eventually(copy.committed, 20)
    assert await copy.counts() == {b"%d" % n: 1 for n in range(20)}


@pytest.mark.parametrize(
    ("name", "bad", "error"),
    [
        ("timestamp_ms", -1, ValueError),
        ("timestamp_ms", 2**63, ValueError),
        ("timestamp_ms", "now", TypeError),
        ("partition", -1, ValueError),
        ("partition", True, TypeError),
    ],
)
async def test_an_output_that_cannot_be_written_is_its_handlers_error(
    name: str, bad: object, error: type[Exception]
) -> None:
    async with embedded() as (_, copy):
        await copy.kafka.produce(copy.source, 0, numbered(1))

        async def handle(record: Record, outputs: Outputs) -> None:
            outputs.send(copy.target, record.value, **{name: bad})  # type: ignore[arg-type]

        async with timeout(PATIENCE_S), copy.producer() as producer, copy.consumer() as consumer:
            with pytest.raises(error, match=name.removesuffix("_ms")):
                await consumer.run(handle, transactions=producer)
        assert await copy.copies() == []


@pytest.mark.real_if_long
async def test_without_retry_a_handlers_error_ends_it_and_what_was_done_is_committed(
    copy: Copy,
) -> None:
    await copy.kafka.produce(copy.source, 0, numbered(10))

    async def handle(record: Record, outputs: Outputs) -> None:
        outputs.send(copy.target, record.value)
        if record.offset == 5:
            raise ValueError("five")

    async with timeout(PATIENCE_S), copy.producer() as producer, copy.consumer() as consumer:
        with pytest.raises(ValueError, match="five"):
            await consumer.run(handle, transactions=producer, order="partition")
        # The producer is the application's again.
        async with producer.transaction() as transaction:
            await transaction.send(copy.target, b"afterwards")
    assert await copy.counts() == {b"%d" % n: 1 for n in range(5)} | {b"afterwards": 1}
    assert await copy.committed() == 5


async def test_a_key_goes_on_before_the_transaction_is_committed() -> None:
    async with embedded() as (broker, copy):
        await copy.kafka.produce(copy.source, 0, [(b"k", b"%d" % n) for n in range(10)])
        with broker.on("EndTxn").hold() as held:
            async with copy.running() as consumer:
                await until(lambda: len(copy.handled) == 10)
                await held.reached()
                tp = TopicPartition(copy.source, 0)
                assert "its outputs wait until a transaction is committed" in consumer.explain(tp)
                assert consumer.metrics()["processing_in_outbox"] == 10
                held.release()
                await eventually(copy.committed, 10)
                assert consumer.metrics()["processing_in_outbox"] == 0
        assert await copy.counts() == {b"%d" % n: 1 for n in range(10)}


# --- Dead letters --------------------------------------------------------------------------------
async def test_dead_letters_go_into_the_same_transactions(copy: Copy) -> None:
    dead = await copy.kafka.create_topic()
    await copy.kafka.produce(copy.source, 0, numbered(30))

    async def handle(record: Record, outputs: Outputs) -> None:
        outputs.send(copy.target, record.value)
        if record.offset % 10 == 3:
            raise ValueError("bad")

    arguments = {"retry": Retry(dead=ValueError), "dead_letter": DeadLetters(dead)}
    async with copy.running(handle, settings={"enable_auto_commit": False}, **arguments):
        await eventually(copy.committed, 30)
    assert await copy.counts() == {b"%d" % n: 1 for n in range(30) if n % 10 != 3}
    copy.target = dead
    letters = await copy.copies()
    assert [letter.value for letter in letters] == [b"3", b"13", b"23"]
    async with AIOKafkaConsumer(bootstrap_servers=copy.kafka.bootstrap_servers) as reader:
        tp = TopicPartition(dead, 0)
        assert (await reader.end_offsets([tp]))[tp] > 3  # with markers of transactions


@pytest.mark.real_if_long
async def test_a_function_that_keeps_dead_records_has_their_offsets_committed(copy: Copy) -> None:
    await copy.kafka.produce(copy.source, 0, numbered(3))
    kept: list[int] = []

    async def handle(record: Record, outputs: Outputs) -> None:
        raise ValueError("bad")

    async def keep(dead: Any) -> None:
        kept.append(dead.record.offset)

    arguments = {"retry": Retry(dead=ValueError), "dead_letter": keep}
    async with copy.running(handle, settings={"enable_auto_commit": False}, **arguments):
        await eventually(copy.committed, 3)
    assert sorted(kept) == [0, 1, 2]


@pytest.mark.real_if_long
@pytest.mark.parametrize("is_given", [True, False])
async def test_dead_letters_have_no_producer_of_their_own_then(
    copy: Copy, *, is_given: bool
) -> None:
    async with copy.producer() as producer, copy.consumer() as consumer:
        own = copy.producer(transactional_id=None)
        arguments: dict[str, Any] = {"producer": own} if is_given else {"transactional_id": "t"}
        letters = DeadLetters(copy.target, **arguments)
        with pytest.raises(IllegalStateError, match="leave out `transactional_id` and `producer`"):
            await consumer.run(copy.handle, transactions=producer, dead_letter=letters)


# --- What cannot be written ----------------------------------------------------------------------
@pytest.mark.real_if_long
async def test_what_cannot_be_serialized_is_the_handlers_error(copy: Copy) -> None:
    await copy.kafka.produce(copy.source, 0, numbered(1))
    errors: list[Exception] = []

    async def handle(record: Record, outputs: Outputs) -> None:
        for arguments in (
            (copy.target, "text"),
            (copy.target, b"", 1),
            (copy.target, b"", b"", "0"),
            (copy.target, b"", b"", -1),
            (copy.target, b"", b"", 0, -5),
            (copy.target, b"", b"", 0, 1, [(b"name", b"")]),
            ("", b""),
            (copy.target, bytes(2 * 1024 * 1024)),
        ):
            try:
                outputs.send(*arguments)
            except (TypeError, ValueError, MessageSizeTooLargeError) as error:
                errors.append(error)

    async with copy.running(handle):
        await eventually(copy.committed, 1)
    assert len(errors) == 8
    assert await copy.copies() == []


@pytest.mark.parametrize("has_dead_letters", [True, False])
async def test_an_output_that_is_refused_takes_no_other_along(
    kafka: KafkaHandle, *, has_dead_letters: bool
) -> None:
    copy = await Copy.of(kafka, configs={"max.message.bytes": "2000"})
    dead = await kafka.create_topic()
    records = numbered(50)
    records[7] = (b"7", b"x" * 5000)
    await kafka.produce(copy.source, 0, records)
    wanted = {b"%d" % n: 1 for n in range(50) if n != 7}
    if has_dead_letters:
        async with copy.running(dead_letter=DeadLetters(dead)) as consumer:
            await eventually(copy.committed, 50)
            assert consumer.metrics()["processing_dead_total"] == 1
        assert await copy.counts() == wanted
        copy.target = dead
        (letter,) = await copy.copies()
        assert b"MessageSizeTooLarge" in dict(letter.headers)["__dlq.errors.exception"]
        return
    async with timeout(PATIENCE_S), copy.producer() as producer, copy.consumer() as consumer:
        with pytest.raises(MessageSizeTooLargeError):
            await consumer.run(copy.handle, transactions=producer)
    assert (await copy.counts()).keys() <= wanted.keys()
    assert await copy.committed() in (None, 0, 1, 2, 3, 4, 5, 6, 7)


@pytest.mark.parametrize("order", ["key", "partition"])
async def test_outputs_keep_their_order_if_one_of_a_list_is_refused(
    kafka: KafkaHandle, order: Literal["key", "partition"]
) -> None:
    copy = await Copy.of(kafka, configs={"max.message.bytes": "2000"})
    dead = await kafka.create_topic()
    await kafka.produce(copy.source, 0, numbered(100))

    async def handle(records: list[Record], outputs: Outputs) -> None:
        for record in records:
            too_large = b"x" * 5000 if record.offset in (7, 8, 57) else b""
            outputs.send(copy.target, (record.value or b"") + too_large, record.key)

    async with copy.running(handle, batch_size=10, order=order, dead_letter=DeadLetters(dead)):
        await eventually(copy.committed, 100)
    found = await copy.copies()
    assert Counter(record.value for record in found) == {
        b"%d" % n: 1 for n in range(100) if n not in (7, 8, 57)
    }
    keys = {record.key for record in found} if order == "key" else {None}
    for key in keys:
        numbers = [int(each.value or b"") for each in found if key in (None, each.key)]
        assert numbers == sorted(numbers)


@pytest.mark.virtual_time
async def test_a_topic_that_is_not_there_is_told_with_the_record() -> None:
    async def handle(record: Record, outputs: Outputs) -> None:
        outputs.send(unique("missing"), b"")

    async with (
        embedded() as (_, copy),
        copy.producer(request_timeout_ms=4_000, allow_auto_create_topics=False) as producer,
        copy.consumer() as consumer,
    ):
        await copy.kafka.produce(copy.source, 0, numbered(1))
        with pytest.raises(UnknownTopicOrPartitionError):
            await consumer.run(handle, transactions=producer)


async def test_a_topic_that_is_not_there_holds_up_one_key_only(copy: Copy) -> None:
    await copy.kafka.produce(copy.source, 0, numbered(20))
    dead = await copy.kafka.create_topic()

    async def handle(record: Record, outputs: Outputs) -> None:
        topic = unique("missing") if record.offset == 5 else copy.target
        outputs.send(topic, record.value, record.key)

    async with (
        timeout(PATIENCE_S),
        copy.producer(request_timeout_ms=4_000, allow_auto_create_topics=False) as producer,
        copy.consumer() as consumer,
    ):
        running = asyncio.create_task(
            consumer.run(handle, transactions=producer, dead_letter=DeadLetters(dead))
        )
        while len(found := await copy.copies()) < 17:
            assert not running.done()
        assert consumer.metrics()["processing_dead_total"] == 0
        assert {record.value for record in found}.isdisjoint([b"5", b"10", b"15"])
        await eventually(copy.committed, 20)
        await consumer.stop()
        await running
    assert await copy.counts() == {b"%d" % n: 1 for n in range(20) if n != 5}


@pytest.mark.real_if_long
async def test_outputs_take_nothing_after_the_handler_has_returned(copy: Copy) -> None:
    await copy.kafka.produce(copy.source, 0, numbered(1))
    kept: list[Outputs] = []

    async def handle(record: Record, outputs: Outputs) -> None:
        kept.append(outputs)

    async with copy.running(handle):
        await eventually(copy.committed, 1)
        with pytest.raises(IllegalStateError, match="the handler has returned"):
            kept[0].send(copy.target, b"late")


@pytest.mark.real_if_long
async def test_a_handler_that_names_an_offset_to_commit_finishes_nothing(copy: Copy) -> None:
    await copy.kafka.produce(copy.source, 0, numbered(3))
    tp = TopicPartition(copy.source, 0)

    async def handle(record: Record, outputs: Outputs) -> None:
        outputs.send(copy.target, record.value)
        with pytest.raises(IllegalStateError, match="handlers cannot commit offsets"):
            await consumer.commit({tp: record.offset + 1})
        await consumer.commit()

    async with copy.running(handle) as consumer:
        await eventually(copy.committed, 3)
    assert await copy.counts() == {b"0": 1, b"1": 1, b"2": 1}


# --- What it needs -------------------------------------------------------------------------------
@pytest.mark.real_if_long
async def test_the_producer_is_nobody_elses_while_it_goes_on(copy: Copy) -> None:
    async with timeout(PATIENCE_S), copy.producer() as producer:
        async with copy.consumer() as consumer:
            task = asyncio.create_task(consumer.run(copy.handle, transactions=producer))
            await copy.kafka.produce(copy.source, 0, numbered(1))
            await eventually(copy.committed, 1)
            for call in (
                lambda: producer.send(copy.target, b"by the way"),
                lambda: producer.send_and_wait(copy.target, b"by the way"),
                producer.begin_transaction,
                producer.commit_transaction,
                producer.abort_transaction,
                lambda: producer.send_offsets_to_transaction({}, "g"),
                lambda: producer.transaction().__aenter__(),
            ):
                with pytest.raises(IllegalOperation, match=r"outputs\.send"):
                    await call()
            async with copy.consumer(group_id=unique("other")) as other:
                with pytest.raises(IllegalOperation, match=r"outputs\.send"):
                    await other.run(copy.handle, transactions=producer)
            await consumer.stop()
            await task
        async with producer.transaction() as transaction:
            await transaction.send(copy.target, b"afterwards")
    assert await copy.counts() == {b"0": 1, b"afterwards": 1}


@pytest.mark.real_if_long
async def test_misuse_is_told_at_the_call(copy: Copy) -> None:
    async def of_one(record: Record) -> None:
        raise AssertionError("never called")

    one: Any = of_one
    two: Any = copy.handle
    plain_function: Any = lambda record: None  # noqa: E731

    async with copy.producer() as producer, copy.consumer() as consumer:
        with pytest.raises(TypeError, match="its outputs"):
            await consumer.run(one, transactions=producer)
        with pytest.raises(TypeError, match="must take a record"):
            await consumer.run(two)
        with pytest.raises(TypeError, match="its outputs"):
            await consumer.run(plain_function, transactions=producer)
        with pytest.raises(IllegalStateError, match="not started"):
            await consumer.run(copy.handle, transactions=copy.producer())
        async with copy.producer(transactional_id=None) as plain:
            with pytest.raises(IllegalOperation, match="transactional_id"):
                await consumer.run(copy.handle, transactions=plain)
        async with producer.transaction():
            with pytest.raises(IllegalStateError, match="an open transaction"):
                await consumer.run(copy.handle, transactions=producer)
        async with copy.consumer(group_id=None) as groupless:
            with pytest.raises(IllegalOperation, match="group_id"):
                await groupless.run(copy.handle, transactions=producer)


# --- What happens to transactions ----------------------------------------------------------------
def lose_an_answer(broker: Broker) -> None:
    broker.on("EndTxn").disconnect(handled=True)


def lose_a_request(broker: Broker) -> None:
    broker.on("EndTxn").disconnect()


def put_it_off(broker: Broker) -> None:
    broker.on("EndTxn").fail(ConcurrentTransactions, times=3)


def move_the_coordinator(broker: Broker) -> None:
    broker.on("TxnOffsetCommit").fail(CoordinatorNotAvailableError, times=3)


def lose_the_offsets_answer(broker: Broker) -> None:
    broker.on("TxnOffsetCommit").disconnect(handled=True)


def refuse_the_epoch(broker: Broker) -> None:
    broker.on("TxnOffsetCommit").fail(StaleMemberEpochError)


def cut_the_outputs(broker: Broker) -> None:
    broker.on("Produce").disconnect(handled=True)
    broker.on("Produce").disconnect()


@pytest.mark.parametrize(
    "harm",
    [
        lose_an_answer,
        lose_a_request,
        put_it_off,
        move_the_coordinator,
        lose_the_offsets_answer,
        refuse_the_epoch,
        cut_the_outputs,
    ],
)
async def test_a_transaction_is_written_again_without_calling_handlers_again(
    harm: Callable[[Broker], None],
) -> None:
    async with embedded() as (broker, copy), copy.running() as consumer:
        await until(lambda: bool(consumer.assignment()))
        await copy.kafka.produce(copy.source, 0, numbered(20))
        harm(broker)
        await eventually(copy.committed, 20)
        assert len(copy.handled) == 20
        assert await copy.counts() == {b"%d" % n: 1 for n in range(20)}
        await until(lambda: consumer.health().is_ok)


def commit_and_say_it_failed(broker: Broker) -> None:
    broker.on("EndTxn").disconnect(handled=True)
    broker.on("EndTxn").fail(InvalidTxnState)


def fail_it(broker: Broker) -> None:
    broker.on("EndTxn").fail(InvalidTxnState)


def fence_it(broker: Broker) -> None:
    broker.on("EndTxn").fail(ProducerFencedError)


@pytest.mark.parametrize("harm", [commit_and_say_it_failed, fail_it, fence_it])
@pytest.mark.parametrize("auto_commit", [True, False])
async def test_after_an_unknown_outcome_run_ends_and_the_next_one_repeats_nothing(
    harm: Callable[[Broker], None], *, auto_commit: bool
) -> None:
    async with embedded() as (broker, copy), timeout(PATIENCE_S):
        async with copy.consumer(enable_auto_commit=auto_commit) as consumer:
            await copy.kafka.produce(copy.source, 0, numbered(20))
            harm(broker)
            async with copy.producer() as producer:
                with pytest.raises(KafkaError):
                    await consumer.run(copy.handle, transactions=producer)
            async with copy.producer() as producer:
                task = asyncio.create_task(consumer.run(copy.handle, transactions=producer))
                await eventually(copy.committed, 20)
                await consumer.stop()
                await task
        assert await copy.counts() == {b"%d" % n: 1 for n in range(20)}


@pytest.mark.virtual_time
@pytest.mark.parametrize("is_committed", [True, False])
async def test_a_commit_that_is_not_answered_in_time_ends_it_and_repeats_nothing(
    *, is_committed: bool
) -> None:
    settings: dict[str, object] = {"request_timeout_ms": 1_000, "delivery_timeout_ms": 2_000}
    async with embedded() as (broker, copy), copy.consumer() as consumer:
        await copy.kafka.produce(copy.source, 0, numbered(20))
        rule = broker.on("EndTxn").silence(times=None, handled=is_committed)
        async with copy.producer(**settings) as producer:
            with pytest.raises(
                KafkaTimeoutError, match="it is unknown whether the transaction was committed"
            ):
                await consumer.run(copy.handle, transactions=producer)
            assert producer.fatal_error is not None
            rule.remove()
        async with copy.producer() as producer:
            task = asyncio.create_task(consumer.run(copy.handle, transactions=producer))
            await eventually(copy.committed, 20)
            await consumer.stop()
            await task
        assert await copy.counts() == {b"%d" % n: 1 for n in range(20)}


async def test_while_the_coordinator_is_away_little_is_kept_and_health_tells() -> None:
    async with embedded() as (broker, copy):
        await copy.kafka.produce(copy.source, 0, numbered(500))

        async def handle(record: Record, outputs: Outputs) -> None:
            copy.handled.append(record)
            outputs.send(copy.target, bytes(10_000))

        rule = broker.on("TxnOffsetCommit").fail(StaleMemberEpochError, times=None)
        async with (
            timeout(PATIENCE_S),
            copy.producer(buffer_memory=100_000) as producer,
            copy.consumer() as consumer,
        ):
            task = asyncio.create_task(
                consumer.run(handle, transactions=producer, concurrency=5, order=None)
            )
            await until(
                lambda: "transactions cannot be committed" in str(consumer.health().reasons)
            )
            count = len(copy.handled)
            assert count <= 15
            await asyncio.sleep(0.3)
            assert len(copy.handled) == count
            rule.remove()
            await eventually(copy.committed, 500)
            await consumer.stop()
            await task
        assert len(await copy.copies()) == 500


async def test_a_run_that_is_cancelled_waits_for_the_end_of_its_transaction() -> None:
    async with embedded() as (broker, copy), timeout(PATIENCE_S):
        await copy.kafka.produce(copy.source, 0, numbered(5))
        async with copy.producer() as producer, copy.consumer() as consumer:
            with broker.on("EndTxn").hold() as held:
                task = asyncio.create_task(consumer.run(copy.handle, transactions=producer))
                await held.reached()
                task.cancel()
                await asyncio.sleep(0.05)
            await asyncio.wait([task])
            again = asyncio.create_task(consumer.run(copy.handle, transactions=producer))
            await eventually(copy.committed, 5)
            await consumer.stop()
            await again
        assert await copy.counts() == {b"%d" % n: 1 for n in range(5)}


async def test_a_run_that_is_cancelled_again_at_its_end_gives_the_producer_back() -> None:
    async with embedded() as (_, copy), timeout(PATIENCE_S):
        async with copy.producer() as producer, copy.consumer() as consumer:
            for count, (turns, is_idle) in enumerate(product(range(1, 5), (False, True)), 1):
                task = asyncio.create_task(consumer.run(copy.handle, transactions=producer))
                await copy.kafka.produce(copy.source, 0, numbered(1))
                await until(lambda count=count: len(copy.handled) >= count)  # type: ignore[misc]
                if is_idle:
                    await eventually(copy.committed, count)
                for _ in range(3):
                    task.cancel()
                    for _ in range(turns):
                        await asyncio.sleep(0)
                await asyncio.wait([task])
                async with producer.transaction() as transaction:
                    await transaction.send(copy.target, b"own")
            again = asyncio.create_task(consumer.run(copy.handle, transactions=producer))
            await eventually(copy.committed, 8)
            await consumer.stop()
            await again
        assert await copy.counts() == {b"0": 8, b"own": 8}


@pytest.mark.virtual_time
@pytest.mark.parametrize("auto_commit", [True, False])
async def test_a_transaction_that_ends_after_unsubscribe_is_not_undone(auto_commit: bool) -> None:
    async with embedded() as (broker, copy), timeout(PATIENCE_S):
        await copy.kafka.produce(copy.source, 0, numbered(1))
        consumer = copy.consumer(enable_auto_commit=auto_commit)
        async with copy.producer() as producer, consumer:
            with broker.on("EndTxn").hold() as held:
                task = asyncio.create_task(consumer.run(copy.handle, transactions=producer))
                await held.reached()
                consumer.unsubscribe()
                await asyncio.sleep(0.2)
            await eventually(copy.committed, 1)
            consumer.subscribe([copy.source])
            await copy.kafka.produce(copy.source, 0, numbered(3)[1:])
            await eventually(copy.committed, 3)
            await consumer.stop()
            await task
        assert await copy.counts() == {b"%d" % n: 1 for n in range(3)}


async def test_a_seek_to_the_committed_offset_waits_for_the_transaction_that_changes_it() -> None:
    async with embedded() as (broker, copy), timeout(PATIENCE_S):
        await copy.kafka.produce(copy.source, 0, numbered(5))
        source = TopicPartition(copy.source, 0)
        async with copy.running() as consumer:
            with broker.on("TxnOffsetCommit").hold() as held:
                await held.reached()
                seeking = asyncio.create_task(consumer.seek_to_committed(source))
                for _ in range(2):  # whatever the seek asks is answered before these
                    assert await consumer.committed(source) is None
                assert not seeking.done()
            assert await seeking == {source: await consumer.committed(source)}
            await eventually(copy.committed, 5)
        assert await copy.counts() == {b"%d" % n: 1 for n in range(5)}


async def test_seeks_to_the_committed_offset_copy_nothing_twice(copy: Copy) -> None:
    await copy.kafka.produce(copy.source, 0, numbered(500, keys=50))
    sought: set[int] = set()

    async def handle(record: Record, outputs: Outputs) -> None:
        if record.offset % 50 == 0 and record.offset not in sought:
            sought.add(record.offset)
            await consumer.seek_to_committed()
        await copy.handle(record, outputs)

    async with copy.running(handle, concurrency=20) as consumer:
        await eventually(copy.committed, 500)
    assert await copy.counts() == {b"%d" % n: 1 for n in range(500)}


async def test_outputs_of_a_deleted_topic_hold_no_others_up() -> None:
    async with embedded() as (broker, copy), timeout(PATIENCE_S), copy.producer() as producer:
        other = await copy.kafka.create_topic()
        await copy.kafka.produce(other, 0, numbered(1))
        async with copy.consumer(metadata_max_age_ms=200) as consumer:
            consumer.subscribe([copy.source, other])
            events = consumer.events()
            with broker.on("EndTxn").hold() as held:
                task = asyncio.create_task(consumer.run(copy.handle, transactions=producer))
                await held.reached()
                await copy.kafka.produce(copy.source, 0, [(b"k", b"of the former")])
                await until(lambda: len(copy.handled) == 2)
                await copy.kafka.delete_topic(copy.source)
                async for event in events:
                    if isinstance(event, TopicDeleted):
                        break
            await copy.kafka.produce(other, 0, numbered(5)[1:])
            while len(await copy.copies()) < 5:
                assert not task.done()
            await copy.kafka.create_topic(copy.source)
            await copy.kafka.produce(copy.source, 0, [(b"k", b"of the next")])
            while len(await copy.copies()) < 6:
                assert not task.done()
            await consumer.stop()
            await task
        wanted = [b"%d" % n for n in range(5)] + [b"of the next"]
        assert await copy.counts() == dict.fromkeys(wanted, 1)


@pytest.mark.real_if_long
@pytest.mark.parametrize("is_idle", [True, False])
async def test_it_ends_when_its_producer_is_stopped(copy: Copy, is_idle: bool) -> None:
    await copy.kafka.produce(copy.source, 0, numbered(20))
    async with timeout(PATIENCE_S), copy.consumer() as consumer:
        producer = copy.producer()
        await producer.start()
        task = asyncio.create_task(consumer.run(copy.handle, transactions=producer))
        await until(lambda: bool(copy.handled))
        if is_idle:
            await eventually(copy.committed, 20)
        await producer.stop()
        with pytest.raises(ProducerClosed):
            await task
        async with copy.producer() as another:  # and the next run repeats nothing
            task = asyncio.create_task(consumer.run(copy.handle, transactions=another))
            await eventually(copy.committed, 20)
            await consumer.stop()
            await task
    assert await copy.counts() == {b"%d" % n: 1 for n in range(20)}


@pytest.mark.virtual_time
async def test_outputs_for_a_new_topic_wait_while_no_broker_returns_metadata() -> None:
    dead: list[object] = []

    async def keep(record: object) -> None:
        dead.append(record)

    async with embedded() as (broker, copy):
        await copy.kafka.produce(copy.source, 0, numbered(1))
        async with (
            copy.producer(request_timeout_ms=1_000) as producer,
            copy.producer(request_timeout_ms=1_000, transactional_id=None) as other,
            copy.consumer() as consumer,
        ):
            with broker.on("Metadata").silence(times=None):
                task = asyncio.create_task(
                    consumer.run(copy.handle, transactions=producer, dead_letter=keep)
                )
                await until(lambda: "did not return a leader" in str(consumer.health().reasons))
                with pytest.raises(KafkaTimeoutError, match="did not return a leader"):
                    await other.send(copy.target, b"")
            await eventually(copy.committed, 1)
            await consumer.stop()
            await task
        assert await copy.counts() == {b"0": 1}
        assert not dead


@pytest.mark.virtual_time
async def test_a_stop_of_the_producer_that_cuts_a_commit_off_repeats_nothing() -> None:
    async with embedded() as (broker, copy):
        await copy.kafka.produce(copy.source, 0, numbered(20))
        async with copy.consumer() as consumer:
            producer = copy.producer()
            await producer.start()
            with broker.on("EndTxn").silence(times=None, handled=True) as lost:
                task = asyncio.create_task(consumer.run(copy.handle, transactions=producer))
                await lost.reached()
                await producer.stop(timeout=1)
                with pytest.raises(ProducerClosed):
                    await task
            async with copy.producer() as another:
                task = asyncio.create_task(consumer.run(copy.handle, transactions=another))
                await eventually(copy.committed, 20)
                await consumer.stop()
                await task
        assert await copy.counts() == {b"%d" % n: 1 for n in range(20)}


@pytest.mark.virtual_time
async def test_a_stop_does_not_wait_for_a_transaction_without_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with embedded() as (broker, copy), copy.producer() as producer:
        await copy.kafka.produce(copy.source, 0, numbered(20))
        loop = asyncio.get_running_loop()
        with broker.on("EndTxn").hold() as held:
            async with copy.consumer() as consumer:
                task = asyncio.create_task(consumer.run(copy.handle, transactions=producer))
                await held.reached()
                stopped_at = loop.time()
                await consumer.stop(timeout=1)
                assert loop.time() - stopped_at <= 1
                await task  # it gives up with the stop
                assert loop.time() - stopped_at < 6
                assert "the outputs of 20 records were not committed" in caplog.text
        async with copy.consumer() as consumer:
            task = asyncio.create_task(consumer.run(copy.handle, transactions=producer))
            await eventually(copy.committed, 20)
            await consumer.stop()
            await task
        assert await copy.counts() == {b"%d" % n: 1 for n in range(20)}


@pytest.mark.virtual_time
async def test_what_metadata_have_no_room_for_waits_for_the_records_before_it() -> None:
    """Every second record is held up: one may say so of 1,300 gaps, and not of 3,000."""
    count = 6_000
    async with embedded() as (_, copy):
        await copy.kafka.produce(copy.source, 0, [(None, b"%d" % n) for n in range(count)])
        gate = asyncio.Event()

        async def handle(record: Record, outputs: Outputs) -> None:
            outputs.send(copy.target, record.value)
            if record.offset % 2 == 0:
                await gate.wait()

        async with copy.running(handle, concurrency=count, max_uncommitted=count) as consumer:
            await until(lambda: "metadata is full" in str(consumer.health().reasons))
            written = await copy.counts()
            assert 500 < len(written) < count / 2 - 500
            gate.set()
            await eventually(copy.committed, count)
        assert await copy.counts() == {b"%d" % n: 1 for n in range(count)}


@pytest.mark.virtual_time
async def test_a_full_outbox_lets_the_record_begin_for_which_it_waits() -> None:
    """It holds more than it may, and nothing of it can be said before record 0 is finished."""
    async with embedded() as (_, copy):
        await copy.kafka.produce(copy.source, 0, [(None, b"%d" % n) for n in range(3_000)])
        failures = 0

        async def handle(record: Record, outputs: Outputs) -> None:
            nonlocal failures
            if record.offset == 0 and failures < 1:
                failures += 1
                raise ConnectionError("once")
            if record.offset % 2 == 0:
                await asyncio.sleep(5)
            outputs.send(copy.target, bytes(1_000))

        async with (
            timeout(PATIENCE_S * 100),
            copy.producer(buffer_memory=50_000) as producer,
            copy.consumer() as consumer,
        ):
            task = asyncio.create_task(
                consumer.run(
                    handle,
                    transactions=producer,
                    concurrency=3_000,
                    breaker=None,
                    retry=Retry(first_delay_ms=10_000),
                )
            )
            while await copy.committed() != 3_000:  # noqa: ASYNC110
                await asyncio.sleep(1)
            await consumer.stop()
            await task
        assert len(await copy.copies()) == 3_000


@pytest.mark.virtual_time
async def test_a_full_outbox_lets_a_retry_begin_that_has_no_turn_yet() -> None:
    """With `fair`, first attempts wait, and none of them may begin."""
    async with embedded(offset_metadata_max_bytes=1) as (_, copy):
        await copy.kafka.produce(copy.source, 0, [(None, b"%d" % n) for n in range(400)])
        failures = 0

        async def handle(record: Record, outputs: Outputs) -> None:
            nonlocal failures
            if record.offset == 0 and failures < 1:
                failures += 1
                raise ConnectionError("once")
            outputs.send(copy.target, bytes(1_000))

        async with copy.producer(buffer_memory=50_000) as producer, copy.consumer() as consumer:
            task = asyncio.create_task(
                consumer.run(
                    handle,
                    transactions=producer,
                    concurrency=10,
                    fair=True,
                    breaker=None,
                    retry=Retry(first_delay_ms=1_000),
                )
            )
            await asyncio.sleep(20)
            assert await copy.committed() == 400
            await consumer.stop()
            await task
