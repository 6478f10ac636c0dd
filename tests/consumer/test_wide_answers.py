"""An answer of very many partitions is decoded and settled a piece at a time."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator
from typing import Final

import pytest

from aiokafka_lite import records
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.protocol import framing
from aiokafka_lite.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from aiokafka_lite.structs import TopicPartition
from tests.support.scripted_broker import Asked, Do, ScriptedBroker, topic

TOPIC_ID: Final = b"t" * 16
TP: Final = TopicPartition("t", 0)
MIB: Final = 2**20
# Some 40 us of it a piece, and others' work on this machine.
LONGEST_HOLD_S: Final = 0.02


def wide_answer(version: int, size_bytes: int) -> bytes:
    """An answer about one partition asked for, with records, and very many others without."""
    batch = records.build_batch([(1, b"k", b"v", ())])
    asked = PartitionData(partition_index=0, high_watermark=1, records=memoryview(batch))
    other = PartitionData(partition_index=7, high_watermark=1, records=memoryview(b""))
    few = [asked, *[other] * 200]
    narrow = framing.encode_response(answer_of(few), version, 0)
    each = (len(narrow) - len(framing.encode_response(answer_of([asked]), version, 0))) // 200
    return framing.encode_response(answer_of([asked, *[other] * (size_bytes // each)]), version, 0)


def answer_of(partitions: list[PartitionData]) -> FetchResponse:
    topics = [FetchableTopicResponse(topic="t", topic_id=TOPIC_ID, partitions=partitions)]
    return FetchResponse(session_id=0, responses=topics)


class LoopWatch:
    """Measures how long the loop is held: the time of this thread between two turns."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.turn_count = 0
        self._loop = asyncio.get_running_loop()
        self._seen_at = time.thread_time()
        self._handle = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        now = time.thread_time()
        self.longest_s = max(self.longest_s, now - self._seen_at)
        self.turn_count += 1
        self._seen_at = now
        self._handle = self._loop.call_soon(self._turn)

    def stop(self) -> None:
        self._handle.cancel()


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as broker:
        broker.topics["t"] = topic("t", [1], topic_id=TOPIC_ID)
        yield broker


async def consumer_of(broker: ScriptedBroker) -> AIOKafkaConsumer:
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.address)
    consumer.assign([TP])
    consumer.seek(TP, 0)
    await consumer.start()
    return consumer


def answered_once(broker: ScriptedBroker, answer: bytes) -> asyncio.Event:
    """Have the first Fetch answered by this; told when it is on its way."""
    is_sent = asyncio.Event()

    def script(asked: Asked) -> bytes | Do:
        if is_sent.is_set():
            return Do.NOTHING
        is_sent.set()
        return answer[:4] + struct.pack(">i", asked.correlation_id) + answer[8:]

    broker.scripts[FetchRequest] = script
    return is_sent


async def test_no_piece_of_a_wide_answer_holds_the_loop(broker: ScriptedBroker) -> None:
    answer = wide_answer(FetchRequest.max_version, 8 * MIB)
    is_sent = answered_once(broker, answer)
    consumer = await consumer_of(broker)
    await is_sent.wait()
    watch = LoopWatch()
    assert (await consumer.getone()).value == b"v"
    watch.stop()
    await consumer.stop()
    assert watch.longest_s < LONGEST_HOLD_S


async def test_topics_without_partitions_do_not_hold_it_either(broker: ScriptedBroker) -> None:
    batch = records.build_batch([(1, b"k", b"v", ())])
    response = answer_of([PartitionData(records=memoryview(batch), high_watermark=1)])
    empty = FetchableTopicResponse(topic_id=b"e" * 16, partitions=[])
    response.responses += [empty] * 100_000
    answer = framing.encode_response(response, FetchRequest.max_version, 0)
    is_sent = answered_once(broker, answer)
    consumer = await consumer_of(broker)
    await is_sent.wait()
    watch = LoopWatch()
    assert (await consumer.getone()).value == b"v"
    watch.stop()
    await consumer.stop()
    assert watch.longest_s < LONGEST_HOLD_S


async def test_of_a_wide_answer_that_breaks_off_nothing_is_handed_out(
    broker: ScriptedBroker,
) -> None:
    answer = wide_answer(FetchRequest.max_version, MIB)
    # As if its frame ended in the last partition.
    broken = struct.pack(">i", len(answer) - 4 - 20) + answer[4:-20]
    is_sent = answered_once(broker, broken)
    consumer = await consumer_of(broker)
    await is_sent.wait()
    waiting = asyncio.ensure_future(consumer.getone())
    # It is asked for again, in a new session.
    await broker.until_asked(FetchRequest, 2)
    last = [asked for asked in broker.asked if isinstance(asked.request, FetchRequest)][-1]
    assert isinstance(last.request, FetchRequest)
    assert (last.request.session_id, last.request.session_epoch) == (0, 0)
    assert not waiting.done()
    assert await consumer.position(TP) == 0
    waiting.cancel()
    await consumer.stop()
