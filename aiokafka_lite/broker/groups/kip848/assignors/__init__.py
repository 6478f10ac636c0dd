"""The assignors that the coordinator offers to members of KIP-848: `uniform` and `range`.

Each is a function of the group's members, what they subscribe to, and what they had (the sticky
ones look at that); no state is kept between calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiokafka_lite.broker.groups.kip848.assignors.range import assign_ranges
from aiokafka_lite.broker.groups.kip848.assignors.spec import (
    Assignment,
    Assignor,
    GroupSpec,
    MemberSpec,
)
from aiokafka_lite.broker.groups.kip848.assignors.uniform import assign_uniformly

__all__ = ["ASSIGNORS", "DEFAULT_ASSIGNOR", "Assignment", "Assignor", "GroupSpec", "MemberSpec"]

DEFAULT_ASSIGNOR: Final = "uniform"
# In Kafka's order, which error messages show.
ASSIGNORS: Final[Mapping[str, Assignor]] = {
    DEFAULT_ASSIGNOR: assign_uniformly,
    "range": assign_ranges,
}
