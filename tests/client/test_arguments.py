"""The arguments of consumers and producers: of which types they are, and what is refused."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from aiokafka_lite import AIOKafkaProducer
from aiokafka_lite.broker import Broker
from aiokafka_lite.client.arguments import ClientArguments
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.producing.config import ProducerConfig
from tests.support.for_each import for_each
from tests.support.reading import consumer_of

CONFIGS: tuple[type[ClientArguments], ...] = (ConsumerConfig, ProducerConfig)
OWN_WORDS = {"max_poll_records", "max_records_per_partition"}


def arguments(kind: str) -> list[tuple[type[ClientArguments], str]]:
    """Return the arguments that are annotated as such, with whose they are."""
    return [
        (config, name)
        for config in CONFIGS
        for name, annotation in config.__init__.__annotations__.items()
        if annotation.removesuffix(" | None") == kind and name not in OWN_WORDS
    ]


def made(config: type[ClientArguments], name: str, given: object) -> ClientArguments:
    values: dict[str, Any] = {name: given}
    return config(**values)


@for_each(arguments("int"))
def test_what_is_no_number_is_refused_by_name(config: type[ClientArguments], name: str) -> None:
    may_be_none = config.__init__.__annotations__[name].endswith(" | None")
    if may_be_none:
        assert getattr(made(config, name, None), name) is None
    wrong = ("5000", b"5", float("nan"), float("inf"), True, [5])
    for given in wrong if may_be_none else (*wrong, None):
        with pytest.raises(TypeError, match=f"^{name} must be a number"):
            made(config, name, given)


@for_each(arguments("int"))
def test_number_may_be_a_float(config: type[ClientArguments], name: str) -> None:
    """As seconds times 1000 is; requests have room for ints only."""
    given = getattr(made(config, name, 199_999.99999999997), name)
    assert (given, type(given)) == (200_000, int)


@for_each([each for each in arguments("int") if each[1] != "seed"])
def test_number_that_is_no_time_or_size_is_refused_by_name(
    config: type[ClientArguments], name: str
) -> None:
    """Otherwise the client that uses it fails: a float or a request has no room for it."""
    for given in (10**400, -(10**400), 2**63):
        with pytest.raises(ValueError, match=f"^{name} must "):
            made(config, name, given)


async def test_largest_number_that_is_accepted_works() -> None:
    """`session_timeout_ms` has a limit on the broker, too."""
    async with Broker() as broker:
        broker.produce("t", "v")
        for config, name in arguments("int"):
            try:
                made(config, name, largest := 2**63 - 1)
            except ValueError:
                largest = 2**31 - 1
            given: dict[str, Any] = {name: largest, "bootstrap_servers": broker.bootstrap_servers}
            if config is ProducerConfig:
                async with AIOKafkaProducer(**given) as producer:
                    sent = await producer.send("t", b"w")
                    await producer.flush()
                    assert (await sent).topic == "t", name
            elif name != "session_timeout_ms":
                async with consumer_of(broker, "t", group_id=name, **given) as consumer:
                    assert (await asyncio.wait_for(consumer.getone(), 5)).value == b"v", name
                    await consumer.commit()


@for_each(arguments("bool"))
def test_text_is_no_flag(config: type[ClientArguments], name: str) -> None:
    """Python takes "false", as an environment variable is, for true."""
    no_flags: list[object] = ["false", "true", "0", "", 2, []]
    for given in no_flags:
        with pytest.raises(TypeError, match=f"^{name} must be True or False"):
            made(config, name, given)


@for_each(arguments("bool"))
def test_flag_may_be_0_or_1(config: type[ClientArguments], name: str) -> None:
    assert getattr(made(config, name, 0), name) is False
    assert getattr(made(config, name, 1), name) is True
    assert not getattr(made(config, name, None), name)


@for_each(["client_id", "group_id", "group_instance_id", "client_rack"])
def test_name_that_is_no_text_is_refused_by_name(name: str) -> None:
    for given in (5, b"name", ["name"], Decimal(5)):
        with pytest.raises(TypeError, match=f"^{name} must be a str"):
            made(ConsumerConfig, name, given)


def test_transactional_id_that_is_no_text_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"^transactional_id must be a str"):
        made(ProducerConfig, "transactional_id", 5)


def test_password_that_is_no_text_is_not_shown() -> None:
    values: dict[str, Any] = {"sasl_plain_username": "u", "sasl_plain_password": b"secret"}
    with pytest.raises(TypeError, match="sasl_plain_password") as caught:
        ConsumerConfig(security_protocol="SASL_PLAINTEXT", **values)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("idle_ms", [None, 0, -1])
async def test_connections_are_never_too_idle(idle_ms: int | None) -> None:
    """Java writes -1 for that, librdkafka 0."""
    async with Broker() as broker:
        broker.create_topic("t")
        broker.produce("t", "v")
        async with consumer_of(broker, "t", connections_max_idle_ms=idle_ms) as consumer:
            assert (await asyncio.wait_for(consumer.getone(), 5)).value == b"v"
