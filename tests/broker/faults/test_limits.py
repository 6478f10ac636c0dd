"""The reactor's limits: connections by address, and a flood that a full queue holds up."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.protocol import framing
from aiokafka_lite.protocol.messages.metadata import MetadataRequest
from tests.broker.wire import eventually, until_closed
from tests.support.frames import correlation_id_of
from tests.support.wire import RawClient

METADATA = MetadataRequest(topics=[])
FLOOD_BYTES = 8 << 20  # more than the kernel takes for a connection
CLIENTS = 3


async def test_one_address_gets_so_many_connections() -> None:
    async with Broker(max_connections_per_ip=2) as broker:
        address = broker.bootstrap_servers
        async with RawClient(address) as one:
            async with RawClient(address) as two:
                for client in (one, two):
                    await client.request(METADATA)
                async with RawClient(address) as three:
                    await until_closed(three)
                await two.request(METADATA)
            await eventually(lambda: broker.connection_count == 1)
            async with RawClient(address) as again:
                await again.request(METADATA)


def test_limits_must_be_positive() -> None:
    with pytest.raises(ValueError, match="max_connections_per_ip"):
        Broker(max_connections_per_ip=0)


@pytest.mark.every_loop
async def test_a_flood_is_held_up_by_the_queue_and_answered_in_order() -> None:
    """Three clients send 8 MiB of requests each, while the first of each is held."""
    padding = "x" * 30_000  # the longest client id is a little longer
    frames = [framing.encode_request(METADATA, 5, n, padding) for n in range(FLOOD_BYTES // 30_000)]
    async with Broker(queued_max_requests=2, request_log_size=0) as broker:
        clients = [RawClient(broker.bootstrap_servers) for _ in range(CLIENTS)]
        for client in clients:
            await client.__aenter__()
        flood_bytes = b"".join(frames)
        tracemalloc.start()
        held = broker.on("Metadata").hold()
        floods = [asyncio.ensure_future(client.send(flood_bytes)) for client in clients]
        await held.reached(len(clients))
        for _ in range(200):  # whatever is going to be read is read by then
            await asyncio.sleep(0.001)
        assert not any(flood.done() for flood in floods)
        found, _ = tracemalloc.get_traced_memory()
        # What the clients have not got rid of, and in the broker a few buffers.
        assert found < CLIENTS * FLOOD_BYTES + (4 << 20)
        tracemalloc.stop()
        held.release()

        async def receive(client: RawClient) -> list[int]:
            return [correlation_id_of(await client.receive()) for _ in frames]

        for answered in await asyncio.gather(*map(receive, clients)):
            assert answered == list(range(len(frames)))
        await asyncio.gather(*floods)
        for client in clients:
            await client.__aexit__(None, None, None)
