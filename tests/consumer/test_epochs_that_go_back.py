"""Leader epochs that begin again: a recreated topic without ids, a cluster that was restored."""

from __future__ import annotations

import asyncio

import pytest

from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.log.storage import LeaderEpochs
from aiokafka_lite.protocol.messages.offsets import OffsetCommitRequest
from aiokafka_lite.structs import TopicPartition
from tests.support import inside
from tests.support.protocols import offering
from tests.support.reading import consumer_of, values
from tests.support.waiting import until

TP = TopicPartition("t", 0)


def restore(broker: Broker) -> None:
    """Go on with a copy of the log, which has no leader epochs but the first."""
    partition = broker.partition(*TP)
    partition.leader_epoch = 0
    partition.log.epochs = LeaderEpochs([(0, 0)])


@pytest.mark.virtual_time
@pytest.mark.parametrize("is_restored", [False, True], ids=["without topic ids", "restored"])
async def test_reading_goes_on_when_leader_epochs_begin_again(
    is_restored: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with Broker(nodes=2) as broker:
        if not is_restored:
            broker.on("ApiVersions").answer(offering(Metadata=9, Fetch=12), times=None)
        broker.create_topic("t")
        for _ in range(6):
            broker.move_leader(TP)
        broker.produce("t", b"old")
        async with consumer_of(broker, "t", group_id="g", group_protocol="classic") as consumer:
            assert await values(consumer, 1) == [b"old"]
            assert inside.cursor(consumer, TP).leader_epoch == 6
            if is_restored:
                restore(broker)
            else:
                broker.recreate_topic("t")
                broker.produce("t", b"old")
            await until(lambda: "leader epoch in the metadata went back" in caplog.text)
            assert await consumer.position(TP) == 1
            # Batches of a restored log may still have the epochs from before.
            consumer.seek(TP, 0)
            assert await values(consumer, 1) == [b"old"]
            assert await consumer.position(TP) == 1
            await inside.cluster(consumer).refresh()
            broker.produce("t", b"new")
            assert await values(consumer, 1) == [b"new"]
            assert consumer.health().is_ok
            await consumer.commit()
            commit = broker.requests.of("OffsetCommit")[-1].request
            assert isinstance(commit, OffsetCommitRequest)
            assert commit.topics[0].partitions[0].committed_leader_epoch == 0
            # From here on all is as with any topic.
            broker.move_leader(TP)
            broker.produce("t", b"newer")
            assert await values(consumer, 1) == [b"newer"]
    (told,) = [
        each.message
        for each in caplog.records
        if "leader epoch in the metadata went back" in each.message
    ]
    assert "went back from 6 to " in told


@pytest.mark.virtual_time
@pytest.mark.parametrize("way", ["position", "end_offsets", "offsets_for_times"])
async def test_offsets_of_a_recreated_topic_are_looked_up_though_the_partition_is_not_fetched(
    way: str,
) -> None:
    async with Broker(nodes=2) as broker:
        broker.create_topic("t")
        for _ in range(4):  # back to the node that leads a new topic
            broker.move_leader(TP)
        broker.produce("t", b"old")
        async with consumer_of(broker, metadata_max_age_ms=300_000) as consumer:
            consumer.assign([TP])
            assert await values(consumer, 1) == [b"old"]
            consumer.pause(TP)
            await asyncio.sleep(1)  # the fetch in flight ends
            broker.recreate_topic("t")
            for value in (b"a", b"b"):
                broker.produce("t", value)
            async with timeout(5):
                if way == "position":
                    await consumer.seek_to_end(TP)
                    assert await consumer.position(TP) == 2
                elif way == "end_offsets":
                    assert await consumer.end_offsets([TP]) == {TP: 2}
                else:
                    found = (await consumer.offsets_for_times({TP: 0}))[TP]
                    assert found is not None
                    assert found.offset == 0
