"""The private attributes that code in the wild asks of aiokafka's consumer."""

from __future__ import annotations

import aiokafka
import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.buffer.chunk import Record
from aiokafka_lite.errors import (
    ConsumerStoppedError,
    IllegalOperation,
    KafkaError,
    RecordTooLargeError,
)
from aiokafka_lite.structs import BrokerMetadata, TopicPartition
from tests.support.cluster import KafkaHandle, unique
from tests.support.reading import reading
from tests.support.rows import rows
from tests.support.waiting import until


async def test_names_answer_in_a_group(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    group_id = unique("group")
    settings = {"group_id": group_id, "group_protocol": "classic", "client_id": "me"}
    async with reading(kafka, topic, **settings) as consumer:  # type: ignore[arg-type]
        assert consumer._group_id == group_id
        assert consumer._group_instance_id is None
        assert consumer._max_poll_records is None
        assert consumer._closed is False
        assert consumer._subscription.topics == {topic}
        assert consumer._coordinator is not None
        assert consumer._coordinator.member_id.startswith("me-")
        assert consumer._coordinator.generation == 1
        assert consumer._coordinator.coordinator_id is not None
        assert not consumer._coordinator._rejoin_needed_fut.done()
        assert consumer._client._client_id == "me"
        assert consumer._client._bootstrap_servers == kafka.bootstrap_servers
        assert await consumer._client.ready(consumer._client.get_random_node())
        assert await consumer._client.force_metadata_update()
        assert consumer._client.cluster.topics() == {topic}
        assert consumer._client.cluster.partitions_for_topic(topic) == {0, 1}
        assert consumer._client.cluster.partitions_for_topic("other") is None
        (broker,) = consumer._client.cluster.brokers()
        assert isinstance(broker, BrokerMetadata)
    assert consumer._closed is True
    assert consumer._coordinator is None
    assert await consumer._client.ready(0) is False


async def test_the_client_answers_what_aiokafkas_answers(kafka: KafkaHandle) -> None:
    first, second = await kafka.create_topic(partitions=2), await kafka.create_topic()
    theirs = aiokafka.AIOKafkaConsumer(first, bootstrap_servers=kafka.bootstrap_servers)
    async with theirs, reading(kafka, first) as consumer:
        client = consumer._client
        assert client is consumer._client  # what is set on it stays
        assert client.cluster is client.cluster
        assert await client.force_metadata_update()
        for cluster, other in (
            (client.cluster, theirs._client.cluster),
            (await client.fetch_all_metadata(), await theirs._client.fetch_all_metadata()),
        ):
            assert cluster.brokers() == set(map(as_ours, other.brokers()))
            for node in cluster.brokers():
                assert cluster.broker_metadata(node.nodeId) == node
                # Only of these topics: other tests create topics of the same real Kafka.
                ours, others = (
                    {tuple(tp) for tp in each.partitions_for_broker(node.nodeId) or ()}
                    for each in (cluster, other)
                )
                assert {tp for tp in ours if tp[0] in (first, second)} == {
                    tp for tp in others if tp[0] in (first, second)
                }
            assert cluster.controller in cluster.brokers()
            assert first in cluster.topics() & other.topics()
            assert {first, second} & cluster.topics() == {first, second} & other.topics()
            assert cluster.internal_topics == other.internal_topics
            tp = TopicPartition(first, 1)
            assert cluster.leader_for_partition(tp) == other.leader_for_partition(tp)
            assert cluster.available_partitions_for_topic(first) == {0, 1}
            gone = TopicPartition("gone", 0)
            assert cluster.leader_for_partition(gone) is other.leader_for_partition(gone) is None
            assert cluster.broker_metadata(99) is other.broker_metadata(99) is None
        assert [each[:2] for each in client.hosts] == [each[:2] for each in theirs._client.hosts]
        assert await client.set_topics([second])
        assert client.cluster.topics() == {first, second}
        assert await client.add_topic(second)
        client.add_topic(second)  # as programs do: nobody is warned
        assert await client._wait_on_metadata(second) == {0}
        heard: list[object] = []
        client.cluster.add_listener(heard.append)
        updated = client.cluster.request_update()
        await until(updated.done)
        assert heard == [client.cluster] == [updated.result()]
        client.cluster.remove_listener(heard.append)
        await client.bootstrap()
        assert len(heard) == 1
        assert await client.coordinator_lookup(0, unique("group")) == client.get_random_node()
        answer = await client.send(client.get_random_node(), MetadataRequest([]))
        assert answer.cluster_id == client.cluster.cluster_id is not None
        assert await client.send(None, MetadataRequest([])) == answer  # of any node
        with pytest.raises(IllegalOperation, match="FetchRequest"):
            await client.send(None, FetchRequest())
    with pytest.raises(ConsumerStoppedError):
        await client.bootstrap()
    await client.close()


def as_ours(broker: BrokerMetadata) -> BrokerMetadata:
    return BrokerMetadata(*broker)


class MetadataRequest:
    """Has the name of aiokafka's."""

    def __init__(self, topics: list[str]) -> None: ...


class FetchRequest:
    """Has the name of aiokafka's."""


async def test_metadata_keep_the_topics_that_were_set_last(kafka: KafkaHandle) -> None:
    first, second, third = [await kafka.create_topic() for _ in range(3)]
    async with reading(kafka, first) as consumer:
        client = consumer._client
        client.set_topics([second])  # its result need not be awaited
        await until(lambda: client.cluster.topics() == {first, second})
        assert await client.force_metadata_update()
        assert client.cluster.topics() == {first, second}
        assert await client.set_topics([third])
        assert await client.force_metadata_update()
        assert client.cluster.topics() == {first, third}


@pytest.mark.real_if_long
async def test_a_subscription_that_changed_needs_a_rejoin(kafka: KafkaHandle) -> None:
    first, second = await kafka.create_topic(), await kafka.create_topic()
    async with reading(kafka, first, group_id=unique("group")) as consumer:
        consumer.subscribe(topics=[first, second], pattern=None, listener=None)
        assert consumer._coordinator is not None
        assert consumer._coordinator._rejoin_needed_fut.done()
        assert consumer._subscription.topics == {first, second}
        await consumer._subscription.wait_for_assignment()
        assert {tp.topic for tp in consumer.assignment()} == {first, second}
        assert not consumer._coordinator._rejoin_needed_fut.done()


@pytest.mark.real_if_long
async def test_names_answer_without_a_group(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with reading(kafka) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert consumer._group_id is None
        assert consumer._subscription.topics == {topic}
        assert consumer._coordinator is not None
        assert consumer._coordinator.member_id == ""
        assert not consumer._coordinator._rejoin_needed_fut.done()


async def test_a_broker_that_is_gone_is_not_ready() -> None:
    async with Broker() as broker:
        consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap_servers)
        await consumer.start()
        node_id = consumer._client.get_random_node()
        assert await consumer._client.ready(node_id)
    try:
        assert await consumer._client.ready(node_id) is False
        assert await consumer._client.ready(None) is False
    finally:
        await consumer.stop()


async def test_arguments_are_shown_as_they_were_given() -> None:
    consumer = AIOKafkaConsumer(bootstrap_servers=["a:1", "b:2"], max_poll_records=7)
    assert consumer._max_poll_records == 7
    assert consumer._client._bootstrap_servers == ["a:1", "b:2"]
    assert [each[:2] for each in consumer._client.hosts] == [("a", 1), ("b", 2)]
    is_bootstrap = consumer._client.cluster.is_bootstrap
    assert [is_bootstrap(node_id) for node_id in (-1, 0, "bootstrap-0")] == [True, False, True]
    assert consumer._coordinator is None
    with pytest.raises(Exception, match="not started"):
        consumer._client.get_random_node()
    await consumer.stop()


class Counting(AIOKafkaConsumer):
    """A program's own consumer, which does something with each record."""

    seen: list[int]

    async def getone(self, *partitions: TopicPartition) -> Record:
        record = await super().getone(*partitions)
        self.seen.append(record.offset)
        return record


@pytest.mark.real_if_long
async def test_async_for_goes_through_a_getone_of_a_subclass(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 4))
    async with reading(kafka, topic, consumer_class=Counting) as consumer:
        assert isinstance(consumer, Counting)
        consumer.seen = []
        async for record in consumer:
            if record.offset == 3:
                await consumer.stop()  # the iteration ends with it
    assert consumer.seen == [0, 1, 2, 3]


