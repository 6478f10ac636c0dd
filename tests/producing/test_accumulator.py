"""Records become batches, in time and within the room there is; without a network."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from types import MappingProxyType

import pytest

from aiokafka_lite.client.view import ClusterView, Node, PartitionView, TopicView
from aiokafka_lite.errors import (
    IllegalArgumentError,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    MessageSizeTooLargeError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.producing.accumulator import Accumulator
from aiokafka_lite.producing.batch import (
    RECORD_OVERHEAD_BYTES,
    Headers,
    OwnBatch,
    ProducerBatch,
    ProducerIdAndEpoch,
)
from aiokafka_lite.producing.config import ProducerConfig
from aiokafka_lite.producing.partition_queue import TIMER_SLACK_S, PartitionQueue
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.records.codec import Codec
from aiokafka_lite.structs import RecordMetadata

pytestmark = pytest.mark.virtual_time
ME = ProducerIdAndEpoch(1, 0)


class Sending:
    """An accumulator, and who is woken by it."""

    def __init__(self, partitions: int = 1, **settings: object) -> None:
        config: ProducerConfig = ProducerConfig(**settings)  # type: ignore[arg-type]
        self.loop = asyncio.get_running_loop()
        self.woken: list[tuple[float, PartitionQueue]] = []
        self.expired: list[ProducerBatch] = []
        self.losses: list[KafkaError] = []
        self.accumulator = Accumulator(
            config,
            self.loop,
            random.Random(1),
            wake=self._wake,
            give_up=self._give_up,
            why_unsent=lambda queue: None,
            on_loss=self._lose,
        )
        self.accumulator.add_topic("t")
        self.lead(range(partitions), partitions)

    def lead(self, led: range, partitions: int, topic_id: bytes = ZERO_UUID) -> None:
        """Let metadata come, with leaders for some of the partitions."""
        views = {n: PartitionView(1 if n in led else -1, 0) for n in range(partitions)}
        self.take(TopicView("t", topic_id, partitions=MappingProxyType(views)))

    def take(self, *topics: TopicView) -> None:
        """Take metadata of these topics."""
        self.accumulator.view_changed(
            ClusterView(
                nodes=MappingProxyType({1: Node(1, "h", 1)}),
                topics=MappingProxyType({topic.name: topic for topic in topics}),
            )
        )

    def _lose(self, error: KafkaError) -> bool:
        self.losses.append(error)
        return True

    def _wake(self, queue: PartitionQueue) -> None:
        self.woken.append((self.loop.time(), queue))

    def _give_up(self, queue: PartitionQueue, batch: ProducerBatch, error: KafkaError) -> None:
        self.expired.append(batch)
        queue.expire(batch)
        batch.fail(error)
        self.accumulator.finished(batch)

    def append(
        self, value: bytes = b"v", partition: int | None = 0
    ) -> asyncio.Future[RecordMetadata]:
        future = self.accumulator.append("t", None, value, partition, 0, ())
        assert future is not None
        return future

    async def in_turn(self, value: bytes, deadline: float = 1_000.0) -> None:
        """Append a record once it fits."""
        await self.accumulator.in_turn(
            lambda: self.accumulator.append("t", None, value, 0, 0, (), is_in_turn=True), deadline
        )

    def acknowledge(self, partition: int = 0) -> None:
        """Send what goes first, and have it acknowledged."""
        queue = tuple(self.accumulator.queues())[partition]
        batch = queue.next_batch(self.loop.time())
        assert batch is not None
        queue.send(batch, ME)
        queue.acknowledge(batch)
        batch.succeed(0, -1, 0)
        self.accumulator.finished(batch)

    @property
    def batches(self) -> list[int]:
        """How many records the batches have."""
        return [batch.count for queue in self.accumulator.queues() for batch in queue.waiting]

    @property
    def waiting(self) -> list[int]:
        """How many records wait in the partitions."""
        queues = self.accumulator.queues()
        return [sum(batch.count for batch in queue.waiting) for queue in queues]


def own_batch(*headers: Headers) -> OwnBatch:
    """A batch of an application, with a record for each of these headers."""

    def encode(
        key: object, value: object, headers: Headers | None
    ) -> tuple[bytes | None, bytes | None, Headers]:
        return None, b"v", headers or ()

    own = OwnBatch(1_000, encode)
    for each in headers:
        own.append(timestamp=0, key=None, value=None, headers=each)
    return own


# --- Batches ---------------------------------------------------------------------------------
async def test_without_linger_a_queue_is_woken_with_its_first_record() -> None:
    sending = Sending()
    sending.append()
    sending.append()
    assert [when for when, _ in sending.woken] == [0.0]
    assert sending.batches == [2]


async def test_a_batch_lingers_until_its_time_comes() -> None:
    sending = Sending(linger_ms=50)
    sending.append()
    assert not sending.woken
    (queue,) = sending.accumulator.queues()
    assert queue.next_batch(0.04) is None
    await asyncio.sleep(1)
    assert [when for when, _ in sending.woken] == [0.05]
    assert queue.next_batch(0.05 - TIMER_SLACK_S) is queue.waiting[0]


async def test_a_full_batch_lingers_no_more() -> None:
    sending = Sending(linger_ms=50, max_batch_size=310)
    for _ in range(3):
        sending.append(bytes(100))
    (queue,) = sending.accumulator.queues()
    assert sending.batches == [2, 1]
    assert queue.next_batch(0.0) is queue.waiting[0]
    assert sending.woken


async def test_a_batch_is_full_by_its_size_and_not_by_what_records_may_take() -> None:
    sending = Sending(max_batch_size=1_000)
    for _ in range(200):
        sending.append(bytes(10))
    whole = sending.batches[:-1]
    (queue,) = sending.accumulator.queues()
    first = queue.waiting[0]
    queue.send(first, ME)
    assert 950 < len(first.encoded()) <= 1_000
    assert len(set(whole)) == 1
    queue.acknowledge(first)
    sending.accumulator.finished(first)
    while not sending.accumulator.is_empty:
        sending.acknowledge()
    assert sending.accumulator.used_bytes == 0


@pytest.mark.parametrize(("more_bytes", "batches"), [(0, [2]), (1, [1, 1])])
async def test_a_record_joins_a_batch_that_it_fills_exactly(
    more_bytes: int, batches: list[int]
) -> None:
    sending = Sending(linger_ms=50, max_batch_size=1_000)
    sending.append(bytes(100))
    (queue,) = sending.accumulator.queues()
    left_bytes = 1_000 - queue.waiting[0].measure() - RECORD_OVERHEAD_BYTES
    sending.append(bytes(left_bytes + more_bytes))
    assert sending.batches == batches


async def test_a_batch_of_exactly_its_largest_size_is_full() -> None:
    small = Sending(linger_ms=50)
    small.append(bytes(100))
    (queue,) = small.accumulator.queues()
    size_bytes = queue.waiting[0].measure()
    for more_bytes, is_full in ((0, True), (1, False)):
        sending = Sending(linger_ms=50, max_batch_size=size_bytes + more_bytes)
        sending.append(bytes(100))
        assert bool(sending.woken) is is_full


async def test_a_larger_record_has_a_batch_of_its_own() -> None:
    sending = Sending(linger_ms=50, max_batch_size=300)
    sending.append(bytes(1_000))
    assert sending.woken, "it is full"
    for size in (10, 1_000, 10):
        sending.append(bytes(size))
    assert sending.batches == [1, 1, 1, 1]


async def test_a_record_may_be_as_large_as_a_request() -> None:
    sending = Sending(max_request_size=1_000)
    sending.append(bytes(965))
    with pytest.raises(MessageSizeTooLargeError):
        sending.append(bytes(966))


@pytest.mark.parametrize("before", [0, 1])
async def test_a_record_that_cannot_be_written_takes_no_room(before: int) -> None:
    sending = Sending(linger_ms=50)
    for _ in range(before):
        sending.append()
    used_bytes = sending.accumulator.used_bytes
    with pytest.raises(ValueError, match="surrogates"):
        sending.accumulator.append("t", None, b"v", 0, 0, [("\ud800", b"")])
    assert sending.accumulator.used_bytes == used_bytes
    assert sending.accumulator.is_empty is not bool(before)
    sending.append()
    assert sending.batches == [before + 1]


@pytest.mark.parametrize(("enough_bytes", "count"), [(975, 15), (976, 16)])
async def test_records_without_keys_change_partitions_with_a_batchs_worth_of_bytes(
    enough_bytes: int, count: int
) -> None:
    sending = Sending(3, max_batch_size=enough_bytes)
    for others in ([0, 0], [0, count]):
        for _ in range(count):
            sending.append(bytes(30), partition=None)
        assert sorted(sending.waiting) == [*others, count]


async def test_records_of_a_key_go_to_one_partition() -> None:
    sending = Sending(3, max_batch_size=65)
    for _ in range(5):
        sending.accumulator.append("t", b"k", b"v", None, 0, ())
    assert sorted(sending.waiting) == [0, 0, 5]


async def test_records_without_keys_go_where_somebody_leads() -> None:
    sending = Sending(3)
    sending.lead(range(1, 2), 3)
    for _ in range(5):
        sending.append(partition=None)
    assert {queue.tp.partition for _, queue in sending.woken} == {1}


async def test_a_partitioner_may_choose_any_partition_while_nobody_leads_one() -> None:
    asked = []

    def first(key: bytes | None, every: list[int], available: list[int]) -> int:
        asked.append((every, available))
        return available[0]

    sending = Sending(2, partitioner=first)
    sending.lead(range(1, 2), 2)
    sending.append(partition=None)
    sending.lead(range(0), 2)
    sending.append(partition=None)
    assert asked == [([0, 1], [1]), ([0, 1], [0, 1])]


@pytest.mark.parametrize("chosen", [-1, 2])
async def test_a_partition_that_the_topic_lacks_is_the_partitioners_mistake(chosen: int) -> None:
    sending = Sending(2, partitioner=lambda key, every, available: chosen)
    with pytest.raises(IllegalArgumentError, match=f"chose partition {chosen} of 't'"):
        sending.append(partition=None)
    assert sending.accumulator.is_empty


async def test_whoever_asks_for_the_next_partition_changes_nothing() -> None:
    sending = Sending(3, max_batch_size=65)
    asked = {sending.accumulator.partition_of_next("t", None) for _ in range(100)}
    sending.append(partition=None)
    assert asked == {number for number, count in enumerate(sending.waiting) if count}


# --- Other topics of this name ---------------------------------------------------------------
@pytest.mark.parametrize(
    ("ids", "counts"),
    [((b"1" * 16, b"2" * 16), (2, 2)), ((ZERO_UUID, ZERO_UUID), (2, 1))],
    ids=["another-id", "fewer-partitions"],
)
async def test_the_first_batch_for_another_topic_goes_alone(
    ids: tuple[bytes, bytes], counts: tuple[int, int]
) -> None:
    sending = Sending(2)
    sending.lead(range(2), counts[0], ids[0])
    sending.append()
    sending.acknowledge()
    sending.lead(range(2), counts[1], ids[1])
    for _ in range(2):
        sending.append()
        sending.accumulator.send_now()
    queue, *_ = sending.accumulator.queues()
    queue.send(queue.waiting[0], ME)
    assert queue.next_batch(sending.loop.time()) is None
    assert sending.accumulator.partition_count("t") == counts[1]
    assert not sending.losses, "it was in no transaction"


async def test_more_partitions_or_an_id_at_last_are_the_same_topic() -> None:
    sending = Sending(1)
    sending.append()
    sending.acknowledge()
    sending.lead(range(3), 3)
    sending.lead(range(3), 3, b"1" * 16)
    sending.lead(range(3), 3)
    for _ in range(2):
        sending.append()
        sending.accumulator.send_now()
    queue, *_ = sending.accumulator.queues()
    queue.send(queue.waiting[0], ME)
    assert queue.next_batch(sending.loop.time()) is not None
    assert not sending.losses


@pytest.mark.parametrize("changed", [None, ("t",), ("other",)], ids=str)
async def test_metadata_of_another_topic_leave_the_partitions_as_they_were(
    changed: tuple[str, ...] | None,
) -> None:
    sending = Sending(partitions=2)
    other = TopicView("other", ZERO_UUID, partitions=MappingProxyType({0: PartitionView(1, 0)}))
    view = ClusterView(
        nodes=MappingProxyType({1: Node(1, "h", 1)}), topics=MappingProxyType({"other": other})
    )
    sending.accumulator.view_changed(view, changed)
    assert sending.accumulator.partition_count("t") == 2
    known = [each for each in (None, 0, 1, 2, -1) if sending.accumulator.has("t", each)]
    assert known == [None, 0, 1]
    assert not sending.accumulator.is_known("other")
    assert not sending.accumulator.has("other", None)


async def test_an_error_of_a_topic_that_exists_leaves_its_partitions_as_they_were() -> None:
    sending = Sending(partitions=2)
    future = sending.append()
    for name in ("absent", "u"):
        sending.accumulator.add_topic(name)
    other = TopicView("u", partitions=MappingProxyType({0: PartitionView(1, 0)}))
    sending.take(TopicView("t", error=LeaderNotAvailableError), other)
    assert sending.accumulator.partition_count("t") == 2
    assert sending.accumulator.is_known("u")
    sending.take(TopicView("t", error=UnknownTopicOrPartitionError))
    assert not sending.accumulator.is_known("t")
    assert not future.done(), "it may be created again"


async def test_records_without_keys_go_to_all_partitions_while_nobody_leads_one() -> None:
    sending = Sending(max_batch_size=65)
    sending.accumulator.add_topic("u")
    partitions = MappingProxyType({number: PartitionView(-1, 0) for number in range(2)})
    sending.take(TopicView("u", partitions=partitions))
    for _ in range(10):
        sending.accumulator.append("u", None, bytes(30), None, 0, ())
    assert sending.waiting == [0, 5, 5]


async def test_records_of_a_partition_that_is_missing_in_the_next_topic_fail_once() -> None:
    sending = Sending(2, request_timeout_ms=1_000, delivery_timeout_ms=5_000)
    sending.append(partition=1)
    _, queue = sending.accumulator.queues()
    queue.send(queue.waiting[0], ME)
    await asyncio.sleep(6)
    assert len(sending.expired) == 1
    sending.append(partition=1)
    later = queue.waiting[0]
    sending.lead(range(1), 1)
    assert len(sending.expired) == 2
    assert sending.expired[-1] is later


# --- Batches of an application -----------------------------------------------------------------
async def test_a_batch_of_ones_own_that_cannot_be_written_takes_no_room() -> None:
    sending = Sending()
    with pytest.raises(ValueError, match="surrogates"):
        sending.accumulator.append_batch("t", 0, own_batch((), [("\ud800", b"")]))
    assert sending.accumulator.used_bytes == 0
    assert sending.accumulator.is_empty


async def test_a_batch_of_ones_own_does_not_linger_and_takes_no_other_records() -> None:
    sending = Sending(linger_ms=50)
    assert sending.accumulator.append_batch("t", None, own_batch((), ())) is not None
    assert sending.woken
    sending.append()
    assert sending.batches == [2, 1]


async def test_a_batch_of_ones_own_waits_for_its_partition_and_for_room() -> None:
    own = own_batch(())
    sending = Sending(buffer_memory=own.size())
    append = sending.accumulator.append_batch
    assert append("unknown", None, own) is None
    assert append("t", 1, own) is None
    waiting = asyncio.ensure_future(sending.in_turn(b"first"))
    await asyncio.sleep(0)
    assert append("t", 0, own) is None, "another waits"
    waiting.cancel()
    await asyncio.wait([waiting])
    assert append("t", 0, own) is not None
    assert append("t", 0, own) is None
    sending.acknowledge()
    sending.take(TopicView("t", error=UnknownTopicOrPartitionError))
    assert append("t", None, own) is None


# --- Time ------------------------------------------------------------------------------------
async def test_a_batch_expires_with_its_oldest_record() -> None:
    sending = Sending(2, request_timeout_ms=1_000, delivery_timeout_ms=5_000)
    complaints: list[object] = []
    sending.loop.set_exception_handler(lambda _, context: complaints.append(context))
    first = sending.append()
    sending.append(partition=1)
    sending.acknowledge(1)
    await asyncio.sleep(3)
    sending.accumulator.send_now()
    second = sending.append()
    await asyncio.wait([first])
    assert sending.loop.time() == 5.0
    assert not second.done()
    await asyncio.wait([second])
    assert sending.loop.time() == 8.0
    for future in (first, second):
        with pytest.raises(KafkaTimeoutError, match="delivery_timeout_ms=5000"):
            future.result()
    assert len(sending.expired) == 2, "and not what is acknowledged"
    assert sending.accumulator.is_empty
    assert sending.accumulator.used_bytes == 0
    sending.append()
    assert sending.batches == [1], "the one that expired takes no more records"
    assert not complaints


async def test_flush_waits_for_what_came_before_it_only() -> None:
    sending = Sending(linger_ms=60_000)
    sending.append()
    flushing = asyncio.ensure_future(sending.accumulator.flush())
    await asyncio.sleep(0)
    sending.append()
    assert sending.batches == [1, 1]
    sending.acknowledge()
    await asyncio.wait([flushing], timeout=1)
    assert flushing.done()
    assert sending.batches == [1]


async def test_flush_waits_for_all_parts_of_a_batch_that_is_split() -> None:
    sending = Sending(linger_ms=60_000)
    flushes = []
    for count in (1, 4):
        for _ in range(count):
            sending.append()
        flushes.append(asyncio.ensure_future(sending.accumulator.flush()))
        await asyncio.sleep(0)
    first, second = flushes
    (queue,) = sending.accumulator.queues()
    sending.append()  # later than both
    whole = queue.waiting[1]
    sending.acknowledge()
    queue.send(whole, ME)
    await asyncio.wait([first])
    parts = whole.split(whole.size_bytes // 2, Codec.NONE)
    queue.replace(whole, parts)
    sending.accumulator.replaced(whole, parts)
    for _ in parts:
        await asyncio.sleep(0)
        assert not second.done()
        sending.acknowledge()
    await asyncio.wait([second], timeout=1)
    assert second.done()
    assert sending.batches == [1]


@pytest.mark.parametrize("is_all_acknowledged", [False, True])
async def test_flush_does_not_wait_for_parts_of_a_batch_that_came_later(
    *, is_all_acknowledged: bool
) -> None:
    sending = Sending(linger_ms=60_000)
    sending.append()
    flushing = asyncio.ensure_future(sending.accumulator.flush())
    await asyncio.sleep(0)
    for _ in range(4):
        sending.append()
    sending.accumulator.send_now()
    (queue,) = sending.accumulator.queues()
    first, whole = queue.waiting
    for batch in (first, whole):
        queue.send(batch, ME)
    parts = whole.split(whole.size_bytes // 2, Codec.NONE)
    queue.replace(whole, parts)
    sending.accumulator.replaced(whole, parts)
    queue.acknowledge(first)
    sending.accumulator.finished(first)
    if is_all_acknowledged:  # before the flush goes on
        for _ in parts:
            sending.acknowledge()
    await asyncio.wait([flushing], timeout=1)
    assert flushing.done()
    assert sending.accumulator.is_empty is is_all_acknowledged


async def test_batches_that_fail_unsent_take_no_room_and_those_in_flight_stay() -> None:
    sending = Sending(2)
    in_flight, unsent = sending.append(), sending.append(partition=1)
    queue, _ = sending.accumulator.queues()
    batch = queue.waiting[0]
    queue.send(batch, ME)
    sending.accumulator.fail_unsent(KafkaError("aborted"))
    assert isinstance(unsent.exception(), KafkaError)
    assert not in_flight.done()
    assert sending.accumulator.used_bytes == batch.room_bytes
    queue.acknowledge(batch)
    sending.accumulator.finished(batch)
    assert sending.accumulator.is_empty
    sending.append(partition=1)
    assert sending.batches == [1]


@pytest.mark.parametrize(("transactional_id", "count"), [(None, 2), ("tx", 0)])
async def test_errors_of_records_in_a_transaction_need_not_be_retrieved(
    transactional_id: str | None, count: int
) -> None:
    """The commit raises them."""
    sending = Sending(transactional_id=transactional_id)
    complaints: list[object] = []
    sending.loop.set_exception_handler(lambda _, context: complaints.append(context["message"]))
    sending.append()
    sending.accumulator.append_batch("t", 0, own_batch(()))
    sending.accumulator.fail_all(KafkaError("the end"))
    gc.collect()
    assert complaints == ["Future exception was never retrieved"] * count


async def test_at_the_end_each_batch_fails_and_frees_its_memory_once() -> None:
    sending = Sending(3)
    futures = [sending.append(partition=number) for number in range(3)]
    sending.acknowledge(1)
    *_, queue = sending.accumulator.queues()
    queue.send(queue.waiting[0], ME)
    sending.lead(range(2), 2)  # the topic was recreated: the batch in flight has failed
    sending.accumulator.fail_all(KafkaError("the end"))
    assert sending.accumulator.used_bytes == 0
    assert sending.accumulator.is_empty
    assert sending.batches == []
    errors = [type(future.exception()) for future in futures]
    assert errors == [KafkaError, type(None), UnknownTopicOrPartitionError]


async def test_a_closed_accumulator_is_kept_by_no_timer() -> None:
    sending = Sending()
    future = sending.append()
    sending.accumulator.fail_all(KafkaError("the end"))
    assert isinstance(future.exception(), KafkaError)
    assert sending.accumulator.used_bytes == 0
    sending.accumulator.close()
    kept = weakref.ref(sending.accumulator)
    del sending
    gc.collect()
    assert kept() is None


# --- Room ------------------------------------------------------------------------------------
async def test_a_record_takes_room_for_its_key_value_and_headers() -> None:
    sending = Sending(linger_ms=50)
    sizes = []
    for headers in ((), [("name", b"12345")]):
        before = sending.accumulator.used_bytes
        sending.accumulator.append("t", b"12", b"123", 0, 0, headers)
        sizes.append(sending.accumulator.used_bytes - before)
    assert sizes == [40, 71]


async def test_a_record_has_to_wait_until_its_partition_is_known() -> None:
    sending = Sending()
    append = sending.accumulator.append
    assert append("unknown", None, b"v", None, 0, ()) is None
    assert append("t", None, b"v", 1, 0, ()) is None
    sending.take(TopicView("t", error=UnknownTopicOrPartitionError))
    assert append("t", None, b"v", None, 0, ()) is None
    assert append("t", None, b"v", 0, 0, ()) is None
    assert sending.accumulator.is_empty


async def test_whoever_came_first_gets_room_first() -> None:
    sending = Sending(buffer_memory=150, max_batch_size=100)
    sending.append(bytes(60))
    done = []

    async def send(number: int) -> None:
        await sending.in_turn(bytes(60))
        done.append(number)

    tasks = [asyncio.ensure_future(send(number)) for number in range(6)]
    for _ in range(6):
        await asyncio.sleep(1)
        sending.acknowledge()
    await asyncio.wait(tasks)
    assert done == [0, 1, 2, 3, 4, 5]


async def test_nobody_gets_in_ahead_of_those_who_wait_for_room() -> None:
    sending = Sending(buffer_memory=150)
    sending.append(bytes(60))
    waiting = asyncio.ensure_future(sending.in_turn(bytes(60)))
    await asyncio.sleep(0)
    assert sending.accumulator.append("t", None, b"small", 0, 0, ()) is None
    sending.acknowledge()
    await waiting
    sending.acknowledge()
    sending.append(b"small")


@pytest.mark.parametrize("waiting", [1, 10])
async def test_nothing_lingers_while_somebody_waits_for_room(waiting: int) -> None:
    sending = Sending(linger_ms=60_000, buffer_memory=150)
    sending.append(bytes(60))
    tasks = [asyncio.ensure_future(sending.in_turn(bytes(60))) for _ in range(waiting)]
    for task in tasks:
        await asyncio.sleep(1)
        (queue,) = sending.accumulator.queues()
        assert queue.next_batch(sending.loop.time()) is not None
        assert sending.woken[-1][0] <= sending.loop.time()
        sending.acknowledge()
        await task
    assert sending.loop.time() == waiting


async def test_a_batch_lingers_again_once_there_is_room() -> None:
    sending = Sending(linger_ms=50, buffer_memory=150)
    sending.append(bytes(60))
    task = asyncio.ensure_future(sending.in_turn(bytes(60)))
    await asyncio.sleep(0)
    sending.acknowledge()
    await task
    sending.acknowledge()
    sending.append(bytes(60))
    (queue,) = sending.accumulator.queues()
    assert queue.next_batch(sending.loop.time() + 0.04) is None


@pytest.mark.parametrize(("linger_ms", "batches"), [(0, [2]), (60_000, [1, 1])])
async def test_a_record_that_waited_for_room_joins_a_batch_unless_that_has_to_linger(
    linger_ms: int, batches: list[int]
) -> None:
    sending = Sending(2, linger_ms=linger_ms, buffer_memory=200)
    for partition in range(2):
        sending.append(bytes(60), partition)
    append = sending.accumulator.append
    waiting = asyncio.ensure_future(
        sending.accumulator.in_turn(
            lambda: append("t", None, bytes(60), 1, 0, (), is_in_turn=True), 1_000.0
        )
    )
    await asyncio.sleep(0)
    sending.acknowledge()
    await waiting
    assert sending.batches == batches


async def test_no_room_at_the_deadline_is_an_error_that_says_how_much_waits() -> None:
    sending = Sending(buffer_memory=95)
    sending.append(bytes(60))
    with pytest.raises(KafkaTimeoutError, match="95 of buffer_memory=95 bytes"):
        await sending.in_turn(bytes(60), 2.0)
    assert sending.loop.time() == 2.0
    sending.accumulator.raise_if_never_fits(95)
    with pytest.raises(IllegalArgumentError, match="is larger than buffer_memory"):
        sending.accumulator.raise_if_never_fits(96)


async def test_a_wait_for_room_ends_when_the_topic_is_deleted() -> None:
    sending = Sending(buffer_memory=100)
    sending.append(bytes(60))

    def append() -> asyncio.Future[RecordMetadata] | None:
        if not sending.accumulator.is_known("t"):
            raise UnknownTopicOrPartitionError
        return None

    waiting = asyncio.ensure_future(sending.accumulator.in_turn(append, 1_000.0))
    await asyncio.sleep(0)
    sending.take(TopicView("t", error=UnknownTopicOrPartitionError))
    with pytest.raises(UnknownTopicOrPartitionError):
        await waiting
    assert sending.loop.time() == 0.0


async def test_cancelling_a_wait_for_room_leaves_the_row() -> None:
    sending = Sending(buffer_memory=150)
    sending.append(bytes(60))
    first, second = [asyncio.ensure_future(sending.in_turn(bytes(60))) for _ in range(2)]
    await asyncio.sleep(0)
    first.cancel()
    sending.acknowledge()
    await second
    assert sending.loop.time() == 0.0
