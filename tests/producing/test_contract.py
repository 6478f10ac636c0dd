"""The surface of aiokafka's producer, walked over beside the installed aiokafka."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import aiokafka
import pytest
from aiokafka.producer.message_accumulator import BatchBuilder

from aiokafka_lite.errors import (
    InsecureConfigError,
)
from aiokafka_lite.helpers import create_ssl_context
from aiokafka_lite.producing import AIOKafkaProducer, OwnBatch
from aiokafka_lite.producing.config import ProducerConfig
from tests.support.for_each import for_each

Theirs: Final = aiokafka.AIOKafkaProducer
Ours: Final = AIOKafkaProducer

# What the constructor and methods have on top.
OUR_ARGUMENTS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "__init__": frozenset(
            {
                "allow_auto_create_topics",
                "allow_plaintext_credentials",
                "buffer_memory",
                "delivery_timeout_ms",
                "seed",
            }
        ),
        "stop": frozenset({"timeout"}),
    }
)
# Ours is idempotent whatever is said, has its own partitioner, and names a missing value None.
OTHER_DEFAULTS: Final = frozenset({"acks", "enable_idempotence", "partitioner"})
METHODS: Final = sorted(
    name
    for name, value in vars(Theirs).items()
    if inspect.isfunction(value)
    and (not name.startswith("_") or (name.endswith("__") and name != "__del__"))
)


@for_each(METHODS)
def test_method_takes_what_aiokafkas_takes(name: str) -> None:
    theirs, ours = getattr(Theirs, name), getattr(Ours, name)
    assert inspect.iscoroutinefunction(ours) == inspect.iscoroutinefunction(theirs)
    expected = inspect.signature(theirs).parameters
    found = inspect.signature(ours).parameters
    assert found.keys() - expected.keys() == OUR_ARGUMENTS.get(name, frozenset())
    assert [parameter for parameter in found if parameter in expected] == list(expected)
    for parameter in expected.values():
        same = found[parameter.name]
        assert same.kind is parameter.kind, parameter.name
        if not (name == "__init__" and parameter.name in OTHER_DEFAULTS):
            assert same.default == parameter.default, parameter.name
            assert type(same.default) is type(parameter.default), parameter.name


@for_each(["append", "close", "closed", "record_count", "size"])
def test_a_batch_of_ones_own_takes_what_aiokafkas_takes(name: str) -> None:
    theirs, ours = getattr(BatchBuilder, name), getattr(OwnBatch, name)
    expected, found = inspect.signature(theirs).parameters, inspect.signature(ours).parameters
    assert [(each.name, each.kind) for each in found.values()] == [
        (each.name, each.kind) for each in expected.values()
    ]


def test_the_producer_shows_the_arguments_with_types_defaults_and_docs() -> None:
    assert inspect.signature(Ours) == inspect.signature(ProducerConfig)
    for name in inspect.signature(Ours).parameters:
        assert f"{name}: " in (Ours.__init__.__doc__ or ""), name


def test_producer_is_made_in_a_running_loop_only() -> None:
    with pytest.raises(RuntimeError, match="loop"):
        Ours()


@pytest.mark.parametrize(
    ("arguments", "error", "reason"),
    [
        ({"acks": 2}, ValueError, "Invalid ACKS parameter"),
        ({"acks": 1, "enable_idempotence": True}, ValueError, "acks=1 not supported"),
        ({"acks": 0, "enable_idempotence": True}, ValueError, "acks=0 not supported"),
        ({"compression_type": "brotli"}, ValueError, "Invalid compression type!"),
        ({"linger_ms": -1}, ValueError, "linger_ms"),
        ({"max_batch_size": 0}, ValueError, "max_batch_size"),
        ({"buffer_memory": 0}, ValueError, "buffer_memory"),
        ({"transactional_id": ""}, ValueError, "transactional_id"),
        ({"transactional_id": "\ud800"}, ValueError, "transactional_id must be text"),
        ({"transaction_timeout_ms": 2**31}, ValueError, "transaction_timeout_ms must be at most"),
        ({"client_id": "\ud800"}, ValueError, "client_id must be text"),
        ({"client_id": "x" * 32_768}, ValueError, "client_id must have at most 32,767 bytes"),
        ({"transactional_id": "x" * 32_768}, ValueError, "transactional_id must have at most"),
        ({"delivery_timeout_ms": 1_000}, ValueError, "delivery_timeout_ms=1000 is too short"),
        (
            {"delivery_timeout_ms": 40_000, "linger_ms": 1},
            ValueError,
            r"linger_ms \+ request_timeout_ms = 40001",
        ),
        ({"key_serializer": "json"}, TypeError, "key_serializer must be a function"),
        ({"partitioner": 1}, TypeError, "partitioner must be a function"),
        ({"security_protocol": "SSL"}, ValueError, "ssl_context"),
        ({"security_protocol": "SASL_PLAINTEXT"}, ValueError, "sasl_plain_username"),
        ({"bootstrap": "h"}, TypeError, r"AIOKafkaProducer\.__init__\(\) got an unexpected"),
    ],
)
async def test_what_cannot_be_used_is_refused(
    arguments: dict[str, object], error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        Ours(**arguments)  # type: ignore[arg-type]


async def test_credentials_do_not_leave_the_machine_in_the_clear() -> None:
    with pytest.raises(InsecureConfigError, match="without TLS"):
        Ours(
            bootstrap_servers="elsewhere.example",
            security_protocol="SASL_PLAINTEXT",
            sasl_plain_username="u",
            sasl_plain_password="p",
        )
    with pytest.raises(InsecureConfigError, match="without TLS"):
        Ours(bootstrap_servers="elsewhere.example", ssl_context=create_ssl_context())


async def test_a_config_shows_no_password() -> None:
    config = ProducerConfig(
        security_protocol="SASL_PLAINTEXT", sasl_plain_username="u", sasl_plain_password="secret"
    )
    assert "secret" not in repr(config)
    assert "sasl_plain_username='u'" in repr(config)
    with pytest.raises(AttributeError, match="is immutable"):
        config.linger_ms = 5


def test_a_long_request_timeout_moves_the_default_of_the_delivery_timeout() -> None:
    assert ProducerConfig().delivery_timeout_s == 120
    assert ProducerConfig(request_timeout_ms=200_000).delivery_timeout_s == 200


def test_the_smallest_values_are_allowed() -> None:
    positive = (
        "max_batch_size",
        "max_request_size",
        "buffer_memory",
        "request_timeout_ms",
        "metadata_max_age_ms",
        "transaction_timeout_ms",
        "delivery_timeout_ms",
    )
    smallest = dict.fromkeys(positive, 1) | dict.fromkeys(("linger_ms", "retry_backoff_ms"), 0)
    config: ProducerConfig = ProducerConfig(**smallest)  # type: ignore[arg-type]
    assert config.delivery_timeout_s == 0.001


@pytest.mark.parametrize(("request_timeout_ms", "brokers_ms"), [(1_000, 800), (1, 1)])
def test_a_broker_may_wait_for_replicas_for_a_part_of_the_request_timeout(
    request_timeout_ms: int, brokers_ms: int
) -> None:
    config: ProducerConfig = ProducerConfig(request_timeout_ms=request_timeout_ms)
    assert config.brokers_timeout_ms == brokers_ms
