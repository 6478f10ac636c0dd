"""What a producer holds between its start and its stop: its id, its topics, and its end."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import AsyncIterator

import pytest

from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.errors import (
    ClusterAuthorizationFailedError,
    CoordinatorLoadInProgressError,
    IllegalStateError,
    InvalidProducerEpoch,
    InvalidTopicError,
    KafkaError,
    KafkaTimeoutError,
    ProducerClosed,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.metadata import MetadataRequest
from tests.producing.sending import as_values, producer_of, send_numbers, values_in
from tests.support.waiting import until


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker with a topic "t" of two partitions."""
    async with Broker() as broker:
        broker.create_topic("t", 2)
        yield broker
    assert broker.failure is None


async def test_a_producer_that_gets_no_other_id_raises_why(broker: Broker) -> None:
    async with timeout(10), producer_of(broker) as producer:
        await producer.send_and_wait("t", b"0", partition=0)
        broker.on("Produce").fail(InvalidProducerEpoch)
        broker.on("InitProducerId").fail(ClusterAuthorizationFailedError)
        with pytest.raises(InvalidProducerEpoch):
            await producer.send_and_wait("t", b"lost", partition=0)
        with pytest.raises(ClusterAuthorizationFailedError):
            await producer.send_and_wait("t", b"1", partition=0)


async def test_an_epoch_below_the_brokers_is_left_for_another_producer_id(broker: Broker) -> None:
    async with producer_of(broker) as producer:
        await producer.send_and_wait("t", b"0", partition=0)
        broker.on("Produce").fail(InvalidProducerEpoch)
        with broker.on("InitProducerId").delay(0.0, times=None) as asked:
            with pytest.raises(InvalidProducerEpoch):
                await producer.send_and_wait("t", b"lost", partition=0)
            await asyncio.gather(*await send_numbers(producer, "t", range(1, 20)))
        assert asked.hits == 1
    assert await values_in(broker, "t") == as_values(range(20))


@pytest.mark.virtual_time
async def test_another_producer_id_is_asked_for_until_there_is_one(broker: Broker) -> None:
    async with producer_of(broker) as producer:
        await producer.send_and_wait("t", b"0", partition=0)
        broker.on("Produce").fail(InvalidProducerEpoch)
        broker.on("InitProducerId").fail(CoordinatorLoadInProgressError, times=3)
        with pytest.raises(InvalidProducerEpoch):
            await producer.send_and_wait("t", b"lost", partition=0)
        assert (await producer.send_and_wait("t", b"1", partition=0)).offset == 1


@pytest.mark.virtual_time
@pytest.mark.parametrize("transactional_id", [None, "tx"])
async def test_a_record_that_waits_for_its_topic_raises_the_producers_fatal_error(
    broker: Broker, transactional_id: str | None
) -> None:
    broker.create_topic("other")
    async with producer_of(broker, transactional_id=transactional_id) as producer:
        await producer.partitions_for("t")
        if transactional_id is not None:
            await producer.begin_transaction()
        with broker.on("Metadata").hold() as held:
            waiting = asyncio.ensure_future(producer.send("other", b"v"))
            await held.reached()
            broker.on("Produce").fail(ClusterAuthorizationFailedError)
            with pytest.raises(ClusterAuthorizationFailedError):
                await producer.send_and_wait("t", b"v", partition=0)
        with pytest.raises(ClusterAuthorizationFailedError):
            await waiting