class Scripted(AIOKafkaConsumer):
    """Gives what it was told to give: records, and errors that are raised."""

    gives: list[Record | Exception]

    async def getone(self, *partitions: TopicPartition) -> Record:
        given = self.gives.pop(0)
        if isinstance(given, Exception):
            raise given
        return given


async def test_going_by_getone_skips_and_raises_what_an_async_for_does() -> None:
    tp = TopicPartition("t", 0)
    record = Record("t", 0, 8, 0, 0, None, None, None, -1, -1, ())
    placeless = RecordTooLargeError("no place")
    async with Broker() as broker:
        broker.produce("t", "v")
        consumer = Scripted(bootstrap_servers=broker.bootstrap_servers)
        consumer.assign([tp])
        consumer.gives = [
            RecordTooLargeError("too large").at(tp, 7, 8), record, placeless, KafkaError("other"),
            ConsumerStoppedError(),
        ]  # fmt: skip
        async with consumer:
            each = aiter(consumer)
            assert await anext(each) is record
            assert await consumer.position(tp) == 8
            for error in (RecordTooLargeError, KafkaError, StopAsyncIteration):
                with pytest.raises(error):
                    await anext(each)


async def test_an_iteration_goes_by_a_getone_that_was_replaced_after_the_start() -> None:
    record = Record("t", 0, 8, 0, 0, None, None, None, -1, -1, ())

    async def getone(*partitions: TopicPartition) -> Record:
        return record

    consumer = AIOKafkaConsumer()
    consumer.getone = getone  # type: ignore[method-assign]
    assert await anext(aiter(consumer)) is record
    await consumer.stop()
