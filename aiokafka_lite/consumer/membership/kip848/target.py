"""How a member gets from what it holds to what it was given: one step at a time, without I/O.

The coordinator names topics by id. An id that metadata do not know yet (a topic that was created
after the join) stays in the target: it is looked at again with each new view, and is not said to be
owned before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from aiokafka_lite.consumer.membership.kip848.member import PartitionId, Target
from aiokafka_lite.structs import TopicPartition

Held = Mapping[PartitionId, TopicPartition]


class Reconciliation(NamedTuple):
    """What a member has to do to hold what it was given.

    Attributes:
        to_revoke: What it holds and was not given, or what is of deleted topics; it goes first.
        to_assign: What it was given and can take now.
        unknown: Ids of topics whose names are not known yet.
    """

    to_revoke: Held
    to_assign: Held
    unknown: frozenset[bytes]

    @property
    def is_empty(self) -> bool:
        """Whether the member holds exactly what it was given."""
        return not (self.to_revoke or self.to_assign or self.unknown)


def difference(
    target: Target | None,
    held: Held,
    names: Mapping[bytes, str],
    id_of: Callable[[str], bytes | None],
) -> Reconciliation:
    """Compare what a member was given with what it holds.

    Args:
        target: What it was given; None: nothing was said, so nothing changes. An empty one is an
            answer: everything goes.
        held: What it has taken and not given back yet.
        names: Topics' names by their ids.
        id_of: Returns the id of a topic, None if it is not known. What is held under a former id
            goes at once, whatever the coordinator has heard: the topic that has the name now may
            be another member's.
    """
    if target is None:
        return Reconciliation({}, {}, frozenset())
    to_revoke = {
        each: tp
        for each, tp in held.items()
        if each not in target or id_of(tp.topic) not in (each.topic_id, None)
    }
    held_by_name = set(held.values())
    to_assign: dict[PartitionId, TopicPartition] = {}
    unknown = set[bytes]()
    for each in sorted(target - held.keys()):
        if (name := names.get(each.topic_id)) is None:
            unknown.add(each.topic_id)
            continue
        tp = TopicPartition(name, each.number)
        # A topic that was made anew: what is held under its former id goes first.
        if tp not in held_by_name:
            to_assign[each] = tp
    return Reconciliation(to_revoke, to_assign, frozenset(unknown))
