"""`consumer.run`: every record once, in order where that is asked for, and committed when done."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter, defaultdict
from typing import Any

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker, NewRecord
from aiokafka_lite.consumer.processing.handling import Handling
from aiokafka_lite.errors import IllegalStateError
from aiokafka_lite.processing import CircuitBreaker, DeadLetters, DeadRecord, Retry
from aiokafka_lite.records import build_batch
from aiokafka_lite.structs import ConsumerRecord, OffsetAndMetadata, TopicPartition
from tests.consumer.processing.running import PATIENCE_S, member, running
from tests.support.cluster import KafkaHandle, unique
from tests.support.for_each import for_each
from tests.support.group_requests import GroupRequests
from tests.support.rows import rows
from tests.support.waiting import until

Record = ConsumerRecord[bytes | None, bytes | None]


class Handler:
    """Notes what it is called with; some records may be kept waiting, or fail."""

    def __init__(self) -> None:
        self.begun: list[Record] = []
        self.done: list[Record] = []
        self.cancelled: list[Record] = []
        self.at_once = 0
        self.most_at_once = 0
        self.gates: dict[int, asyncio.Event] = {}
        self.failures: dict[int, list[BaseException]] = defaultdict(list)

    def hold(self, *offsets: int) -> None:
        for offset in offsets:
            self.gates[offset] = asyncio.Event()

    def let_go(self, *offsets: int) -> None:
        for offset in offsets or tuple(self.gates):
            self.gates.pop(offset).set()

    @property
    def offsets(self) -> list[int]:
        return [record.offset for record in self.done]

    async def __call__(self, record: Record) -> None:
        self.begun.append(record)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(0)
            if (gate := self.gates.get(record.offset)) is not None:
                await gate.wait()
            if self.failures[record.offset]:
                raise self.failures[record.offset].pop(0)
        except asyncio.CancelledError:
            self.cancelled.append(record)
            raise
        finally:
            self.at_once -= 1
        self.done.append(record)


async def committed(kafka: KafkaHandle, group: str, tp: TopicPartition) -> tuple[int, str] | None:
    """What a group has committed, as somebody else sees it."""
    async with AIOKafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers, group_id=group, enable_auto_commit=False
    ) as reader:
        reader.assign([tp])
        found = await reader.committed(tp, metadata=True)
        return None if found is None else (found.offset, found.metadata)


@pytest.fixture
async def topic(kafka: KafkaHandle) -> str:
    return await kafka.create_topic(partitions=1)


@pytest.fixture
def group() -> str:
    return unique("run")


# --- What is handled, and in which order ---------------------------------------------------------
async def test_every_record_is_handled_once_and_committed(
    kafka: KafkaHandle, topic: str, group: str
) -> None:
    await kafka.produce(topic, 0, rows(0, 300))
    handler = Handler()
    async with running(member(kafka, topic, group), handler, concurrency=20, order=None):
        await until(lambda: len(handler.done) == 300)
    assert sorted(handler.offsets) == list(range(300))
    assert handler.most_at_once == 20
    assert await committed(kafka, group, TopicPartition(topic, 0)) == (300, "")


@pytest.mark.real_if_long
async def test_records_of_a_key_are_handled_in_order_and_others_beside_them(
    kafka: KafkaHandle, topic: str, group: str
) -> None:
    keys = [b"a", b"b", b"a", b"c", b"a", b"b"]
    await kafka.produce(topic, 0, [(key, b"") for key in keys])
    handler = Handler()
    handler.hold(0)
    async with running(member(kafka, topic, group), handler):
        await until(lambda: handler.offsets == [1, 3, 5])
        assert [record.offset for record in handler.begun if record.key == b"a"] == [0]
        handler.let_go(0)
        await until(lambda: len(handler.done) == 6)
    assert [record.offset for record in handler.done if record.key == b"a"] == [0, 2, 4]


@pytest.mark.real_if_long
async def test_records_without_a_key_are_in_no_order(
    kafka: KafkaHandle, topic: str, group: str
) -> None:
    await kafka.produce(topic, 0, [(None, b"") for i in range(5)])
    handler = Handler()
    handler.hold(0)
    async with running(member(kafka, topic, group), handler):
        await until(lambda: handler.offsets == [1, 2, 3, 4])
        handler.let_go()


@pytest.mark.real_if_long
@pytest.mark.parametrize("batch_size", [None, 1])
async def test_handlers_that_never_wait_let_the_loop_run(
    kafka: KafkaHandle, topic: str, group: str, batch_size: int | None
) -> None:
    await kafka.produce(topic, 0, rows(0, 300))
    turns_at: list[int] = []
    turns = 0

    async def handle(record: object) -> None:
        time.sleep(0.001)  # noqa: ASYNC251 -- what it is about
        turns_at.append(turns)

    async with running(member(kafka, topic, group), handle, concurrency=100, batch_size=batch_size):
        while len(turns_at) < 300:
            turns += 1
            await asyncio.sleep(0)
    assert max(Counter(turns_at).values()) <= 20


@pytest.mark.real_if_long
async def test_a_partition_in_order_is_handled_one_by_one(
    kafka: KafkaHandle, topic: str, group: str
) -> None:
    await kafka.produce(topic, 0, rows(0, 50))
    handler = Handler()
    async with running(member(kafka, topic, group), handler, order="partition"):
        await until(lambda: len(handler.done) == 50)
    assert handler.offsets == list(range(50))
    assert handler.most_at_once == 1


@pytest.mark.real_if_long
async def test_lists_have_what_is_ready_and_keep_the_order_of_keys(
    kafka: KafkaHandle, topic: str, group: str
) -> None:
    await kafka.produce(topic, 0, [(b"%d" % (i % 3), b"") for i in range(40)])
    lists: list[list[Record]] = []

    async def handle(records: list[Record]) -> None:
        lists.append(records)
        await asyncio.sleep(0)

    async with running(member(kafka, topic, group), handle, batch_size=8, concurrency=4):
        await until(lambda: sum(map(len, lists)) == 40)
    assert max(map(len, lists)) == 8
    for key in (b"0", b"1", b"2"):
        offsets = [r.offset for records in lists for r in records if r.key == key]
        assert offsets == sorted(offsets)
    assert await committed(kafka, group, TopicPartition(topic, 0)) == (40, "")


@pytest.mark.real_if_long
async def test_a_list_that_fails_is_tried_record_by_record(
    kafka: KafkaHandle, topic: str, group: str
) -> None:
    await kafka.produce(topic, 0, [(b"%d" % (i % 2), b"") for i in range(6)])
    dead: list[DeadRecord] = []
    done: list[int] = []

    async def handle(records: list[Record]) -> None:
        await asyncio.sleep(0)
        if any(record.offset == 3 for record in records):
            raise ValueError("bad")
        done.extend(record.offset for record in records)

    async def bury(record: DeadRecord) -> None:
        dead.append(record)

    async with running(
        member(kafka, topic, group), handle, batch_size=10, dead_letter=bury, breaker=None
    ):
        await until(lambda: len(done) == 5 and len(dead) == 1)
    assert dead[0].record.offset == 3
    assert dead[0].attempts == 1
    assert [offset for offset in done if offset % 2] == [1, 5]
    assert await committed(kafka, group, TopicPartition(topic, 0)) == (6, "")


# --- What is committed ------------------------------------------------------------------------
async def test_nothing_is_committed_behind_a_record_that_is_not_finished(
    kafka: KafkaHandle, topic: str, group: str
) -> None:
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 30))
    handler = Handler()
    handler.hold(7)
    async with running(member(kafka, topic, group), handler, order=None) as task:
        await until(lambda: len(handler.done) == 29)
        await asyncio.sleep(0.3)
        found = await committed(kafka, group, tp)
        assert found is not None
        assert found[0] == 7
        assert found[1].startswith("aiokafka-lite/1 ")
        task.cancel()
        await asyncio.wait([task])
    assert handler.cancelled == [handler.begun[7]]

    again = Handler()
    async with running(member(kafka, topic, group), again, order=None):
        await until(lambda: 7 in again.offsets)
        await kafka.produce(topic, 0, rows(30, 5))
        await until(lambda: 34 in again.offsets)
    assert sorted(again.offsets) == [7, 30, 31, 32, 33, 34]


@pytest.mark.parametrize(
    ("end", "handled", "epochs"),
    [
        (2, [b"C", b"D", b"b"], 1),
        (3, [b"D", b"b"], 1),
        # The log has no record of the epoch that the commit names: nothing is passed over.
        (3, [b"D", b"b", b"c"], 2),
    ],
)
async def test_after_a_truncation_what_replaces_finished_records_is_handled_and_what_is_left_is_not(
    end: int, handled: list[bytes], epochs: int
) -> None:
    async with Broker(nodes=2) as broker:
        broker.create_topic("t")
        kafka, tp = KafkaHandle("embedded", broker.bootstrap_servers), TopicPartition("t", 0)
        for value in (b"a", b"b", b"c", b"d"):
            if value == b"d" and epochs == 2:
                broker.move_leader(tp)
            broker.partition(*tp).append(build_batch([(1_000, None, value, ())]))
        await commit_of_all_but(kafka, tp, 1, count=4)
        broker.truncate(tp, end)
        for value in (b"C", b"D")[end - 2 :]:
            broker.partition(*tp).append(build_batch([(1_000, None, value, ())]))
        again = Handler()
        async with running(member(kafka, "t", "g"), again):
            await until(lambda: any(record.offset == 3 for record in again.done))
        assert sorted(record.value or b"" for record in again.done) == handled


async def commit_of_all_but(
    kafka: KafkaHandle, tp: TopicPartition, held: int, count: int = 5
) -> tuple[int, str]:
    """Handle the first records but one, which is cancelled; return what is committed."""
    handler = Handler()
    handler.hold(held)
    async with running(member(kafka, tp.topic, "g"), handler) as task:
        await until(lambda: set(handler.offsets) == {*range(count)} - {held})
        task.cancel()
        await asyncio.wait([task])
    found = await committed(kafka, "g", tp)
    assert found is not None
    assert found[0] == held
    assert found[1]
    return found


async def test_a_committed_offset_without_an_epoch_is_compared_by_that_of_what_is_finished() -> (
    None
):
    async with Broker(nodes=2) as broker:
        broker.create_topic("t")
        kafka, tp = KafkaHandle("embedded", broker.bootstrap_servers), TopicPartition("t", 0)
        for value in (b"a", b"b", b"c", b"d", b"e"):
            broker.partition(*tp).append(build_batch([(1_000, None, value, ())]))
        found = await commit_of_all_but(kafka, tp, 3)
        async with AIOKafkaConsumer(
            bootstrap_servers=broker.bootstrap_servers, group_id="g", enable_auto_commit=False
        ) as other:
            other.assign([tp])
            other.seek(tp, 0)  # it has read no record whose epoch it could commit
            await other.commit({tp: OffsetAndMetadata(*found)})
        broker.truncate(tp, 2)
        for value in (b"C", b"D", b"E"):
            broker.partition(*tp).append(build_batch([(1_000, None, value, ())]))
        again = Handler()
        async with running(member(kafka, "t", "g"), again):
            await until(lambda: any(record.offset == 4 for record in again.done))
        assert sorted(record.value or b"" for record in again.done) == [b"C", b"D", b"E"]


async def test_finished_ranges_of_an_older_epoch_than_the_committed_offsets_are_passed_over() -> (
    None
):
    """A commit may have the epoch of a later record than the one before its offset."""
    async with Broker(nodes=2) as broker:
        broker.create_topic("t")
        kafka, tp = KafkaHandle("embedded", broker.bootstrap_servers), TopicPartition("t", 0)
        for value in (b"a", b"b", b"c", b"d", b"e"):
            broker.produce("t", value)
        found = await commit_of_all_but(kafka, tp, 1)
        broker.move_leader(tp)
        broker.produce("t", b"f")
        group = GroupRequests(kafka, "g")
        assert await group.commit("t", found[0], leader_epoch=1, metadata=found[1]) == 0
        again = Handler()
        async with running(member(kafka, "t", "g"), again):
            await until(lambda: any(record.offset == 5 for record in again.done))
        assert sorted(record.value or b"" for record in again.done) == [b"b", b"f"]


@pytest.mark.real_if_long
async def test_other_gets_after_it_begin_at_the_first_that_is_not_finished(
    kafka: KafkaHandle, topic: str, group: str
) -> None:
    await kafka.produce(topic, 0, rows(0, 10))
    handler = Handler()
    handler.hold(3)
    async with member(kafka, topic, group) as consumer:
        task = asyncio.create_task(consumer.run(handler, order=None))
        await until(lambda: len(handler.done) == 9)
        with pytest.raises(IllegalStateError, match="passes every record to its handler"):
            await consumer.getmany()
        with pytest.raises(IllegalStateError, match="already active"):
            await consumer.run(handler)
        task.cancel()
        await asyncio.wait([task])
        assert (await consumer.getone()).offset == 3

        again = Handler()
        task = asyncio.create_task(consumer.run(again, order=None))
        await asyncio.sleep(0.2)
        task.cancel()
        await asyncio.wait([task])
        assert again.offsets == []


@pytest.mark.real_if_long
async def test_it_takes_all_records_from_iterators_too(
    kafka: KafkaHandle, topic: str, group: str
) -> None:
    await kafka.produce(topic, 0, rows(0, 600))
    handler = Handler()
    async with member(kafka, topic, group) as consumer:
        iterator = aiter(consumer)
        assert (await anext(iterator)).offset == 0
        waiting = asyncio.create_task(consumer.getone(TopicPartition(topic, 0)))
        consumer.pause(TopicPartition(topic, 0))
        await asyncio.sleep(0)
        with pytest.raises(IllegalStateError, match="a read is waiting"):
            await consumer.run(handler)
        waiting.cancel()
        await asyncio.wait([waiting])
        consumer.resume(TopicPartition(topic, 0))
        handler.hold(*range(600))
        task = asyncio.create_task(consumer.run(handler, order=None, concurrency=10))
        await until(lambda: len(handler.begun) == 10)
        for _ in range(3):
            with pytest.raises(IllegalStateError, match="passes every record to its handler"):
                await anext(iterator)
        handler.let_go()
        await until(lambda: len(handler.done) == 599)
        task.cancel()
        await asyncio.wait([task])
    assert sorted(handler.offsets) == list(range(1, 600))


async def test_a_stop_waits_for_handlers_and_commits_what_they_did(
    kafka: KafkaHandle, topic: str, group: str
) -> None:
    await kafka.produce(topic, 0, rows(0, 10))
    handler = Handler()
    handler.hold(*range(10))
    consumer = member(kafka, topic, group)
    await consumer.start()
    task = asyncio.create_task(consumer.run(handler, order=None, concurrency=4))
    await until(lambda: len(handler.begun) == 4)
    stopping = asyncio.create_task(consumer.stop())
    await asyncio.sleep(0.2)
    assert not stopping.done()
    handler.let_go()
    assert await stopping == {}
    await task
    assert handler.offsets == [0, 1, 2, 3]
    assert len(handler.begun) == 4
    assert await committed(kafka, group, TopicPartition(topic, 0)) == (4, "")


@pytest.mark.real_if_long
async def test_a_stop_cuts_off_what_takes_too_long(
    kafka: KafkaHandle, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    await kafka.produce(topic, 0, rows(0, 3))
    handler = Handler()
    handler.hold(1)
    consumer = member(kafka, topic, group)
    await consumer.start()
    task = asyncio.create_task(consumer.run(handler, order=None))
    await until(lambda: len(handler.done) == 2)
    async with timeout(3):
        await consumer.stop(0.5)
        await task
    assert [record.offset for record in handler.cancelled] == [1]
    assert f"are cancelled: {topic}/0 offset 1" in caplog.text
    found = await committed(kafka, group, TopicPartition(topic, 0))
    assert found is not None
    assert found[0] == 1
    assert found[1]


@pytest.mark.real_if_long
async def test_a_handler_may_stop_the_consumer(kafka: KafkaHandle, topic: str, group: str) -> None:
    await kafka.produce(topic, 0, rows(0, 3))
    consumer = member(kafka, topic, group)
    await consumer.start()

    async def handle(record: Record) -> None:
        await consumer.stop()

    async with timeout(PATIENCE_S):
        await consumer.run(handle, concurrency=1)


@pytest.mark.real_if_long
async def test_a_commit_in_a_handler_commits_only_what_is_finished(
    kafka: KafkaHandle, topic: str, group: str
) -> None:
    await kafka.produce(topic, 0, rows(0, 3))
    consumer = member(kafka, topic, group, auto_commit_interval_ms=100_000)
    done, seen = asyncio.Event(), asyncio.Event()

    async def handle(record: Record) -> None:
        if record.offset == 2:
            await consumer.commit()
            done.set()
            await seen.wait()  # what is finished is committed soon

    async with running(consumer, handle, order="partition"):
        await done.wait()
        found = await committed(kafka, group, TopicPartition(topic, 0))
        seen.set()
        assert found == (2, "")


@pytest.mark.real_if_long
async def test_a_commit_of_its_own_record_in_a_handler_drops_no_other(
    kafka: KafkaHandle, topic: str, group: str
) -> None:
    # Each client's idiom: the offset behind the record that was just processed.
    await kafka.produce(topic, 0, rows(0, 20))
    tp = TopicPartition(topic, 0)
    handled: list[int] = []
    offsets: list[int] = []
    consumer = member(kafka, topic, group)

    async def handle(record: Record) -> None:
        await asyncio.sleep(0.02 if record.offset % 2 == 0 else 0)
        await consumer.commit({tp: record.offset + 1})
        handled.append(record.offset)
        offsets.append((await consumer.committed(tp)) or 0)

    async with running(consumer, handle, order=None):
        await until(lambda: len(handled) == 20)
    assert sorted(handled) == list(range(20))
    assert offsets == sorted(offsets)
    assert await committed(kafka, group, tp) == (20, "")


@pytest.mark.real_if_long
async def test_a_commit_of_its_own_record_is_as_good_as_the_handlers_return(
    kafka: KafkaHandle, topic: str, group: str
) -> None:
    await kafka.produce(topic, 0, rows(0, 4))
    tp = TopicPartition(topic, 0)
    consumer = member(kafka, topic, group, auto_commit_interval_ms=100_000)
    handler, seen = Handler(), asyncio.Event()
    handler.hold(0)
    found: list[tuple[int, str] | None] = []

    async def handle(record: Record) -> None:
        await handler(record)
        if record.offset == 2:
            await consumer.commit({tp: 3})
            found.append(await committed(kafka, group, tp))
            handler.let_go(0)
            await seen.wait()

    async with running(consumer, handle, order=None, concurrency=3):
        await until(lambda: len(handler.done) == 4)
        seen.set()
    # Record 0 was with its handler: 2 is committed behind it.
    assert found[0] is not None
    offset, metadata = found[0]
    assert offset == 0
    assert metadata
    assert await committed(kafka, group, tp) == (4, "")


async def test_a_list_of_records_is_committed_up_to_its_last_one(
    kafka: KafkaHandle, topic: str, group: str
) -> None:
    await kafka.produce(topic, 0, rows(0, 20))
    tp = TopicPartition(topic, 0)
    consumer = member(kafka, topic, group)
    handled: list[int] = []

    async def handle(records: list[Record]) -> None:
        await consumer.commit({tp: records[-1].offset + 1})
        handled.extend(record.offset for record in records)

    async with running(consumer, handle, order="partition", batch_size=3):
        await until(lambda: len(handled) == 20)
    assert handled == list(range(20))
    assert await committed(kafka, group, tp) == (20, "")


@pytest.mark.real_if_long
async def test_a_commit_of_what_others_handle_is_refused(
    kafka: KafkaHandle, topic: str, group: str
) -> None:
    other = await kafka.create_topic(partitions=1)
    await kafka.produce(topic, 0, rows(0, 6))
    await kafka.produce(other, 0, rows(0, 3))
    tp, elsewhere = TopicPartition(topic, 0), TopicPartition(other, 0)
    consumer = member(kafka, topic, group)
    consumer.subscribe([topic, other])
    refusals: list[str] = []
    handled: list[tuple[str, int]] = []

    async def refused(offsets: dict[TopicPartition, int | tuple[int, str]]) -> None:
        with pytest.raises(IllegalStateError) as raised:
            await consumer.commit(dict(offsets))
        refusals.append(str(raised.value))

    async def handle(record: Record) -> None:
        if record.topic == other:
            await until(lambda: len(refusals) >= 3)
        elif record.offset == 1:
            await refused({tp: 3})
            await refused({tp: 2, elsewhere: 3})
            await refused({tp: (2, "mine")})
        handled.append((record.topic, record.offset))

    async with running(consumer, handle, order="partition"):
        await until(lambda: len(refusals) >= 3)
        await asyncio.create_task(refused({elsewhere: 2}))  # no handler's task
        await until(lambda: len(handled) == 9)
    assert "at most offset 2 of" in refusals[0]
    assert str(elsewhere) in refusals[1]
    assert "metadata" in refusals[2]
    assert await committed(kafka, group, tp) == (6, "")
    assert await committed(kafka, group, elsewhere) == (3, "")


# --- What fails -------------------------------------------------------------------------------
@pytest.mark.real_if_long
async def test_a_failure_without_a_policy_ends_it_and_is_not_committed(
    kafka: KafkaHandle, topic: str, group: str
) -> None:
    await kafka.produce(topic, 0, rows(0, 5))
    handler = Handler()
    handler.failures[2] = [ValueError("no")]
    async with member(kafka, topic, group) as consumer:
        with pytest.raises(ValueError, match="no"):
            await consumer.run(handler, order="partition")
        assert handler.offsets == [0, 1]
    found = await committed(kafka, group, TopicPartition(topic, 0))
    assert found is not None
    assert found[0] == 2


@pytest.mark.real_if_long
async def test_after_run_has_failed_health_says_so_until_records_are_read(
    kafka: KafkaHandle, topic: str, group: str
) -> None:
    async def handle(record: Record) -> None:
        raise ValueError("no" * 100)

    await kafka.produce(topic, 0, rows(0, 5))
    async with timeout(PATIENCE_S), member(kafka, topic, group) as consumer:
        with pytest.raises(ValueError, match="no"):
            await consumer.run(handle)
        health = consumer.health()
        assert health.verdict == "degraded"
        shortened = repr(ValueError("no" * 100))[:200]
        assert health.reasons == (
            f"run() ended with {shortened}: no records are processed until run() is called again",
        )
        await consumer.getone()
        assert consumer.health().verdict == "ok"


@pytest.mark.real_if_long
async def test_lag_counts_from_the_first_record_that_is_not_finished(
    kafka: KafkaHandle, topic: str, group: str
) -> None:
    await kafka.produce(topic, 0, rows(0, 50))
    handler = Handler()
    handler.hold(*range(10, 50))
    consumer = member(kafka, topic, group)
    assert consumer.health().handling is None
    async with running(consumer, handler, concurrency=7, order=None):
        await until(lambda: len(handler.done) == 10 and handler.at_once == 7)
        health, metrics = consumer.health(), consumer.metrics()
        assert (health.lag, metrics["lag"]) == (40, 40)
        assert health.handling is not None
        assert (health.handling.at_work, health.handling.unfinished) == (7, 40)
        assert not health.handling.is_paused
        handler.let_go()
        await until(lambda: len(handler.done) == 50 and consumer.health().lag == 0)


@pytest.mark.real_if_long
async def test_handlers_that_are_paused_are_shown(
    kafka: KafkaHandle, topic: str, group: str
) -> None:
    await kafka.produce(topic, 0, rows(0, 5))

    async def handle(record: Record) -> None:
        raise ConnectionError

    consumer = member(kafka, topic, group)
    retry, breaker = Retry(attempts=None), CircuitBreaker(min_calls=1, first_pause_ms=30_000)
    async with running(consumer, handle, retry=retry, breaker=breaker):
        await until(lambda: (found := consumer.health().handling) and found.is_paused)
        assert consumer.metrics()["processing_paused"] == 1
        assert consumer.health().lag == 5


@pytest.mark.real_if_long
async def test_a_record_that_is_tried_again_holds_up_only_its_key(
    kafka: KafkaHandle, topic: str, group: str
) -> None:
    await kafka.produce(topic, 0, [(b"%d" % (i % 2), b"") for i in range(8)])
    handler = Handler()
    handler.failures[0] = [ValueError(), ConnectionError()]
    retry = Retry(attempts=3, first_delay_ms=100)
    async with running(member(kafka, topic, group), handler, retry=retry, concurrency=1):
        await until(lambda: handler.offsets == [1, 3, 5, 7])
        await until(lambda: len(handler.done) == 8)
    assert handler.offsets[4:] == [0, 2, 4, 6]


@pytest.mark.real_if_long
async def test_what_nothing_is_left_to_try_with_is_dead(
    kafka: KafkaHandle, topic: str, group: str
) -> None:
    await kafka.produce(topic, 0, rows(0, 20))
    handler = Handler()
    handler.failures[4] = [KeyError(n) for n in range(9)]
    handler.failures[6] = [TypeError()]
    dead: list[DeadRecord] = []

    async def bury(record: DeadRecord) -> None:
        dead.append(record)

    retry = Retry(attempts=3, first_delay_ms=1, dead=TypeError)
    async with running(
        member(kafka, topic, group),
        handler,
        order=None,
        retry=retry,
        dead_letter=bury,
        concurrency=2,
    ):
        await until(lambda: len(handler.done) == 18 and dead)
        await kafka.produce(topic, 0, rows(20, 1))  # which proves that others fare better
        await until(lambda: len(handler.done) == 19 and len(dead) == 2)
    assert {(each.record.offset, each.attempts) for each in dead} == {(4, 3), (6, 1)}
    assert isinstance(dead[0].error, TypeError)
    assert await committed(kafka, group, TopicPartition(topic, 0)) == (21, "")


@pytest.mark.real_if_long
async def test_a_record_that_began_before_the_pause_proves_that_others_fare_better(
    kafka: KafkaHandle, topic: str, group: str
) -> None:
    await kafka.produce(topic, 0, rows(0, 2))
    handler = Handler()
    handler.failures[0] = [KeyError(n) for n in range(9)]
    handler.hold(1)
    dead: list[DeadRecord] = []

    async def bury(record: DeadRecord) -> None:
        dead.append(record)

    consumer = member(kafka, topic, group)
    retry = Retry(attempts=2, first_delay_ms=1)
    breaker = CircuitBreaker(first_pause_ms=20, max_pause_ms=60_000)
    async with running(consumer, handler, retry=retry, breaker=breaker, dead_letter=bury):
        await until(lambda: any("paused" in reason for reason in consumer.health().reasons))
        assert not dead
        handler.let_go(1)  # and nothing comes after it
        await until(lambda: bool(dead))
    assert [(each.record.offset, each.attempts) for each in dead] == [(0, 2)]


@pytest.mark.real_if_long
async def test_a_dead_letter_that_cannot_be_written_keeps_its_record(
    kafka: KafkaHandle, topic: str, group: str
) -> None:
    await kafka.produce(topic, 0, rows(0, 5))
    handler = Handler()
    handler.failures[1] = [TypeError()]
    is_down = True
    tries = 0

    async def bury(record: DeadRecord) -> None:
        nonlocal tries
        tries += 1
        if is_down:
            raise ConnectionError("no dead letters today")

    consumer = member(kafka, topic, group)
    async with running(
        consumer, handler, order=None, retry=Retry(dead=TypeError), dead_letter=bury
    ):
        await until(lambda: len(handler.done) == 4 and tries > 1)
        await asyncio.sleep(0.2)
        found = await committed(kafka, group, TopicPartition(topic, 0))
        assert found is not None
        assert found[0] == 1
        health = consumer.health()
        assert health.verdict == "degraded"
        assert any("no dead letters today" in reason for reason in health.reasons)
        is_down = False
        await until(lambda: consumer.metrics()["processing_dead_total"] == 1)
    assert await committed(kafka, group, TopicPartition(topic, 0)) == (5, "")


@pytest.mark.real_if_long
async def test_while_everything_fails_nothing_is_dead_and_one_record_is_tried_now_and_then(
    kafka: KafkaHandle, topic: str, group: str
) -> None:
    await kafka.produce(topic, 0, rows(0, 200))
    is_down = True
    calls = 0
    done: list[int] = []
    dead: list[DeadRecord] = []

    async def handle(record: Record) -> None:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0)
        if is_down:
            raise ConnectionError("the database is down")
        done.append(record.offset)

    async def bury(record: DeadRecord) -> None:
        dead.append(record)

    breaker = CircuitBreaker(min_calls=10, first_pause_ms=30, max_pause_ms=30)
    consumer = member(kafka, topic, group)
    async with running(
        consumer,
        handle,
        order=None,
        concurrency=5,
        retry=Retry(attempts=2, first_delay_ms=1),
        dead_letter=bury,
        breaker=breaker,
    ):
        await until(lambda: consumer.health().verdict == "degraded")
        assert "the database is down" in " ".join(consumer.health().reasons)
        before = calls
        await asyncio.sleep(0.5)
        assert before < calls < before + 40
        is_down = False
        await until(lambda: len(done) == 200)
        assert consumer.health().is_ok
    assert not dead
    assert sorted(done) == list(range(200))


# --- Arguments --------------------------------------------------------------------------------
@for_each(
    [
        (0, ValueError),
        (-1, ValueError),
        (float("inf"), ValueError),
        (True, TypeError),
        ("5", TypeError),
    ]
)
def test_the_time_limit_is_a_positive_number(limit: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="timeout_s must be a"):
        Handling(1, None, None, 1, Retry(), None, None, timeout_s=limit)


@for_each(itertools.product(["concurrency", "batch_size", "max_uncommitted"], [0, True, "5"]))
def test_a_number_that_is_no_positive_int_is_refused(name: str, number: object) -> None:
    numbers: dict[str, Any] = {"concurrency": 1, "batch_size": 1, "max_uncommitted": 1}
    with pytest.raises(ValueError, match=f"{name} must be a positive int"):
        Handling(
            order="key", retry=Retry(), dead_letter=None, breaker=None, **{**numbers, name: number}
        )


@pytest.mark.real_if_long
@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"order": "keys"}, ValueError),
        ({"handler": Handler}, TypeError),
        ({"retry": 0}, ValueError),
        ({"retry": True}, TypeError),
        ({"retry": "5"}, TypeError),
        ({"dead_letter": ""}, ValueError),
        ({"dead_letter": print}, TypeError),
        ({"dead_letter": DeadLetters}, TypeError),
        ({"dead_letter": 5}, TypeError),
        ({"breaker": False}, TypeError),
        ({"breaker": Retry()}, TypeError),
        ({"order": []}, ValueError),
        ({"concurrency": "5"}, ValueError),
    ],
)
async def test_an_argument_that_cannot_be_used_is_refused(
    kafka: KafkaHandle, topic: str, group: str, arguments: dict[str, object], kind: type[Exception]
) -> None:
    async with member(kafka, topic, group) as consumer:
        (name,) = arguments
        with pytest.raises(kind, match=f"{name}|dead letters|DeadLetters|attempts"):
            await consumer.run(**{"handler": Handler(), **arguments})  # type: ignore[call-overload]
        assert consumer.health().is_ok


@pytest.mark.real_if_long
async def test_a_number_of_attempts_and_the_name_of_a_topic_are_enough(
    kafka: KafkaHandle, topic: str, group: str
) -> None:
    letters = await kafka.create_topic(partitions=1)
    await kafka.produce(topic, 0, rows(0, 10))
    handler = Handler()
    handler.failures[3] = [ValueError(), ValueError(), ValueError()]
    consumer = member(kafka, topic, group)
    arguments = {"order": None, "retry": 3, "dead_letter": letters, "breaker": None}
    async with running(consumer, handler, **arguments):
        await until(lambda: consumer.metrics()["processing_dead_total"] == 1)
    assert sorted(handler.offsets) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert len([record for record in handler.begun if record.offset == 3]) == 3


@pytest.mark.parametrize("name", ["on", "dead", "stop"])
def test_what_a_policy_names_are_classes_of_exceptions(name: str) -> None:
    for wrong in ("ValueError", ValueError(), (ValueError, "OSError"), int):
        with pytest.raises(TypeError, match=name):
            Retry(**{name: wrong})  # type: ignore[arg-type]


async def test_what_is_buffered_before_is_fetched_again_only_for_dead_letters() -> None:
    fetched: list[object] = []

    async def bury(_: DeadRecord) -> None:
        """Keep nothing."""

    async with Broker() as broker:
        broker.create_topic("t")
        broker.produce_all("t", [NewRecord(b"%d" % number) for number in range(10)])
        for settings in ({}, {"dead_letter": bury}):
            consumer = AIOKafkaConsumer(
                "t",
                bootstrap_servers=broker.bootstrap_servers,
                auto_offset_reset="earliest",
                value_deserializer=int,
            )
            await consumer.start()
            await until(lambda: consumer.metrics()["fetched_bytes_total"])  # noqa: B023
            before = consumer.metrics()["fetched_bytes_total"]
            handler = Handler()
            run = asyncio.ensure_future(consumer.run(handler, **settings))  # type: ignore[call-overload]
            await until(lambda: len(handler.done) == 10)  # noqa: B023
            fetched.append(consumer.metrics()["fetched_bytes_total"] != before)
            await consumer.stop()
            await run
    assert fetched == [False, True]
