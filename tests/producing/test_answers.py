"""Answers to a producer that only a script gives."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator

import pytest

from aiokafka_lite._compat import timeout
from aiokafka_lite.errors import IncompatibleBrokerVersion, NotLeaderForPartitionError
from aiokafka_lite.producing.partition_queue import MAX_IN_FLIGHT
from aiokafka_lite.protocol.messages.fetch import (
    LeaderIdAndEpoch,
    NodeEndpoint,
)
from aiokafka_lite.protocol.messages.metadata import ApiVersionsRequest
from aiokafka_lite.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from aiokafka_lite.protocol.messages.transactions import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from tests.producing.sending import producer_of
from tests.support.scripted_broker import Answer, Asked, ScriptedBroker, all_versions, topic


def placed(answer: PartitionProduceResponse, *endpoints: NodeEndpoint) -> ProduceResponse:
    """Answer for partition 0 of the topic "t"."""
    return ProduceResponse(
        responses=[TopicProduceResponse(name="t", partition_responses=[answer])],
        node_endpoints=list(endpoints),
    )


def written(asked: Asked) -> Answer:
    return placed(PartitionProduceResponse(index=0, base_offset=7))


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    """A node that leads the topic "t", and acknowledges records at offset 7."""
    async with ScriptedBroker() as broker:
        broker.topics["t"] = topic("t", [1], leader_epoch=5)
        broker.scripts[InitProducerIdRequest] = lambda _: InitProducerIdResponse(producer_id=1)
        broker.scripts[ProduceRequest] = written
        yield broker


async def test_a_new_leader_with_the_node_id_0_is_taken_from_an_answer(
    broker: ScriptedBroker,
) -> None:
    async with ScriptedBroker(0) as leader, timeout(10):
        leader.scripts[ProduceRequest] = written
        moved = PartitionProduceResponse(
            index=0,
            error_code=NotLeaderForPartitionError.errno,
            current_leader=LeaderIdAndEpoch(leader_id=0, leader_epoch=6),
        )
        endpoint = NodeEndpoint(node_id=0, host=leader.host, port=leader.port)
        broker.scripts[ProduceRequest] = lambda _: placed(moved, endpoint)
        async with producer_of(broker.address) as producer:
            assert (await producer.send_and_wait("t", b"v")).offset == 7


@pytest.mark.parametrize("is_cut", [True, False], ids=["malformed", "without the partition"])
async def test_records_are_sent_again_after_an_answer_that_breaks_the_protocol(
    broker: ScriptedBroker, is_cut: bool
) -> None:
    def break_protocol(asked: Asked) -> Answer:
        broker.scripts[ProduceRequest] = written
        body = asked.encode(ProduceResponse())[4:]
        return struct.pack(">i", len(body) - 1) + body[:-1] if is_cut else ProduceResponse()

    broker.scripts[ProduceRequest] = break_protocol
    async with timeout(10), producer_of(broker.address) as producer:
        assert (await producer.send_and_wait("t", b"v")).offset == 7
    assert broker.count(ProduceRequest) == 2


async def test_a_broker_that_offers_no_produce_fails_the_records(broker: ScriptedBroker) -> None:
    versions = all_versions()
    versions.api_keys = [key for key in versions.api_keys if key.api_key != ProduceRequest.api_key]
    broker.scripts[ApiVersionsRequest] = lambda _: versions
    async with timeout(10), producer_of(broker.address) as producer:
        for _ in range(MAX_IN_FLIGHT + 1):
            with pytest.raises(IncompatibleBrokerVersion, match="does not support Produce"):
                await producer.send_and_wait("t", b"v")
