"""The producer of the `produce` command: it waits for acknowledgements, and counts outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.errors import (
    ClusterAuthorizationFailedError,
    KafkaError,
    KafkaTimeoutError,
    ProducerClosed,
)
from aiokafka_lite.producing.batch import RECORD_OVERHEAD_BYTES, Output
from aiokafka_lite.producing.config import ProducerConfig
from aiokafka_lite.producing.engine import MOST_WAITING_BYTES, BulkProducer, LostRecords
from tests.support.waiting import until

pytestmark = pytest.mark.virtual_time


def output(value: bytes) -> Output:
    return Output("t", None, value, 0)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker with a topic "t" of one partition."""
    async with Broker() as broker:
        broker.create_topic("t", 1)
        yield broker
    assert broker.failure is None


def bulk_producer_of(
    broker: Broker, lost: asyncio.Event | None = None, **settings: object
) -> BulkProducer:
    config: ProducerConfig = ProducerConfig(
        bootstrap_servers=broker.bootstrap_servers,
        **settings,  # type: ignore[arg-type]
    )
    return BulkProducer(config, (lost or asyncio.Event()).set)


async def test_records_wait_while_too_many_bytes_are_not_acknowledged(broker: Broker) -> None:
    value = bytes(MOST_WAITING_BYTES // 16 - RECORD_OVERHEAD_BYTES)
    async with bulk_producer_of(broker) as producer:
        await producer.send(output(value))
        with broker.on("Produce").hold(times=None) as held:
            count = 1
            while producer.send_nowait(output(value)):
                count += 1
            assert count == 16, "that is as much as may wait"
            waiting = asyncio.ensure_future(producer.send(output(value)))
            await held.reached()
            await asyncio.sleep(1)
            assert not waiting.done()
        await waiting
    assert producer.acknowledged_count == count + 1
    assert producer.losses == []


async def test_a_producer_that_cannot_start_leaves_no_connection(broker: Broker) -> None:
    broker.on("InitProducerId").fail(ClusterAuthorizationFailedError)
    with pytest.raises(ClusterAuthorizationFailedError):
        async with bulk_producer_of(broker):
            pass
    await until(lambda: broker.connection_count == 0)


async def test_a_stop_ends_in_time_and_what_is_not_acknowledged_then_has_failed(
    broker: Broker,
) -> None:
    loop = asyncio.get_running_loop()
    async with bulk_producer_of(broker) as producer:
        await producer.send(output(b"lost"))
        broker.on("Produce").silence(times=None)
        began = loop.time()
        await producer.stop(timeout=5)
        assert loop.time() - began == pytest.approx(5)
        (loss,) = producer.losses
        assert (loss.numbers, type(loss.error)) == ([1], ProducerClosed)
        assert not producer.send_nowait(output(b"late"))
        await until(lambda: broker.connection_count == 0)


async def test_a_send_after_a_fatal_error_raises_it(broker: Broker) -> None:
    lost = asyncio.Event()
    broker.on("Produce").fail(ClusterAuthorizationFailedError)
    async with bulk_producer_of(broker, lost) as producer:
        await producer.send(output(b"lost"))
        await lost.wait()
        with pytest.raises(ClusterAuthorizationFailedError):
            await producer.send(output(b"late"))


@pytest.mark.parametrize(("named", "at_fault"), [((), [4, 5, 6]), ((0, 2), [4, 6])])
def test_the_records_at_fault_are_those_that_the_broker_names_or_all(
    named: tuple[int, ...], at_fault: list[int]
) -> None:
    error = KafkaError("refused")
    error.batch_indexes = named
    assert LostRecords([4, 5, 6], error).at_fault == at_fault


async def test_a_late_response_to_expired_records_fails_no_others(broker: Broker) -> None:
    lost = asyncio.Event()
    settings = {"request_timeout_ms": 300, "delivery_timeout_ms": 400, "retry_backoff_ms": 10}
    async with bulk_producer_of(broker, lost, **settings) as producer:
        await producer.send(output(b"first"))
        with broker.on("Produce").silence() as unanswered:
            await unanswered.reached()
        with broker.on("Produce").hold() as held:  # the second attempt
            await lost.wait()
            assert held.hits == 1
        (loss,) = producer.losses
        assert (loss.numbers, type(loss.error)) == ([1], KafkaTimeoutError)
        await producer.send(output(b"second"))
    assert (producer.acknowledged_count, producer.losses) == (1, [loss])
    *_, late, after = broker.requests.of("Produce")
    assert late.answered_at is not None
    assert after.peer == late.peer
    assert [record.value for record in broker.records("t", 0)] == [b"first", b"second"]
