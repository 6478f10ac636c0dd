"""What an application sees when a server that it names does not answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from aiokafka_lite._compat import timeout
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import KafkaConnectionError
from tests.support.cluster import KafkaHandle
from tests.support.scripted_broker import ScriptedBroker, silence


@pytest.fixture
async def silent() -> AsyncIterator[list[str]]:
    """Addresses of servers that accept connections and answer nothing."""
    async with AsyncExitStack() as stack:
        brokers = [await stack.enter_async_context(ScriptedBroker()) for _ in range(4)]
        silence(*brokers)
        yield [broker.address for broker in brokers]


async def test_start_says_who_was_asked_what_and_what_to_do(silent: list[str]) -> None:
    consumer = AIOKafkaConsumer("t", bootstrap_servers=silent[0], request_timeout_ms=500)
    with pytest.raises(KafkaConnectionError) as caught:
        await consumer.start()
    await consumer.stop()
    for part in (f"connected to {silent[0]}", "ApiVersions", "no answer", "security_protocol"):
        assert part in str(caught.value)


async def test_start_is_not_held_up_by_servers_that_do_not_answer(
    kafka: KafkaHandle, silent: list[str]
) -> None:
    topic = await kafka.create_topic()
    servers = [*silent, kafka.bootstrap_servers]
    async with timeout(4), AIOKafkaConsumer(topic, bootstrap_servers=servers) as consumer:
        assert len(consumer.assignment()) == 1
