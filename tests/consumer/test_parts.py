"""The parts of a consumer between start and stop: what they are made of, and their first steps."""

from __future__ import annotations

import asyncio

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite._chance import UNSEEDED
from aiokafka_lite._compat import override
from aiokafka_lite.abc import AbstractTokenProvider
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.parts import FRAME_OVERHEAD_BYTES, max_frame_bytes, mechanism_of
from aiokafka_lite.protocol.messages.metadata import FindCoordinatorRequest, MetadataRequest
from aiokafka_lite.structs import TopicPartition
from tests.support.conversing import Conversation
from tests.support.scripted_broker import Do, ScriptedBroker


def test_an_answer_may_hold_all_that_a_fetch_may_bring() -> None:
    large = 200 << 20
    for name in ("fetch_max_bytes", "max_partition_fetch_bytes"):
        config = ConsumerConfig(**{name: large})  # type: ignore[arg-type]
        assert max_frame_bytes(config) == large + FRAME_OVERHEAD_BYTES
    assert max_frame_bytes(ConsumerConfig()) == 100 << 20


class Tokens(AbstractTokenProvider):
    """Gives another token each time."""

    def __init__(self) -> None:
        self.count = 0

    @override
    async def token(self) -> str:
        self.count += 1
        return f"token-{self.count}"

    @override
    def extensions(self) -> dict[str, str]:
        return {"pool": "p"}


async def test_a_thread_shows_the_token_that_the_loop_has_shown_last() -> None:
    for has_thread in (True, False):
        provider = Tokens()
        mechanism = mechanism_of(
            ConsumerConfig(
                security_protocol="SASL_PLAINTEXT",
                sasl_mechanism="OAUTHBEARER",
                sasl_oauth_token_provider=provider,
                heartbeat_thread=has_thread,
            ),
            UNSEEDED,
        )
        assert mechanism is not None
        said = [await Conversation(mechanism).first() for _ in range(2)]
        of_thread = await asyncio.to_thread(asyncio.run, Conversation(mechanism).first())
        assert b"token-2\x01pool=p" in said[1]
        assert (of_thread == said[1]) is has_thread
        assert provider.count == (2 if has_thread else 3)


def test_nobody_is_shown_credentials_who_does_not_ask() -> None:
    assert mechanism_of(ConsumerConfig(heartbeat_thread=True), UNSEEDED) is None


@pytest.mark.parametrize("how", ["subscribe", "assign", "neither"])
async def test_a_coordinator_that_is_needed_is_asked_for_beside_the_first_metadata(
    how: str,
) -> None:
    async with ScriptedBroker() as broker:
        for request_class in (MetadataRequest, FindCoordinatorRequest):
            broker.scripts[request_class] = lambda _: Do.NOTHING
        consumer = AIOKafkaConsumer(bootstrap_servers=broker.address, group_id="g")
        if how == "subscribe":
            consumer.subscribe(["t"])
        elif how == "assign":
            consumer.assign([TopicPartition("t", 0)])
        starting = asyncio.ensure_future(consumer.start())
        await broker.until_asked(MetadataRequest)
        if how == "neither":
            await asyncio.sleep(0.005)
            assert broker.count(FindCoordinatorRequest) == 0
        else:
            await broker.until_asked(FindCoordinatorRequest)
        starting.cancel()
        await asyncio.wait([starting])
        await consumer.stop()
