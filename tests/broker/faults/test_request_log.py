"""What the log of requests keeps, and what it says of them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from aiokafka_lite import records
from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.handlers.base import RequestContext
from aiokafka_lite.broker.network.request_log import (
    ALL_WHOLE_BYTES,
    EXTRACT_ELEMENTS,
    KEPT_BYTES,
    SMALL_BYTES,
    WHOLE_BYTES,
    RequestLog,
    SeenRequest,
)
from aiokafka_lite.errors import GroupCoordinatorNotAvailableError, NotCoordinatorForGroupError
from aiokafka_lite.protocol.messages.group_members import HeartbeatRequest
from aiokafka_lite.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from aiokafka_lite.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.broker.wire import fetch_partition, fetch_request
from tests.support.wire import RawClient

METADATA = MetadataRequest(topics=[])
HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


async def test_requests_are_found_by_what_they_were() -> None:
    async with (
        Broker(nodes=2) as broker,
        RawClient(broker.nodes[1].bootstrap_servers, client_id="one") as one,
        RawClient(broker.nodes[2].bootstrap_servers, client_id="two") as two,
    ):
        await one.request(METADATA)
        mark = broker.requests.total
        await two.request(METADATA, 9)
        await two.request(HEARTBEAT)
        log = broker.requests
        assert [seen.api for seen in log] == ["Metadata", "Metadata", "Heartbeat"]
        assert [seen.node_id for seen in log.of("Metadata")] == [1, 2]
        assert [seen.client_id for seen in log.of(node=2)] == ["two", "two"]
        assert [seen.api_version for seen in log.of(3, since=mark)] == [9]
        assert log.of(HeartbeatRequest, client_id="one") == []
        (refused,) = log.of(error=NotCoordinatorForGroupError)
        assert (refused.request, refused.error_codes) == (HEARTBEAT, {16})
        assert log.of(error=GroupCoordinatorNotAvailableError) == []
        assert log.of(when=lambda seen: seen.peer.endswith(f":{one.local_address[1]}")) == [
            next(iter(log))
        ]
        for seen in log:
            assert seen.answered_at is not None
            assert 0 <= seen.answered_at - seen.arrived_at < 60
        assert "Heartbeat v4 from 'two'" in repr(refused)
        with pytest.raises(ValueError, match="not an API"):
            log.of("Heart")


async def test_a_waiting_request_is_there_before_its_answer() -> None:
    async with Broker() as broker, RawClient(broker.bootstrap_servers) as client:
        broker.create_topic("t")
        request = fetch_request({"t": [fetch_partition()]}, max_wait_ms=60_000)
        waiting = asyncio.ensure_future(client.request(request, 12))
        (seen,) = await broker.requests.wait_for("Fetch")
        assert (seen.request, seen.answered_at) == (request, None)
        broker.partition("t", 0).append(records.build_batch([(1, None, b"v", ())]))
        await waiting
        assert seen.answered_at is not None
        with pytest.raises(TimeoutError, match="1 requests of Fetch matched within"):
            await broker.requests.wait_for("Fetch", count=2, timeout_s=0.01)


async def test_the_log_keeps_the_latest_and_no_large_record_sets() -> None:
    async with Broker(request_log_size=3) as broker, RawClient(broker.bootstrap_servers) as client:
        broker.create_topic("t")
        for size in (10, 2 * KEPT_BYTES):
            batch = records.build_batch([(1, None, bytes(size), ())])
            data = TopicProduceData(
                name="t", partition_data=[PartitionProduceData(index=0, records=batch)]
            )
            await client.request(ProduceRequest(acks=1, timeout_ms=1, topic_data=[data]), 9)
        kept = []
        for seen in broker.requests:
            assert isinstance(seen.request, ProduceRequest)
            ((partition,),) = (topic.partition_data for topic in seen.request.topic_data)
            kept.append(len(partition.records or b"") > 0)
        assert kept == [True, False]
        assert broker.partition("t", 0).high_watermark == 2
        for _ in range(3):
            await client.request(METADATA)
        assert [seen.api for seen in broker.requests] == ["Metadata"] * 3
        assert broker.requests.total == 5


def metadata_of(count: int) -> MetadataRequest:
    return MetadataRequest(
        topics=[MetadataRequestTopic(name=f"unknown{n}") for n in range(count)],
        allow_auto_topic_creation=False,
    )


async def test_of_a_large_request_the_log_keeps_the_beginning() -> None:
    async with Broker() as broker, RawClient(broker.bootstrap_servers) as client:
        await client.request(metadata_of(1_000))
        answer = await client.request(metadata_of(100_000))
        assert len(answer.topics) == 100_000
        small, large = broker.requests
        assert (small.is_extract, small.request) == (False, metadata_of(1_000))
        assert (large.is_extract, large.request) == (True, metadata_of(EXTRACT_ELEMENTS))
        assert large.size_bytes > 1 << 20
        assert large.error_codes == {3}


async def test_what_the_log_keeps_is_bounded_altogether() -> None:
    request = metadata_of(2_000)
    async with Broker() as broker, RawClient(broker.bootstrap_servers) as client:
        for _ in range(50):
            await client.request(request)
        whole = [seen for seen in broker.requests if not seen.is_extract]
        assert 0 < len(whole) < 50
        assert sum(seen.size_bytes for seen in whole) <= ALL_WHOLE_BYTES
        assert whole == list(broker.requests)[-len(whole) :]
        for seen in broker.requests:
            assert seen.request == (metadata_of(EXTRACT_ELEMENTS) if seen.is_extract else request)


CONTEXT = cast(
    "RequestContext", SimpleNamespace(node=SimpleNamespace(id=1), client_id="c", api_version=9)
)


def test_requests_are_kept_whole_up_to_the_limits() -> None:
    log = RequestLog(100)

    def arrived(size_bytes: int) -> SeenRequest:
        return log.arrived(CONTEXT, "peer", metadata_of(20), size_bytes, 0.0)

    for _ in range(2):
        small = [arrived(SMALL_BYTES) for _ in range(3)]
        whole = [arrived(WHOLE_BYTES) for _ in range(ALL_WHOLE_BYTES // WHOLE_BYTES)]
        assert all(seen.request == metadata_of(20) for seen in (*small, *whole))
        assert not any(seen.is_extract for seen in (*small, *whole))
        large = arrived(WHOLE_BYTES + 1)
        assert (large.is_extract, large.request) == (True, metadata_of(EXTRACT_ELEMENTS))
        assert not whole[0].is_extract
        arrived(SMALL_BYTES + 1)
        assert [seen.is_extract for seen in whole[:2]] == [True, False]
        assert whole[0].request == metadata_of(EXTRACT_ELEMENTS)
        log.clear()
    assert (len(log), log.total) == (0, 2 * (3 + 32 + 2))


@pytest.mark.parametrize(
    ("partitions", "is_extract"), [([1], False), ([2], True), ([1, 1], True), ([0], True)]
)
def test_records_of_one_partition_are_kept_until_they_are_handled(
    partitions: list[int], is_extract: bool
) -> None:
    log = RequestLog(10)
    request = ProduceRequest(
        topic_data=[
            TopicProduceData(
                name="t",
                partition_data=[PartitionProduceData(records=b"x" * 1_000) for _ in range(count)],
            )
            for count in partitions
        ]
    )
    seen = log.arrived(CONTEXT, "peer", request, WHOLE_BYTES + 1, 0.0)
    assert (seen.is_extract, seen.request is request) == (is_extract, not is_extract)
    log.answered(seen, frozenset(), 1.0)
    assert isinstance(seen.request, ProduceRequest)
    kept = [data.records for topic in seen.request.topic_data for data in topic.partition_data]
    assert not any(kept)
    data = PartitionProduceData(records=b"x")
    request = ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=[data])])
    small = log.arrived(CONTEXT, "peer", request, KEPT_BYTES, 0.0)
    log.answered(small, frozenset({3}), 1.0)
    assert (small.answered_at, small.error_codes, data.records) == (1.0, {3}, b"x")


async def test_waiting_for_an_error_ends_with_the_answer() -> None:
    log = RequestLog(10)
    waiting = asyncio.ensure_future(log.wait_for(error=3, count=2, timeout_s=1.0))
    seen = []
    for _ in range(2):
        await asyncio.sleep(0)
        seen.append(log.arrived(CONTEXT, "peer", METADATA, 10, 0.0))
        await asyncio.sleep(0)
        log.answered(seen[-1], frozenset({3}), 1.0)
    assert await waiting == seen


async def test_no_log_is_kept_if_none_is_wanted() -> None:
    async with Broker(request_log_size=0) as broker, RawClient(broker.bootstrap_servers) as client:
        await client.request(METADATA)
        assert (len(broker.requests), broker.requests.total) == (0, 0)
