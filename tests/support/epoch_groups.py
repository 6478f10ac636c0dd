"""Consumers that are members of groups of KIP-848, and what the embedded broker heard of them."""

from __future__ import annotations

from typing import TypeVar

from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.protocol.messages.group_members import ConsumerGroupHeartbeatRequest
from aiokafka_lite.protocol.schema import Request, Response

R = TypeVar("R", bound=Request[Response])


def consumer_at(
    bootstrap_servers: str,
    group_id: str,
    topic: str,
    /,
    *,
    listener: ConsumerRebalanceListener | None = None,
    **settings: object,
) -> AIOKafkaConsumer:
    """A consumer that is subscribed, and not started."""
    arguments: dict[str, object] = {
        "group_protocol": "consumer",
        "fetch_max_wait_ms": 50,
        "retry_backoff_ms": 20,
        **settings,
    }
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        group_id=group_id,
        **arguments,  # type: ignore[arg-type]
    )
    consumer.subscribe([topic], listener=listener)
    return consumer


def consumer_of(
    broker: Broker, *, listener: ConsumerRebalanceListener | None = None, **settings: object
) -> AIOKafkaConsumer:
    """A consumer of the topic "t" in the group "g" of an embedded broker."""
    return consumer_at(broker.bootstrap_servers, "g", "t", listener=listener, **settings)


def requests_of(broker: Broker, kind: type[R]) -> list[R]:
    """The requests of a kind that came so far."""
    return [seen.request for seen in broker.requests.of(kind) if isinstance(seen.request, kind)]


def beats_of(broker: Broker) -> list[ConsumerGroupHeartbeatRequest]:
    """The heartbeats that came so far."""
    return requests_of(broker, ConsumerGroupHeartbeatRequest)
