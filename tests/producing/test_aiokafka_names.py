"""The private attributes that code in the wild asks of aiokafka's producer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiokafka
import pytest
from aiokafka.errors import ProducerFenced as TheirProducerFenced

from aiokafka_lite.errors import ProducerFenced
from aiokafka_lite.producing import AIOKafkaProducer
from aiokafka_lite.producing.aiokafka_names import TransactionNames
from tests.producing.sending import values_in
from tests.support.cluster import KafkaHandle, unique

both_producers = pytest.mark.parametrize(
    "producer_class", [AIOKafkaProducer, aiokafka.AIOKafkaProducer], ids=["ours", "aiokafka's"]
)


@pytest.mark.real_if_long
async def test_the_producer_answers_what_instrumentations_ask_for(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=3)
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        assert producer.client is producer.client
        assert producer._metadata is producer.client.cluster
        assert producer.client.cluster.controller in producer.client.cluster.brokers()
        assert await producer.client._wait_on_metadata(topic) == {0, 1, 2}
        for key in (b"a", b"b", b"c", None):
            partition = producer._partition(topic, None, key, b"v", key, b"v")
            assert (await producer.send_and_wait(topic, b"v", key)).partition == partition
            if key is not None:
                assert producer._partitioner(key, [0, 1, 2], [0]) == partition
        assert producer._partition(topic, 2, None, None, None, None) == 2
        assert producer._partitioner(None, [0, 1, 2], [1]) == 1
        assert producer._partitioner(None, [2], []) == 2
        assert not producer._sender.sender_task.done()
    assert producer._sender.sender_task.done()


def manager(producer: AIOKafkaProducer) -> TransactionNames:
    names = producer._txn_manager
    assert names is not None
    return names


@asynccontextmanager
async def transaction_of_a_program(producer: AIOKafkaProducer) -> AsyncIterator[None]:
    """A block as programs have it: aiokafka's own with something of theirs, such as a log line."""
    await producer.begin_transaction()
    try:
        yield
    except BaseException:
        if not manager(producer).is_fatal_error():
            await producer.abort_transaction()
        raise
    await producer.commit_transaction()


@both_producers
async def test_a_programs_own_transaction_block_commits_aborts_and_is_fenced(
    kafka: KafkaHandle, producer_class: type[AIOKafkaProducer]
) -> None:
    topic, name = await kafka.create_topic(), unique("tx")

    def made() -> AIOKafkaProducer:
        return producer_class(bootstrap_servers=kafka.bootstrap_servers, transactional_id=name)

    async def write(producer: AIOKafkaProducer, value: bytes, *, fails: bool = False) -> None:
        async with transaction_of_a_program(producer):
            await producer.send_and_wait(topic, value, partition=0)
            assert manager(producer).is_in_transaction()
            if fails:
                raise ZeroDivisionError

    old = made()
    assert manager(old).transactional_id == name
    assert not manager(old).has_pid()
    assert manager(old).producer_id == manager(old).producer_epoch == -1
    async with old:
        assert manager(old).has_pid()
        assert manager(old).producer_id >= 0
        assert not manager(old).is_in_transaction()
        await write(old, b"kept")
        with pytest.raises(ZeroDivisionError):
            await write(old, b"given up", fails=True)
        assert not manager(old).is_in_transaction()
        async with made() as new:
            assert manager(new).producer_epoch != manager(old).producer_epoch
            with pytest.raises((ProducerFenced, TheirProducerFenced)):
                await write(old, b"zombie")
            assert manager(old).is_fatal_error()
            assert not manager(old).is_in_transaction()
            assert not manager(new).is_fatal_error()
    assert await values_in(kafka, topic, 0, isolation_level="read_committed") == [b"kept"]


@pytest.mark.real_if_long
@both_producers
async def test_without_a_transactional_id_there_is_a_manager_if_idempotence_is_asked_for(
    kafka: KafkaHandle, producer_class: type[AIOKafkaProducer]
) -> None:
    async with producer_class(bootstrap_servers=kafka.bootstrap_servers) as producer:
        assert producer._txn_manager is None
    async with producer_class(
        bootstrap_servers=kafka.bootstrap_servers, enable_idempotence=True
    ) as producer:
        assert manager(producer).transactional_id is None
        assert manager(producer).has_pid()
        assert not manager(producer).is_in_transaction()
        assert not manager(producer).is_fatal_error()
