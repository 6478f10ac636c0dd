"""The stages of a consumer: the table of moves, who moves, and what is told of it."""

from __future__ import annotations

import ast
import asyncio
import itertools
from pathlib import Path

import pytest

from aiokafka_lite import AIOKafkaConsumer, consumer
from aiokafka_lite.consumer.assignment.subscription import SubscriptionState
from aiokafka_lite.consumer.life import MOVES, OVER, WITH_PARTS, Life, Stage
from aiokafka_lite.errors import ConsumerStoppedError, IllegalStateError, KafkaConnectionError
from tests.support.cluster import KafkaHandle

PACKAGE = Path(consumer.__file__).parent


def path_to(stage: Stage) -> list[Stage]:
    """Return the shortest way from NEW to a stage."""
    ways = [[Stage.NEW]]
    while ways:
        way = ways.pop(0)
        if way[-1] is stage:
            return way[1:]
        ways += [[*way, each] for each in sorted(MOVES[way[-1]], key=str) if each not in way]
    raise LookupError(stage)


def life_in(stage: Stage) -> tuple[Life, SubscriptionState]:
    state = SubscriptionState()
    life = Life(state.gate)
    for each in path_to(stage):
        life.enter(each)
    return life, state


def test_the_table_has_every_stage() -> None:
    assert MOVES.keys() == set(Stage)
    assert not WITH_PARTS & OVER


@pytest.mark.parametrize(("stage", "following"), [*itertools.product(Stage, repeat=2)])
def test_only_moves_of_the_table_are_made(stage: Stage, following: Stage) -> None:
    life, _ = life_in(stage)
    if following in MOVES[stage]:
        life.enter(following)
        assert life.stage is following
    else:
        with pytest.raises(AssertionError, match=f"from {stage.name} to {following.name}"):
            life.enter(following)
        assert life.stage is stage


@pytest.mark.parametrize("stage", Stage)
def test_gets_raise_what_fits_the_stage(stage: Stage) -> None:
    life, state = life_in(stage)
    if stage in WITH_PARTS:
        state.gate.check()
        return
    with pytest.raises(ConsumerStoppedError if stage in OVER else IllegalStateError):
        state.gate.check()
    assert life.is_over == (stage in OVER)


def test_one_module_moves() -> None:
    calls = {
        str(file.relative_to(PACKAGE))
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("enter", "_enter")
        and any("Stage." in ast.unparse(argument) for argument in node.args)
    }
    assert calls == {"life.py"}


async def test_the_repr_says_the_stage(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    made = AIOKafkaConsumer(topic, bootstrap_servers=kafka.bootstrap_servers, client_id="me")
    assert repr(made) == "<AIOKafkaConsumer of 'me' in group None, not started>"
    starting = asyncio.ensure_future(made.start())
    await asyncio.sleep(0)
    assert repr(made).endswith(", starting>")
    await starting
    assert repr(made).endswith(", running>")
    stopping = asyncio.ensure_future(made.stop())
    await asyncio.sleep(0)
    assert repr(made).endswith(", stopping>")
    await stopping
    assert repr(made).endswith(", stopped>")


async def test_a_start_that_failed_leaves_it_new() -> None:
    made = AIOKafkaConsumer("t", bootstrap_servers="localhost:1", request_timeout_ms=500)
    for _ in range(2):
        with pytest.raises(KafkaConnectionError):
            await made.start()
        assert "not started" in repr(made)
    assert "start() failed" in made.health().reasons[0]
    await made.stop()
    assert "start() had failed" in made.health().reasons[0]
