"""When an actor of a real world dies."""

from __future__ import annotations

import asyncio

from tests.model.world import RealWorld
from tests.support.waiting import until


def test_an_actor_that_blocks_its_loop_dies_when_its_loop_goes_on() -> None:
    world = RealWorld()
    happened: list[str] = []

    async def act() -> None:
        world.block(0.2)
        happened.append("acts")
        await asyncio.sleep(5)

    async def conduct() -> None:
        actor = world.start("actor", act)
        await until(lambda: actor.is_blocked)
        assert world.kill(actor, lambda: happened.append("dies"))
        assert world.kill(actor, lambda: happened.append("dies again"))
        happened.append("is killed")
        await until(lambda: actor.is_done)

    world.run(conduct)
    assert happened == ["is killed", "acts", "dies"]


def test_the_death_of_an_actor_that_has_ended_is_told_nobody() -> None:
    world = RealWorld()
    told: list[str] = []

    async def act() -> None:
        pass

    async def conduct() -> None:
        actor = world.start("actor", act)
        await until(lambda: actor.is_done)
        world.kill(actor, lambda: told.append("dies"))

    world.run(conduct)
    assert not told
