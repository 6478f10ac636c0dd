"""Tests of `seed=`: one seed decides the random numbers and ids of clients and brokers."""

from __future__ import annotations

import asyncio
import copy
import os
import random
from typing import cast

import pytest

from aiokafka_lite import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka_lite._chance import UNSEEDED, Chance
from aiokafka_lite._virtual import chance_for
from aiokafka_lite.broker import Broker, BrokerConfig
from aiokafka_lite.client.arguments import ClientArguments
from aiokafka_lite.client.sasl import Scram
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.producing.config import ProducerConfig


def drawn(chance: random.Random) -> int:
    return chance.getrandbits(64)


async def names_of(broker: Broker, *seeds: int | None, **arguments: object) -> list[str]:
    """Return the member ids of consumers that join one after the other."""
    consumers = [
        AIOKafkaConsumer(
            "t",
            bootstrap_servers=broker.bootstrap_servers,
            group_id="g",
            group_protocol="consumer",
            seed=seed,
            **arguments,  # type: ignore[arg-type]
        )
        for seed in seeds
    ]
    try:
        for consumer in consumers:
            await consumer.start()
        return [consumer.group_metadata().member_id for consumer in consumers]
    finally:
        for consumer in consumers:
            await consumer.stop()


def run_names(*seeds: int | None, **arguments: object) -> list[str]:
    async def main() -> list[str]:
        async with Broker(seed=1) as broker:
            broker.create_topic("t", 4)
            return await names_of(broker, *seeds, **arguments)

    return asyncio.run(main())


def test_a_seed_decides_the_member_ids() -> None:
    first, again, other = run_names(7, 8), run_names(7, 8), run_names(9, 10)
    assert first == again
    assert len({*first, *other}) == 4


def test_consumers_of_one_seed_get_different_ids() -> None:
    first, again = run_names(7, 7, 7), run_names(7, 7, 7)
    assert len(set(first)) == 3
    assert first == again


def test_a_client_id_makes_ids_independent_of_the_order() -> None:
    async def main(*names: str) -> dict[str, str]:
        async with Broker(seed=1) as broker:
            broker.create_topic("t", 4)
            return {name: (await names_of(broker, 7, client_id=name))[0] for name in names}

    assert asyncio.run(main("a", "b")) == asyncio.run(main("b", "a"))


def test_without_a_seed_ids_are_the_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len({*run_names(None, None), *run_names(None, None)}) == 4
    UNSEEDED.seed(1)
    try:
        monkeypatch.setattr(os, "urandom", lambda count: b"x" * count)
        assert UNSEEDED.unguessable_bytes(3) == b"xxx"
    finally:
        monkeypatch.undo()
        UNSEEDED.seed()


async def test_seeds_names_and_numbers_decide_each_source() -> None:
    loop = asyncio.get_running_loop()
    sources = [
        chance_for(seed, name, loop) for seed in (901, 902) for name in ("a", "b") for _ in "12"
    ]
    numbers = [drawn(each) for each in sources]
    assert len(set(numbers)) == 8
    assert numbers[0] == drawn(Chance("901/a/1"))
    assert chance_for(None, "a", loop) is UNSEEDED


def test_a_source_is_not_copied() -> None:
    with pytest.raises(TypeError, match="would repeat"):
        copy.copy(Chance("1"))


def test_broker_ids_repeat_by_seed_and_differ_on_one_loop() -> None:
    async def ids(seed: int) -> list[object]:
        async with Broker(seed=seed) as one, Broker(config=BrokerConfig(seed=seed)) as two:
            return [
                each for b in (one, two) for each in (b.cluster_id, b.create_topic("t").topic_id)
            ]

    first, again, other = (asyncio.run(ids(seed)) for seed in (1, 1, 2))
    assert first == again
    assert len({*first, *other}) == 8


async def test_an_id_in_use_is_not_given_to_another_topic() -> None:
    broker = Broker(seed=1)
    async with broker:
        broker.rng.seed(5)
        first = broker.create_topic("a").topic_id
        broker.rng.seed(5)
        assert broker.create_topic("b").topic_id != first


def test_scram_nonces_are_unguessable_unless_seeded() -> None:
    def nonce(arguments: ClientArguments, chance: Chance) -> bytes:
        return cast("Scram", arguments.mechanism(None, chance))._nonce(8)

    for config in (ConsumerConfig, ProducerConfig):
        arguments = config(
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="SCRAM-SHA-256",
            sasl_plain_username="u",
            sasl_plain_password="p",
        )
        assert nonce(arguments, Chance("1")) == Chance("1").randbytes(8)
        UNSEEDED.seed(1)
        seen = nonce(arguments, UNSEEDED)
        UNSEEDED.seed(1)
        assert nonce(arguments, UNSEEDED) != seen
        UNSEEDED.seed()


async def test_keys_of_a_broker_are_unguessable_unless_seeded() -> None:
    def token(**arguments: object) -> str:
        UNSEEDED.seed(1)
        try:
            broker = Broker(
                security_protocol="SASL_PLAINTEXT",
                sasl_mechanisms=["OAUTHBEARER"],
                clock=lambda: 1,
                **arguments,  # type: ignore[arg-type]
            )
            return broker.oauth_token("u")
        finally:
            UNSEEDED.seed()

    assert token() != token()
    assert token(rng=random.Random(1)) == token(rng=random.Random(1))
    assert len({token(seed=1), token(seed=1), token(seed=2)}) == 3  # numbered on one loop


async def test_seeded_clients_authenticate() -> None:
    async with (
        Broker(
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanisms=["SCRAM-SHA-256"],
            users={"u": "p"},
            seed=1,
        ) as broker,
        AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap_servers,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="SCRAM-SHA-256",
            sasl_plain_username="u",
            sasl_plain_password="p",
            seed=1,
        ) as producer,
    ):
        await producer.send_and_wait("t", b"v")


@pytest.mark.parametrize("client", [AIOKafkaConsumer, AIOKafkaProducer])
async def test_a_seed_is_a_number(client: type[object]) -> None:
    with pytest.raises(TypeError, match="seed must be a number"):
        client(seed="7")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="seed"):
        Broker(seed="7")  # type: ignore[arg-type]
