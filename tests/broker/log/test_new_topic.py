"""Records for a topic that was created a moment ago."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from aiokafka_lite.protocol.messages.sasl import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from aiokafka_lite.protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from aiokafka_lite.protocol.schema import Request, Response
from tests.broker.admin.requests import TOPIC, changing, replacing
from tests.broker.batches import batch
from tests.broker.wire import produce, topic_metadata
from tests.support.wire import RawClient


class Gate(threading.Event):
    """Holds up the disk's thread until it is set."""

    def __call__(self) -> None:
        self.wait()


@pytest.fixture
def gate() -> Iterator[Gate]:
    event = Gate()
    yield event
    event.set()


async def test_are_acknowledged_when_the_topic_survives_a_crash(tmp_path: Path, gate: Gate) -> None:
    async with Broker(data_dir=tmp_path) as broker:
        broker.create_topic("old")
        await broker.disk.settled()
        broker.disk.submit(gate)
        broker.create_topic("new")
        broker.add_partitions("old", 2)
        address = broker.bootstrap_servers
        async with RawClient(address) as one, RawClient(address) as two, RawClient(address) as seer:
            sent = [
                asyncio.ensure_future(produce(one, "new", batch(3))),
                asyncio.ensure_future(produce(two, "old", batch(3))),
            ]
            try:
                while broker.partition("new", 0).high_watermark < 3:
                    await topic_metadata(seer, "new")
                for _ in range(3):
                    await topic_metadata(seer, "new")
                assert [task.done() for task in sent] == [False, False]
            finally:
                gate.set()  # stopping waits for the disk
            assert [(await task).error_code for task in sent] == [0, 0]
            assert (await produce(one, "new", batch(1))).base_offset == 3


CHANGES: dict[str, Request[Response]] = {
    "CreateTopics": CreateTopicsRequest(
        topics=[CreatableTopic(name="new", num_partitions=1, replication_factor=1)]
    ),
    "CreatePartitions": CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name="old", count=2, assignments=None)]
    ),
    "DeleteTopics": DeleteTopicsRequest(topics=[DeleteTopicState(name="old")]),
    "DeleteRecords": DeleteRecordsRequest(
        topics=[
            DeleteRecordsTopic(
                name="old", partitions=[DeleteRecordsPartition(partition_index=0, offset=1)]
            )
        ]
    ),
    "Metadata": MetadataRequest(topics=[MetadataRequestTopic(name="new")]),
    "AlterConfigs": replacing(TOPIC, "old", ("flush.ms", "5")),
    "IncrementalAlterConfigs": changing(TOPIC, "old", ("flush.ms", 0, "5")),
    "AlterUserScramCredentials": AlterUserScramCredentialsRequest(
        upsertions=[
            ScramCredentialUpsertion(
                name="carol", mechanism=1, iterations=4096, salt=b"salt", salted_password=b"x" * 32
            )
        ]
    ),
}


@pytest.mark.parametrize("api", CHANGES)
async def test_change_is_acknowledged_when_it_survives_a_crash(
    tmp_path: Path, gate: Gate, api: str
) -> None:
    async with Broker(data_dir=tmp_path) as broker:
        broker.create_topic("old")
        broker.partition("old", 0).append(batch(2))
        await broker.disk.drained()
        broker.disk.submit(gate)
        address = broker.bootstrap_servers
        async with RawClient(address) as client, RawClient(address) as seer:
            sent = asyncio.ensure_future(client.request(CHANGES[api]))
            try:
                await broker.requests.wait_for(api)
                for _ in range(3):
                    await topic_metadata(seer, "old")
                assert not sent.done()
            finally:
                gate.set()  # stopping waits for the disk
            await sent


async def test_are_acknowledged_at_once_in_memory(gate: Gate) -> None:
    async with Broker() as broker, RawClient(broker.bootstrap_servers) as client:
        broker.disk.submit(gate)
        broker.create_topic("new")
        assert (await produce(client, "new", batch(3))).error_code == 0
        gate.set()
