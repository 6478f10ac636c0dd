"""Move a consumer while the broker holds its fetch back, and wait for the first record of there.

Nothing comes of the partitions that it goes on with, so a client that has to wait for its long poll
waits for what is left of it: up to `fetch.wait.max.ms`. A move begins at a random moment of that,
the same for all clients. One after another is made, each to the same record.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterable, Iterator
from typing import Final

from benchmarks.contestants.moves import Handed, Mover, open_mover
from benchmarks.measure import Measurement, Move, RunError, Workload

LONG_POLL_S: Final = 0.5
"""How long a broker holds a fetch back, by the defaults of all clients."""
WARM_UP: Final = 2
_SEED: Final = 0


async def measure(subject: str, workload: Workload) -> Measurement:
    """Measure `workload.passes` moves of the kind `workload.move`, each up to its first record.

    Raises:
        RunError: Something else came than the one record that a move is to.
    """
    firsts_s: list[float] = []
    async with open_mover(subject, workload) as mover:
        await _wait(mover, workload.settle_s)
        for wait_s in waits(WARM_UP + workload.passes):
            _prepare(mover, workload.move)
            await _wait(mover, wait_s)
            began_s = time.perf_counter()
            _make(mover, workload.move)
            handed = await mover.get(workload.wait_s)
            firsts_s.append(time.perf_counter() - began_s)
            if [*handed] != [mover.last]:
                raise RunError(f"after a move came {_said(handed)}, expected {_said([mover.last])}")
    del firsts_s[:WARM_UP]
    figures = {
        "first_p50_ms": 1e3 * statistics.median(firsts_s),
        "first_max_ms": 1e3 * max(firsts_s),
    }
    return Measurement(mover.version, figures, len(firsts_s))


def waits(count: int) -> Iterator[float]:
    """Yield how long to wait before each move: a long poll, and a random part of another."""
    rng = random.Random(_SEED)
    for _ in range(count):
        yield LONG_POLL_S * (1 + rng.random())


async def _wait(mover: Mover, seconds: float) -> None:
    """Wait in one get, in which nothing may come: all was read to its end, or is not read."""
    handed = await mover.get(seconds)
    if handed:
        raise RunError(f"before a move came {_said(handed)}, expected nothing")


def _said(handed: Iterable[Handed]) -> str:
    return ", ".join(f"offset {offset} of {partition}" for partition, offset in handed) or "nothing"


def _prepare(mover: Mover, move: Move) -> None:
    if move == "resume":
        mover.pause()
        mover.seek()
    elif move == "assign":
        mover.unassign()


def _make(mover: Mover, move: Move) -> None:
    {"seek": mover.seek, "resume": mover.resume, "assign": mover.assign}[move]()