async def test_after_a_fatal_error_every_call_raises_it(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    async with producer_of(broker) as producer:
        broker.on("Produce").fail(ClusterAuthorizationFailedError)
        with pytest.raises(ClusterAuthorizationFailedError):
            await producer.send_and_wait("t", b"v", partition=0)
        for _ in range(2):
            with pytest.raises(ClusterAuthorizationFailedError):
                await producer.send("t", b"v", partition=0)
            with pytest.raises(ClusterAuthorizationFailedError):
                await producer.flush()
    assert caplog.text.count("the producer has failed permanently") == 1
    assert await values_in(broker, "t") == []


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="a task does not know who cancels it")
@pytest.mark.parametrize("is_lost", [True, False])
def test_a_program_that_ends_without_a_stop_is_told_of_lost_records_and_of_no_bug(
    caplog: pytest.LogCaptureFixture, *, is_lost: bool
) -> None:
    async def main() -> None:
        broker = Broker()
        await broker.start()
        producer = producer_of(broker)
        await producer.start()
        await producer.send_and_wait("t", b"v")
        if is_lost:
            broker.on("Produce").hold()
            future = await producer.send("t", b"w")
            future.add_done_callback(lambda it: it.cancelled() or it.exception())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())
    gc.collect()
    told = [each for each in caplog.records if each.name.startswith("aiokafka_lite.producing")]
    assert [each.getMessage() for each in told if each.levelno >= logging.WARNING] == [
        "ProducerClosed: the event loop ended before producer.stop() was called: unsent records of "
        "this producer may be lost"
    ] * is_lost


async def test_whenever_a_producer_is_stopped_during_its_start_it_takes_no_record(
    broker: Broker,
) -> None:
    async def start(*, turns: int) -> int:
        """Stop after so many turns of the loop, and return how many there are at most."""
        producer = producer_of(broker)
        starting, count = asyncio.ensure_future(producer.start()), 0
        while count < turns and not starting.done():
            await asyncio.sleep(0)
            count += 1
        await producer.stop()
        await asyncio.wait([starting])
        assert isinstance(starting.exception(), ProducerClosed | type(None))
        with pytest.raises(ProducerClosed):
            await producer.send("t", b"v")
        return count

    most = await start(turns=1_000)
    for turns in range(max(most - 8, 0), most + 1):
        await start(turns=turns)


async def test_a_failed_start_leaves_nothing_and_may_be_tried_again(broker: Broker) -> None:
    broker.on("InitProducerId").fail(ClusterAuthorizationFailedError)
    producer = producer_of(broker)
    with pytest.raises(ClusterAuthorizationFailedError):
        await producer.start()
    await producer.start()
    await producer.send_and_wait("t", b"v")
    await producer.stop()


@pytest.mark.virtual_time
async def test_a_start_without_a_producer_id_ends_in_time(broker: Broker) -> None:
    loop = asyncio.get_running_loop()
    producer = producer_of(broker, request_timeout_ms=5_000)
    rule = broker.on("InitProducerId").fail(CoordinatorLoadInProgressError, times=None)
    with pytest.raises(KafkaTimeoutError, match="no broker assigned a producer id within"):
        await producer.start()
    assert 3.0 < loop.time() <= 5.0
    assert 5 < rule.hits < 20


async def test_a_topic_that_does_not_exist_is_not_asked_for_any_more() -> None:
    async with Broker(auto_create_topics=False) as broker:
        broker.create_topic("t")
        async with producer_of(broker, request_timeout_ms=200) as producer:
            with pytest.raises(UnknownTopicOrPartitionError, match="was not found"):
                await producer.send("missing", b"v")
            await producer.send_and_wait("t", b"v")
            last = broker.requests.of("Metadata")[-1].request
            assert isinstance(last, MetadataRequest)
            assert [topic.name for topic in last.topics or ()] == ["t"]


async def test_a_producer_that_is_stopping_takes_no_record(broker: Broker) -> None:
    producer = producer_of(broker)
    await producer.start()
    await producer.partitions_for("t")
    with broker.on("Produce").hold():
        first = await producer.send("t", b"0", partition=0)
        stopping = asyncio.ensure_future(producer.stop())
        await asyncio.sleep(0)
        with pytest.raises(ProducerClosed):
            await producer.send("t", b"1", partition=0)
    await stopping
    assert (await first).offset == 0
    assert await values_in(broker, "t") == [b"0"]


def tasks_of_producers() -> list[str]:
    """Return the names of tasks of producers that are running."""
    names = [task.get_name() for task in asyncio.all_tasks()]
    return [name for name in names if name.startswith("produce:")]


