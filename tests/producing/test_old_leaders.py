"""A new leader acknowledges batches while the answers of the previous one are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count, islice

import pytest

from aiokafka_lite.broker import Broker, faults
from aiokafka_lite.errors import KafkaConnectionError, OutOfOrderSequenceNumber
from aiokafka_lite.producing.batch import ProducerBatch, ProducerIdAndEpoch
from aiokafka_lite.producing.partition_queue import MAX_IN_FLIGHT, PartitionQueue
from aiokafka_lite.producing.sender import NEWEST_BY_NAME
from aiokafka_lite.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from aiokafka_lite.records.codec import Codec
from aiokafka_lite.structs import TopicPartition
from tests.producing.line import line, warmed
from tests.producing.sending import as_values, producer_of, send_numbers, values_in
from tests.support.cluster import KafkaHandle
from tests.support.wire import RawClient

# Brokers accept ids that no broker has assigned.
ME = ProducerIdAndEpoch(7, 0)
LOST = KafkaConnectionError("lost")
LOST_COUNTS = range(1, MAX_IN_FLIGHT + 1)


class Exchanges:
    """A queue whose batches are sent to a real log one by one."""

    def __init__(self, client: RawClient, topic: str) -> None:
        self.queue = queue_of(TopicPartition(topic, 0), [1] * 12)
        self._client = client

    async def send(self) -> ProducerBatch | None:
        """Send the next batch, if there is one. The broker has to accept it."""
        batch = self.queue.next_batch(0.0)
        if batch is None:
            return None
        self.queue.send(batch, ME)
        data = PartitionProduceData(index=0, records=batch.encoded())
        topic = TopicProduceData(name=self.queue.tp.topic, partition_data=[data])
        request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic])
        answer = await self._client.request(request, NEWEST_BY_NAME)
        error_code = answer.responses[0].partition_responses[0].error_code
        assert error_code == 0, f"{batch!r} is refused"
        return batch

    async def acknowledge_all(self) -> None:
        while (batch := await self.send()) is not None:
            self.queue.acknowledge(batch)


def queue_of(tp: TopicPartition, record_counts: Sequence[int]) -> PartitionQueue:
    """A queue of waiting batches with so many records, whose values are their numbers."""
    queue = PartitionQueue(tp)
    numbers = count()
    for record_count in record_counts:
        batch = ProducerBatch(tp, 0.0, codec=Codec.NONE, is_transactional=False)
        for number in islice(numbers, record_count):
            batch.append(0, None, b"%d" % number, (), 40, number)
        queue.waiting.append(batch)
    return queue


async def test_a_broker_remembers_every_batch_without_an_outcome(kafka: KafkaHandle) -> None:
    async with kafka.raw() as client:
        for lost_count in LOST_COUNTS:
            topic = await kafka.create_topic()
            exchanges = Exchanges(client, topic)
            first = await exchanges.send()
            assert first is not None
            exchanges.queue.acknowledge(first)
            lost = [await exchanges.send() for _ in range(lost_count)]
            await exchanges.acknowledge_all()  # by the next leader
            for batch in lost:
                assert batch is not None
                exchanges.queue.retry(batch, LOST, 0.0)
            await exchanges.acknowledge_all()
            assert exchanges.queue.is_empty
            assert await values_in(kafka, topic) == as_values(range(12))


@pytest.mark.parametrize("lost_count", LOST_COUNTS)
@pytest.mark.parametrize("transactional_id", [None, "tx"])
async def test_later_batches_wait_until_the_broker_could_forget_an_earlier_one(
    transactional_id: str | None, lost_count: int
) -> None:
    async with line(transactional_id=transactional_id) as sending:
        await warmed(sending, 0)
        futures = [future for _ in range(lost_count) for future in await sending.send(0)]
        old, sending.sent = sending.sent, []
        sending.lead({0: 2})
        for _ in range(2 * MAX_IN_FLIGHT):
            futures += await sending.send(0)
            while sending.sent:
                sending.sent.pop(0).respond()
                await sending.turn()
        acknowledged = sum(future.done() for future in futures)
        assert acknowledged == MAX_IN_FLIGHT - lost_count
        for request in old:
            request.fail(LOST)
        for sequence in range(1, lost_count + 1):
            request = await sending.next()
            assert (request.node_id, request.sequences) == (2, [(0, sequence)])
            request.respond()
        request = await sending.next()
        assert request.sequences == [(0, MAX_IN_FLIGHT + 1)]
        request.respond()
        await asyncio.gather(*futures)


async def test_a_batch_in_parts_has_its_place_among_those_remembered() -> None:
    queue = queue_of(TopicPartition("t", 0), [1, 4, 1, 1, 1, 1, 1])

    def sent() -> list[ProducerBatch]:
        found = []
        while (batch := queue.next_batch(0.0)) is not None:
            queue.send(batch, ME)
            found.append(batch)
        return found

    queue.acknowledge(*sent())
    large, *behind = sent()
    assert len(behind) == MAX_IN_FLIGHT - 1
    parts = large.split(large.size_bytes // 2, Codec.NONE)
    queue.replace(large, parts)
    refusal = OutOfOrderSequenceNumber("behind the large one")
    for batch in behind:
        queue.refuse_as_out_of_order(batch, refusal, 0.0)
    for batch in (*parts, *behind[:-1]):
        assert sent() == [batch]
        queue.acknowledge(batch)
    assert len(sent()) == 2, "the last one again, and the next"


@pytest.mark.virtual_time
@pytest.mark.parametrize("lost_count", LOST_COUNTS)
async def test_records_are_written_once_when_an_old_leaders_answers_are_lost(
    lost_count: int, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"request_timeout_ms": 5_000, "metadata_max_age_ms": 500}
    numbers = range(1 + lost_count, 21)
    async with Broker(nodes=3, default_replication_factor=3) as broker:
        broker.create_topic("t", 1)
        tp = TopicPartition("t", 0)
        async with producer_of(broker, **settings) as producer:
            await producer.send_and_wait("t", b"0", partition=0)
            leader = broker.leader_of(tp)
            broker.on("Produce", node=leader).on_frame(lambda *_: faults.DROP, times=None)
            futures = []
            for number in range(1, 1 + lost_count):
                futures += await send_numbers(producer, "t", range(number, number + 1))
                await asyncio.sleep(0.01)
            broker.move_leader(tp)
            await asyncio.sleep(1)  # the metadata name the new leader
            for number in numbers:
                futures += await send_numbers(producer, "t", range(number, number + 1))
                await asyncio.sleep(0.05)
            assert sum(future.done() for future in futures) == MAX_IN_FLIGHT - lost_count
            await asyncio.gather(*futures)
        assert await values_in(broker, "t") == as_values(range(21))
        assert broker.failure is None
    assert "out of order" not in caplog.text
