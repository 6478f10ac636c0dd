"""When a broker's own jobs run."""

from __future__ import annotations

import asyncio

import pytest

from aiokafka_lite.broker.maintenance import Chore, Maintenance
from aiokafka_lite.protocol.source import Steps

pytestmark = pytest.mark.virtual_time


async def test_jobs_run_at_their_intervals_and_soon_after_the_start() -> None:
    loop = asyncio.get_running_loop()
    runs: list[tuple[str, float]] = []

    def job(name: str, interval_s: float) -> Chore:
        def steps() -> Steps[None]:
            runs.append((name, loop.time()))
            yield

        return Chore(interval_s, steps)

    await asyncio.sleep(1_000)
    maintenance = Maintenance([job("often", 20.0), job("seldom", 100.0)])
    running = asyncio.ensure_future(maintenance.run())
    await asyncio.sleep(50)
    await maintenance.run_once()
    assert runs[-2:] == [("often", 1_050.0), ("seldom", 1_050.0)]
    await asyncio.sleep(100)
    running.cancel()
    often = [at for name, at in runs if name == "often" and at != 1_050]
    assert often == [1_020.0, 1_040.0, 1_060.0, 1_080.0, 1_100.0, 1_120.0, 1_140.0]
    assert [at for name, at in runs if name == "seldom"] == [1_030.0, 1_050.0, 1_130.0]
    await Maintenance([]).run()