@pytest.mark.virtual_time
async def test_stop_in_time_fails_what_is_not_acknowledged(broker: Broker) -> None:
    loop = asyncio.get_running_loop()
    producer = producer_of(broker)
    await producer.start()
    await producer.partitions_for("t")
    assert tasks_of_producers()
    with broker.on("Produce").silence(times=None):
        future = await producer.send("t", b"v", partition=0)
        began = loop.time()
        first_stop = asyncio.ensure_future(producer.stop(timeout=3))
        await asyncio.sleep(0)
        await producer.stop()
    assert first_stop.done(), "the second call waits for the first"
    assert loop.time() - began == pytest.approx(3)
    assert tasks_of_producers() == []
    with pytest.raises(ProducerClosed, match="before the record was acknowledged"):
        await future


@pytest.mark.virtual_time
async def test_a_stop_that_is_cancelled_fails_what_is_not_acknowledged(broker: Broker) -> None:
    producer = producer_of(broker)
    await producer.start()
    with broker.on("Produce").silence(times=None) as rule:
        future = await producer.send("t", b"v", partition=0)
        stopping = asyncio.ensure_future(producer.stop())
        await rule.reached()
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        with pytest.raises(ProducerClosed):
            await future
    await until(lambda: broker.connection_count == 0)


@pytest.mark.virtual_time
async def test_a_send_that_waits_for_metadata_ends_with_the_producer(broker: Broker) -> None:
    async with producer_of(broker) as producer:
        with broker.on("Metadata").hold() as held:
            waiting = asyncio.ensure_future(producer.send("t", b"v"))
            await held.reached()
            await producer.stop(timeout=0)
            with pytest.raises(ProducerClosed, match="during the call"):
                await waiting


@pytest.mark.virtual_time
@pytest.mark.parametrize("transactional_id", [None, "tx"])
async def test_a_producer_that_is_starting_takes_no_record(
    broker: Broker, transactional_id: str | None
) -> None:
    producer = producer_of(broker, transactional_id=transactional_id)
    with broker.on("InitProducerId").hold() as held:
        starting = asyncio.ensure_future(producer.start())
        await held.reached()
        with pytest.raises(IllegalStateError, match="not started"):
            await producer.send("t", b"v")
    await starting
    await producer.stop()


@pytest.mark.virtual_time
async def test_a_topic_that_cannot_exist_is_refused_at_once(broker: Broker) -> None:
    loop = asyncio.get_running_loop()
    async with producer_of(broker) as producer:
        began = loop.time()
        with pytest.raises(InvalidTopicError, match="cannot send to topic 'no name'"):
            await producer.send("no name", b"v")
        assert loop.time() - began < 1


async def test_send_waits_for_room_and_goes_on_in_order(broker: Broker) -> None:
    async with producer_of(broker, buffer_memory=2_000) as producer:
        await producer.partitions_for("t")
        rule = broker.on("Produce").hold()
        sending = asyncio.ensure_future(send_numbers(producer, "t", range(200)))
        await asyncio.wait([sending], timeout=0.1)
        await producer.client.force_metadata_update()  # which makes no room
        await asyncio.sleep(0)
        assert not sending.done()
        rule.remove()
        await asyncio.gather(*await sending)
    assert await values_in(broker, "t") == as_values(range(200))


async def test_no_room_in_time_is_an_error_and_a_cancelled_send_is_not_sent(
    broker: Broker,
) -> None:
    async with producer_of(broker, buffer_memory=100, request_timeout_ms=300) as producer:
        await producer.partitions_for("t")
        with broker.on("Produce").hold() as rule:
            first = await producer.send("t", bytes(60), partition=0)
            waiting = asyncio.ensure_future(producer.send("t", b"cancelled" * 6, partition=0))
            with pytest.raises(KafkaTimeoutError, match="buffer_memory=100"):
                await producer.send("t", b"late" * 12, partition=0)
            waiting.cancel()
            rule.release()
        await asyncio.gather(first, waiting, return_exceptions=True)
        assert waiting.cancelled() or isinstance(waiting.exception(), KafkaTimeoutError)
        with pytest.raises(KafkaError, match="is larger than buffer_memory"):
            await producer.send("t", bytes(101), partition=0)
    assert await values_in(broker, "t") == [bytes(60)]
