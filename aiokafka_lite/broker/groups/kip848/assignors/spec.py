"""What an assignor is told, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

# Partitions by topic id.
Assignment: TypeAlias = Mapping[bytes, frozenset[int]]


@dataclass(frozen=True)
class MemberSpec:
    """One member as an assignor sees it.

    Attributes:
        topic_ids: The existing topics that it subscribes to.
        assigned: What the target assignment gave it so far.
    """

    topic_ids: frozenset[bytes]
    assigned: Assignment = field(default_factory=dict)
    instance_id: str | None = None


@dataclass(frozen=True)
class GroupSpec:
    """A group as an assignor sees it: at least one member, and the sizes of their topics."""

    members: Mapping[str, MemberSpec]
    partition_counts: Mapping[bytes, int]

    @property
    def is_homogeneous(self) -> bool:
        """Whether all members subscribe to the same topics."""
        subscriptions = iter(self.members.values())
        first = next(subscriptions).topic_ids
        return all(member.topic_ids == first for member in subscriptions)

    @property
    def topic_ids(self) -> list[bytes]:
        """The topics that anybody subscribes to, in an order that does not vary."""
        return sorted(frozenset().union(*(m.topic_ids for m in self.members.values())))


Assignor: TypeAlias = Callable[[GroupSpec], dict[str, Assignment]]
