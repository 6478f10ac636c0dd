"""The next step from the held partitions to the assigned ones, without I/O.

The coordinator uses topic ids. One that is missing from the metadata stays in the target, is looked
up in each new view, and is not reported as owned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from aiokafka_lite.consumer.membership.kip848.member import PartitionId, Target
from aiokafka_lite.structs import TopicPartition

Held = Mapping[PartitionId, TopicPartition]


class Reconciliation(NamedTuple):
    """The steps that are left to hold the target.

    Attributes:
        to_revoke: Not in the target, or of deleted topics; revoked first.
        to_assign: In the target, with known names.
        unknown: Topic ids without a name.
    """

    to_revoke: Held
    to_assign: Held
    unknown: frozenset[bytes]

    @property
    def is_empty(self) -> bool:
        """Whether the member holds its target."""
        return not (self.to_revoke or self.to_assign or self.unknown)


def difference(
    target: Target | None,
    held: Held,
    names: Mapping[bytes, str],
    id_of: Callable[[str], bytes | None],
) -> Reconciliation:
    """Compare a member's target with the held partitions.

    Args:
        target: The assignment; None: unknown, so there are no steps.
        held: Assigned and not revoked yet.
        names: Topic names by id.
        id_of: Returns a topic's id, if known. Partitions held under a former id are revoked at
            once: those of the new topic may be another member's.
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
        # Partitions held under a recreated topic's former id are revoked first.
        if tp not in held_by_name:
            to_assign[each] = tp
    return Reconciliation(to_revoke, to_assign, frozenset(unknown))
