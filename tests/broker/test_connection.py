"""One client's connection: versions, frames, limits, order."""

from __future__ import annotations

import asyncio
import struct

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.errors import InvalidRequestError, UnsupportedVersionError
from aiokafka_lite.protocol import codec, framing
from aiokafka_lite.protocol.messages.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
)
from aiokafka_lite.protocol.messages.produce import ProduceRequest
from aiokafka_lite.protocol.registry import REQUESTS
from tests.broker.wire import eventually, fetch_partition, fetch_request, until_closed
from tests.support.cluster import KafkaHandle
from tests.support.frames import correlation_id_of
from tests.support.wire import RawClient


def api_versions(version: int) -> ApiVersionsRequest:
    if version < 3:
        return ApiVersionsRequest()
    return ApiVersionsRequest(client_software_name="raw", client_software_version="1.0")


def newest_of(kafka: KafkaHandle) -> int:
    """The newest version of ApiVersions: Kafka 4.3 has no version 5 (KIP-1242)."""
    return 5 if kafka.kind == "embedded" else 4


async def test_every_version_of_api_versions_is_answered(kafka: KafkaHandle) -> None:
    async with kafka.raw() as client:
        newest = newest_of(kafka)
        answers = [await client.request(api_versions(v), v) for v in range(newest + 1)]
    for answer in answers:
        assert answer.error_code == 0
        ranges = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
        assert ranges[ProduceRequest.api_key][0] == 0  # KAFKA-18659
        for key in (1, 3, 8, 9, 10, 11, 12, 13, 14, 19):
            assert ranges[key][1] == REQUESTS[key].max_version
        assert ranges[ApiVersionsRequest.api_key][1] == newest


async def test_unknown_version_of_api_versions_is_answered_in_version_0(
    kafka: KafkaHandle,
) -> None:
    request = struct.pack(">hhih", ApiVersionsRequest.api_key, 99, 5, -1) + b"\0"
    async with kafka.raw() as client:
        frame = await client.exchange(len(request).to_bytes(4, "big") + request)
        answer = codec.decode(ApiVersionsResponse, 0, frame[4:])
        assert correlation_id_of(frame) == 5
        assert answer.error_code == UnsupportedVersionError.errno
        assert [(each.api_key, each.min_version, each.max_version) for each in answer.api_keys] == [
            (ApiVersionsRequest.api_key, 0, newest_of(kafka))
        ]
        assert (await client.request(api_versions(0), 0)).error_code == 0


@pytest.mark.parametrize("name", ["", "-x", "x y", "x-"])
async def test_impossible_software_name_is_refused(kafka: KafkaHandle, name: str) -> None:
    request = ApiVersionsRequest(client_software_name=name, client_software_version="1.0")
    async with kafka.raw() as client:
        answer = await client.request(request, 3)
    assert answer.error_code == InvalidRequestError.errno


CLOSING = {
    "unknown api": struct.pack(">hhih", 999, 0, 1, -1),
    "version too new": struct.pack(">hhih", MetadataRequest.api_key, 99, 1, -1) + b"\0",
    "version too old": struct.pack(">hhih", ProduceRequest.api_key, 2, 1, -1) + bytes(10),
    "no header": b"\0",
    "body cut short": framing.encode_request(MetadataRequest(topics=None), 5, 1, "raw")[4:-1],
}


@pytest.mark.parametrize("fault", CLOSING)
async def test_what_cannot_be_answered_closes_the_connection(
    kafka: KafkaHandle, fault: str
) -> None:
    frame = CLOSING[fault]
    async with kafka.raw() as client:
        await client.send(len(frame).to_bytes(4, "big") + frame)
        await until_closed(client)


@pytest.mark.parametrize(
    "prefix", [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"GET / HTTP/1.1\r\n"]
)
async def test_impossible_frame_size_closes_the_connection(
    kafka: KafkaHandle, prefix: bytes
) -> None:
    async with kafka.raw() as client:
        await client.send(prefix)
        await until_closed(client)


async def test_request_in_single_bytes_is_answered(kafka: KafkaHandle) -> None:
    frame = framing.encode_request(MetadataRequest(topics=[]), 5, 3, "raw")
    async with kafka.raw() as client:
        for byte in frame:
            await client.send(bytes([byte]))
        assert correlation_id_of(await client.receive()) == 3


@pytest.mark.parametrize("client_id", ["raw", "x" * 2_000], ids=["short", "long"])
async def test_bytes_behind_a_request_are_left_alone(kafka: KafkaHandle, client_id: str) -> None:
    frame = framing.encode_request(MetadataRequest(topics=[]), 13, 3, client_id)[4:] + b"\0\1\2"
    async with kafka.raw() as client:
        answer = await client.exchange(len(frame).to_bytes(4, "big") + frame)
        assert correlation_id_of(answer) == 3


