"""What a seed decides before its run: the order of callbacks, and the schedule of faults."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final


class Order(enum.Enum):
    """Which of the ready callbacks runs next."""

    FIFO = "fifo"
    """The first, as asyncio promises."""
    NEARLY = "nearly"
    """Nearly always the first."""
    ANY = "any"
    """Any of them."""
    PCT = "pct"
    """Priorities of tasks, which change a few times (Burckhardt et al., ASPLOS 2010)."""


@dataclass(frozen=True)
class Fault:
    """A fault of the schedule.

    Attributes:
        at_s: When it begins.
        lasts_s: How long it lasts.
        name: What happens: a key of `WEIGHTS`.
        target: To which node or member, or which partition: a number that each fault reads its way.
        detail: Which variant of the fault.
    """

    at_s: float
    lasts_s: float
    name: str
    target: int
    detail: float

    def text(self) -> str:
        return (
            f"{self.at_s:7.2f} s  {self.name:<18} for {self.lasts_s:5.2f} s, "
            f"target {self.target}, detail {self.detail:.2f}"
        )


# Faults and how often they are drawn.
WEIGHTS: Final = {
    "crash": 4,
    "power cut": 3,
    "shutdown": 2,
    "hang": 3,
    "partition": 4,
    "one-way cut": 3,
    "half-close": 2,
    "reset": 4,
    "slow link": 2,
    "pieces": 2,
    "lost answers": 4,
    "lost requests": 2,
    "refusals": 3,
    "leader moves": 4,
    "coordinator moves": 3,
    "throttling": 2,
    "clock skew": 1,
    "retention": 1,
    "truncation": 1,
    "recreated": 1,
    "member killed": 4,
    "member stops": 3,
    "member joins": 2,
    "loop blocked": 3,
    "session expires": 2,
}
# Any of these may end a record that was acknowledged, or move positions.
RARE: Final = ("retention", "truncation", "recreated")


def draw_faults(
    rng: random.Random,
    count: int,
    end_s: float,
    weights: Mapping[str, int],
    *,
    is_dense: bool = False,
) -> tuple[Fault, ...]:
    """Return faults of these names, in the order of their times.

    `is_dense`: half of them begin soon after another one, so that they meet.
    """
    faults: list[Fault] = []
    for _ in range(count):
        at_s = rng.uniform(1.0, end_s - 1.0)
        if is_dense and faults and rng.random() < 0.5:
            at_s = min(faults[-1].at_s + rng.uniform(0.0, 1.5), end_s - 1.0)
        name = rng.choices([*weights], [*weights.values()])[0]
        lasts_s = min(rng.choice((0.3, 2.0, 8.0, 15.0)) * rng.uniform(0.3, 1.0), end_s - at_s)
        faults.append(
            Fault(round(at_s, 3), round(lasts_s, 3), name, rng.randrange(12), rng.random())
        )
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def shrunk(
    faults: tuple[Fault, ...], fails: Callable[[tuple[Fault, ...]], bool]
) -> tuple[Fault, ...]:
    """Return some of the faults, with which a run fails as well."""
    best, size = faults, max(1, len(faults) // 2)
    while size:
        start = 0
        while start < len(best):
            fewer = best[:start] + best[start + size :]
            if fails(fewer):
                best = fewer
            else:
                start += size
        size //= 2
    return best
