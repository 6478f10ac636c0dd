"""Ways through the stages of a client."""

from __future__ import annotations

from aiokafka_lite.client.life import MOVES, Stage


def path_to(stage: Stage) -> list[Stage]:
    """Return the shortest way from NEW to a stage."""
    ways = [[Stage.NEW]]
    while ways:
        way = ways.pop(0)
        if way[-1] is stage:
            return way[1:]
        ways += [[*way, each] for each in sorted(MOVES[way[-1]], key=str) if each not in way]
    raise LookupError(stage)