async def test_many_requests_sent_at_once_are_answered_in_order(kafka: KafkaHandle) -> None:
    frames = [
        framing.encode_request(MetadataRequest(topics=[]), 5, number, "x" * 100)
        for number in range(500)
    ]
    async with kafka.raw() as client:
        answers = await client.pipeline(frames)
    assert [correlation_id_of(answer) for answer in answers] == list(range(500))


# --- What only the embedded broker can be asked for -------------------------------------------
NOT_OFFERED = {
    "DescribeAcls": 29,
    "CreateAcls": 30,
    "DeleteAcls": 31,
    "AlterReplicaLogDirs": 34,
    "DescribeLogDirs": 35,
    "ElectLeaders": 43,
    "AlterPartitionReassignments": 45,
    "ListPartitionReassignments": 46,
    "DescribeClientQuotas": 48,
    "AlterClientQuotas": 49,
    "DescribeQuorum": 55,
    "ListConfigResources": 74,
}


@pytest.mark.parametrize("name", NOT_OFFERED)
async def test_what_is_not_offered_is_not_advertised_either(name: str) -> None:
    async with Broker() as broker, RawClient(broker.bootstrap_servers) as client:
        answer = await client.request(api_versions(4), 4)
        assert NOT_OFFERED[name] not in {each.api_key for each in answer.api_keys}
        frame = struct.pack(">hhih", NOT_OFFERED[name], 0, 1, -1)
        await client.send(len(frame).to_bytes(4, "big") + frame)
        await until_closed(client)
    assert broker.failure is None


@pytest.mark.every_loop
async def test_full_request_queue_holds_requests_up_and_loses_none() -> None:
    async with Broker(queued_max_requests=1) as broker:
        clients = [RawClient(broker.bootstrap_servers) for _ in range(30)]
        frames = [
            framing.encode_request(MetadataRequest(topics=[]), 5, number, "raw")
            for number in range(40)
        ]

        async def one(client: RawClient) -> list[int]:
            async with client:
                answers = await client.pipeline(frames)
            return [correlation_id_of(answer) for answer in answers]

        for answered in await asyncio.gather(*map(one, clients)):
            assert answered == list(range(40))


@pytest.mark.every_loop
async def test_client_that_takes_nothing_is_not_read_from_either() -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        await kafka.produce("t", 0, [(None, b"x" * 900_000)])
        request = fetch_request({"t": [fetch_partition()]})
        frames = b"".join(framing.encode_request(request, 12, n, "raw") for n in range(200))
        reader, writer = await asyncio.open_connection(
            broker.node.address.host, broker.node.address.port
        )
        writer.write(frames)
        await writer.drain()
        async with kafka.raw() as other:  # others are served meanwhile
            for _ in range(20):
                await other.request(MetadataRequest(topics=[]))
        for number in range(200):
            size = int.from_bytes(await reader.readexactly(4), "big")
            frame = await reader.readexactly(size)
            assert int.from_bytes(frame[:4], "big") == number
            assert size > 900_000
        writer.close()
        await writer.wait_closed()


async def test_client_that_leaves_during_a_long_poll_leaves_nothing_behind() -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        request = fetch_request({"t": [fetch_partition()]}, max_wait_ms=60_000)
        async with RawClient(broker.bootstrap_servers) as client:
            await client.send(framing.encode_request(request, 12, 1, "raw"))
            await eventually(lambda: len(broker.purgatory) == 1)
        await eventually(lambda: broker.connection_count == 0)
        assert len(broker.purgatory) == 0


async def test_connections_beyond_the_limit_are_closed() -> None:
    async with Broker(max_connections=2) as broker:
        address = broker.bootstrap_servers
        async with RawClient(address) as one, RawClient(address) as two:
            for client in (one, two):
                await client.request(MetadataRequest(topics=[]))
            async with RawClient(address) as three:
                await until_closed(three)
            await one.request(MetadataRequest(topics=[]))
        await eventually(lambda: broker.connection_count == 0)
        async with RawClient(address) as again:
            await again.request(MetadataRequest(topics=[]))


async def test_idle_connection_is_closed_and_a_waiting_one_is_not() -> None:
    async with Broker(connections_max_idle_s=0.1) as broker:
        broker.create_topic("t")
        request = fetch_request({"t": [fetch_partition()]}, max_wait_ms=500)
        async with (
            RawClient(broker.bootstrap_servers) as idle,
            RawClient(broker.bootstrap_servers) as waiting,
        ):
            await idle.request(MetadataRequest(topics=[]))
            poll = asyncio.ensure_future(waiting.request(request, 12))
            await until_closed(idle)
            assert (await poll).error_code == 0


async def test_frame_limit_is_the_brokers() -> None:
    async with Broker(max_frame_bytes=1000) as broker:
        async with RawClient(broker.bootstrap_servers) as client:
            await client.send((1001).to_bytes(4, "big"))
            await until_closed(client)
        async with RawClient(broker.bootstrap_servers) as client:
            await client.request(MetadataRequest(topics=[]))
