"""Named tuples of other packages, as aiokafka's producer returns them, given to a consumer."""

from __future__ import annotations

import time
from typing import Final, NamedTuple

import aiokafka
import aiokafka.structs
import pytest

from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.support.cluster import KafkaHandle, unique
from tests.support.reading import reading
from tests.support.rows import rows

Theirs: Final = aiokafka.structs.TopicPartition


class Foreign(NamedTuple):
    """A program's own, with the fields of a TopicPartition."""

    topic: str
    partition: int


class Longer(NamedTuple):
    """Begins like a TopicPartition, and is something else, as aiokafka's RecordMetadata."""

    topic: str
    partition: int
    offset: int


class Noted(NamedTuple):
    """A program's own, with the fields of an OffsetAndMetadata in another order."""

    metadata: str
    offset: int


def are_ours(*groups: object) -> bool:
    """Whether all keys or elements are of this package's own type."""
    return all(type(tp) is TopicPartition for group in groups for tp in group)  # type: ignore[attr-defined]


def given_as(kind: object, topic: str, partition: int = 0) -> TopicPartition:
    return kind(topic, partition)  # type: ignore[operator, no-any-return]


KINDS: Final = pytest.mark.parametrize("kind", [Theirs, Foreign], ids=["aiokafka", "own"])


@pytest.mark.real_if_long
@KINDS
async def test_partitions_of_others_are_assigned_moved_paused_and_read(
    kafka: KafkaHandle, kind: object
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 5))
    tp = given_as(kind, topic)
    async with reading(kafka) as consumer:
        consumer.assign([tp])
        assert are_ours(consumer.assignment())
        consumer.incremental_unassign([tp])
        consumer.incremental_assign([tp])
        assert are_ours(consumer.assignment())
        consumer.seek(tp, 2)
        assert await consumer.position(tp) == 2
        assert (await consumer.getone(tp)).offset == 2
        assert await consumer.seek_to_beginning(tp)
        found = await consumer.getmany(tp, timeout_ms=10_000)
        assert are_ours(found)
        assert [record.offset for record in found[tp]] == [0, 1, 2, 3, 4]
        assert await consumer.seek_to_end(tp)
        assert await consumer.position(tp) == 5
        consumer.pause(tp)
        assert are_ours(consumer.paused())
        assert consumer.paused() == {tp}
        consumer.resume(tp)
        assert not consumer.paused()
        assert consumer.highwater(tp) == 5
        assert consumer.last_stable_offset(tp) is not None
        assert consumer.last_poll_timestamp(tp) is not None
        assert "fetch" in consumer.explain(tp)


@pytest.mark.real_if_long
@KINDS
async def test_offsets_are_looked_up_for_partitions_of_others(
    kafka: KafkaHandle, kind: object
) -> None:
    topic = await kafka.create_topic(partitions=2)
    await kafka.produce(topic, 0, rows(0, 5))
    first, second = given_as(kind, topic, 0), given_as(kind, topic, 1)
    async with reading(kafka) as consumer:
        begins = await consumer.beginning_offsets([first, second])
        ends = await consumer.end_offsets([first, second])
        times = await consumer.offsets_for_times({first: 0, second: int(time.time() * 1000)})
        consumer.assign([first, second])
        positions = await consumer.position(first, second)
        assert (begins, ends, positions) == (
            {first: 0, second: 0},
            {first: 5, second: 0},
            {first: 0, second: 0},
        )
        assert times[second] is None
        assert are_ours(begins, ends, times, positions)


@pytest.mark.real_if_long
@KINDS
@pytest.mark.parametrize(
    "offset", [3, (3, "note"), aiokafka.structs.OffsetAndMetadata(3, "note"), Noted("note", 3)]
)
async def test_offsets_are_committed_for_partitions_of_others(
    kafka: KafkaHandle, kind: object, offset: int | tuple[int, str] | OffsetAndMetadata
) -> None:
    topic = await kafka.create_topic(partitions=2)
    await kafka.produce(topic, 0, rows(0, 5))
    first, second = given_as(kind, topic, 0), given_as(kind, topic, 1)
    note = "" if offset == 3 else "note"
    async with reading(kafka, group_id=unique("group"), enable_auto_commit=False) as consumer:
        consumer.assign([first, second])
        await consumer.commit({first: offset})
        assert await consumer.committed(first) == 3
        noted = await consumer.committed(first, second, metadata=True)
        assert noted == {first: OffsetAndMetadata(3, note), second: None}
        assert type(noted[TopicPartition(topic, 0)]) is OffsetAndMetadata
        sought = await consumer.seek_to_committed(first)
        assert sought == {first: 3}
        assert are_ours(noted, sought)


async def test_what_aiokafkas_producer_returns_is_committed_and_found(kafka: KafkaHandle) -> None:
    class Listener(ConsumerRebalanceListener):
        def on_partitions_revoked(self, revoked: object) -> None:
            assert are_ours(revoked)

        def on_partitions_assigned(self, assigned: object) -> None:
            assert are_ours(assigned)

    topic = await kafka.create_topic()
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=unique("group"),
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    consumer.subscribe([topic], listener=Listener())
    async with consumer:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
            sent = await producer.send_and_wait(topic, b"value")
        assert (await consumer.getone(sent.topic_partition)).offset == sent.offset
        await consumer.commit({sent.topic_partition: sent.offset + 1})
        assert await consumer.committed(sent.topic_partition) == 1


REFUSED: Final = [("t", 0), Longer("t", 0, 3), ["t", 0], "t-0", None]


@pytest.mark.parametrize("given", REFUSED)
async def test_what_is_no_partition_is_refused(given: TopicPartition) -> None:
    consumer = AIOKafkaConsumer("t", group_id="g")
    for call in (consumer.pause, consumer.resume, consumer.incremental_assign, consumer.explain):
        with pytest.raises(TypeError):
            call(given)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        consumer.seek(given, 0)
    await consumer.stop()
