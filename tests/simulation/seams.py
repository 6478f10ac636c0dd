"""Which features of plans meet in one seed, and how often: bugs lie between two features.

A pair that no seed draws is not tested. A pair that cannot meet is one of two values of one axis,
or a habit of ways that do not have it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from tests.simulation.plan import (
    ALL_WEIGHTS,
    BY_TASKS,
    HABITS,
    LISTENERS,
    PROTOCOLS,
    SECONDS,
    SHARED,
    WAYS,
    Plan,
)

Feature: TypeAlias = tuple[str, str]
"""The axis, and which of its values."""
Pair: TypeAlias = tuple[Feature, Feature]

AXES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "way": WAYS,
        "protocol": PROTOCOLS,
        "habit": ("", *HABITS),
        "second topic": SECONDS,
        "listener": LISTENERS,
        "tasks": ("one", "several"),
        "members": ("dynamic", "static"),
        "buffer": ("large", "small"),
        "racks": ("no", "yes"),
        "logs": ("kept", "compacted"),
        "reader": ("no", "yes"),
        "producer": ("plain", "idempotent", "transactional"),
        "fault": tuple(ALL_WEIGHTS),
    }
)
# A plan may have several values of these.
OF_MANY: Final = frozenset({"producer", "fault"})


def features(plan: Plan) -> set[Feature]:
    """Return the features that a plan has."""
    return {
        ("way", plan.way),
        ("protocol", plan.protocol),
        ("habit", plan.habit),
        ("second topic", plan.second),
        ("listener", plan.listener),
        ("tasks", "several" if plan.tasks > 1 else "one"),
        ("members", "static" if plan.static else "dynamic"),
        ("buffer", "large" if plan.buffer_bytes is None else "small"),
        ("racks", "yes" if plan.has_racks else "no"),
        ("logs", "compacted" if plan.is_compacted else "kept"),
        ("reader", "yes" if plan.has_reader else "no"),
        *(("producer", kind) for kind in plan.producers),
        *(("fault", fault.name) for fault in plan.faults),
    }


def _may_meet(one: Feature, other: Feature) -> bool:
    if one[0] == other[0]:
        return one[0] in OF_MANY
    both = dict((one, other))
    way, habit = both.get("way"), both.get("habit")
    if way is not None and habit:
        return way in HABITS[habit]
    if both.get("tasks") == "several":
        can_way = way is None or way in BY_TASKS
        return can_way and (not habit or habit in SHARED)
    if habit == "subscribes to less":
        return both.get("second topic") in (None, "named")
    return both.get("fault") != "compaction" or both.get("logs") != "kept"


def pairs() -> list[Pair]:
    """Return all pairs of features that can meet."""
    every = [(axis, value) for axis, values in AXES.items() for value in values]
    return [pair for pair in itertools.combinations(every, 2) if _may_meet(*pair)]


def meetings(plans: Iterable[Plan]) -> Counter[Pair]:
    """Count in how many plans each pair meets."""
    counts: Counter[Pair] = Counter(dict.fromkeys(pairs(), 0))
    for plan in plans:
        counts.update(pair for pair in itertools.permutations(features(plan), 2) if pair in counts)
    return counts


def table(counts: Counter[Pair], plan_count: int, most: int = 40) -> str:
    """Return the pairs that meet least, with their share of the seeds."""
    rarest = sorted(counts.items(), key=lambda item: item[1])[:most]
    lines = [f"{len(counts)} pairs, {plan_count} seeds; the rarest:"]
    for ((axis, value), (other, other_value)), count in rarest:
        share = f"{100 * count / plan_count:.2f} %"
        lines.append(f"{share:>8}  {axis} {value or 'none'}, {other} {other_value or 'none'}")
    return "\n".join(lines)
