"""Records become batches, in time and within the room there is; without a network."""

from __future__ import annotations

import asyncio
import random
from types import MappingProxyType

import pytest

from aiokafka_lite.client.view import ClusterView, Node, PartitionView, TopicView
from aiokafka_lite.errors import KafkaError, KafkaTimeoutError
from aiokafka_lite.producing.accumulator import Accumulator
from aiokafka_lite.producing.batch import Headers, ProducerBatch, ProducerIdAndEpoch
from aiokafka_lite.producing.config import ProducerConfig
from aiokafka_lite.producing.own_batch import OwnBatch
from aiokafka_lite.producing.partition_queue import PartitionQueue
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
        topic = TopicView("t", topic_id, partitions=MappingProxyType(views))
        self.accumulator.view_changed(
            ClusterView(
                nodes=MappingProxyType({1: Node(1, "h", 1)}),
                topics=MappingProxyType({"t": topic}),
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

    def acknowledge(self) -> None:
        """Send what goes first, and have it acknowledged."""
        (queue, *_) = self.accumulator.queues()
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
    assert queue.next_batch(0.05) is queue.waiting[0]


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
    queue.send(queue.waiting[0], ME)
    assert 950 < len(queue.numbered[0].encoded()) <= 1_000
    assert len(set(whole)) == 1


async def test_a_larger_record_has_a_batch_of_its_own() -> None:
    sending = Sending(max_batch_size=300)
    for size in (10, 1_000, 10):
        sending.append(bytes(size))
    assert sending.batches == [1, 1, 1]


async def test_records_without_keys_change_partitions_with_a_batchs_worth_of_bytes() -> None:
    sending = Sending(3, max_batch_size=1_000)
    for _ in range(15):
        sending.append(bytes(30), partition=None)
    assert len({queue.tp.partition for _, queue in sending.woken}) == 1
    for _ in range(15):
        sending.append(bytes(30), partition=None)
    assert len({queue.tp.partition for _, queue in sending.woken}) == 2


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
    assert not sending.accumulator.is_known("other")


async def test_a_batch_of_ones_own_that_cannot_be_written_takes_no_room() -> None:
    sending = Sending()

    def encode(
        key: object, value: object, headers: Headers | None
    ) -> tuple[bytes | None, bytes | None, Headers]:
        return None, b"v", headers or ()

    own = OwnBatch(1_000, encode)
    own.append(timestamp=0, key=None, value=None)
    own.append(timestamp=0, key=None, value=None, headers=[("\ud800", b"")])
    with pytest.raises(ValueError, match="surrogates"):
        sending.accumulator.append_batch("t", 0, own)
    assert sending.accumulator.used_bytes == 0
    assert sending.accumulator.is_empty


# --- Time ------------------------------------------------------------------------------------
async def test_a_batch_expires_with_its_oldest_record() -> None:
    sending = Sending(request_timeout_ms=1_000, delivery_timeout_ms=5_000)
    first = sending.append()
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
    assert sending.accumulator.is_empty
    assert sending.accumulator.used_bytes == 0


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


async def test_flush_does_not_wait_for_parts_of_a_batch_that_came_later() -> None:
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
    await asyncio.wait([flushing], timeout=1)
    assert flushing.done()


# --- Room ------------------------------------------------------------------------------------
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


async def test_no_room_at_the_deadline_is_an_error_that_says_how_much_waits() -> None:
    sending = Sending(buffer_memory=150)
    sending.append(bytes(60))
    with pytest.raises(KafkaTimeoutError, match="95 of buffer_memory=150 bytes"):
        await sending.in_turn(bytes(60), 2.0)
    assert sending.loop.time() == 2.0


async def test_cancelling_a_wait_for_room_leaves_the_row() -> None:
    sending = Sending(buffer_memory=150)
    sending.append(bytes(60))
    first, second = [asyncio.ensure_future(sending.in_turn(bytes(60))) for _ in range(2)]
    await asyncio.sleep(0)
    first.cancel()
    sending.acknowledge()
    await second
    assert sending.loop.time() == 0.0
