"""The server-side assignors of KIP-848 groups: `uniform` and `range`, functions without state."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from aiokafka_lite.broker.groups.modern.group import Assignment

ROUNDS: Final = 16
DEFAULT_ASSIGNOR: Final = "uniform"


@dataclass(frozen=True)
class MemberSpec:
    """One member. `assigned` is its part of the previous target assignment."""

    topic_ids: frozenset[bytes]
    assigned: Assignment = field(default_factory=dict)
    instance_id: str | None = None


@dataclass(frozen=True)
class GroupSpec:
    """A group's members, at least one, and the partition counts of their topics."""

    members: Mapping[str, MemberSpec]
    partition_counts: Mapping[bytes, int]

    @property
    def is_homogeneous(self) -> bool:
        subscriptions = iter(self.members.values())
        first = next(subscriptions).topic_ids
        return all(member.topic_ids == first for member in subscriptions)

    @property
    def topic_ids(self) -> list[bytes]:
        return sorted(frozenset().union(*(m.topic_ids for m in self.members.values())))


Assignor: TypeAlias = Callable[[GroupSpec], dict[str, Assignment]]


def assign_ranges(group: GroupSpec) -> dict[str, Assignment]:
    """Assign each topic in contiguous ranges to its subscribers (Java: RangeAssignor).

    The order of subscribers is the same for all topics, which are thus co-partitioned: static
    members by instance id, then the others by member id.
    """
    assigned: dict[str, dict[bytes, frozenset[int]]] = {name: {} for name in group.members}
    members = sorted(group.members, key=lambda member_id: _place(group, member_id))
    for topic_id in group.topic_ids:
        subscribers = [name for name in members if topic_id in group.members[name].topic_ids]
        size, longer = divmod(group.partition_counts[topic_id], len(subscribers))
        start = 0
        for index, member_id in enumerate(subscribers):
            end = start + size + (index < longer)
            if start < end:
                assigned[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return dict(assigned)


def _place(group: GroupSpec, member_id: str) -> tuple[bool, str]:
    instance_id = group.members[member_id].instance_id
    return (instance_id is None, instance_id if instance_id is not None else member_id)


def assign_uniformly(group: GroupSpec) -> dict[str, Assignment]:
    """Balance partition counts, and keep previous assignments (Java: UniformAssignor).

    If all members subscribe to the same topics, each member has a quota. Otherwise, unowned
    partitions are assigned to the topic's least loaded subscriber. Then each topic's partitions
    move from the most to the least loaded subscriber, until no move helps, for at most `ROUNDS`
    rounds.
    """
    mixed = _Assigning(group)
    if group.is_homogeneous:
        mixed.keep_quotas()
        mixed.fill_up()
    else:
        mixed.deal_out()
        mixed.balance()
    return mixed.result()


class _Assigning:
    def __init__(self, group: GroupSpec) -> None:
        self._members = list(group.members)
        self._group = group
        self._subscribers: dict[bytes, list[str]] = {topic_id: [] for topic_id in group.topic_ids}
        for member_id, member in group.members.items():
            for topic_id in sorted(member.topic_ids):
                self._subscribers[topic_id].append(member_id)
        self._owners: dict[bytes, list[str | None]] = {
            topic_id: [None] * group.partition_counts[topic_id] for topic_id in self._subscribers
        }
        self._load = dict.fromkeys(self._members, 0)
        for member_id, member in group.members.items():
            for topic_id in sorted(member.topic_ids & member.assigned.keys()):
                for partition in sorted(member.assigned[topic_id]):
                    # Two members may have it while a static member is being replaced.
                    if self._owners[topic_id][partition] is None:
                        self._give(topic_id, partition, member_id)

    def result(self) -> dict[str, Assignment]:
        assigned: dict[str, dict[bytes, set[int]]] = {name: {} for name in self._members}
        for topic_id, owners in self._owners.items():
            for partition, owner in enumerate(owners):
                if owner is not None:
                    assigned[owner].setdefault(topic_id, set()).add(partition)
        return {
            member_id: {topic_id: frozenset(found) for topic_id, found in topics.items()}
            for member_id, topics in assigned.items()
        }

    # -- the same subscriptions ----------------------------------------------------------------

    def keep_quotas(self) -> None:
        """Take partitions above the quotas. The most loaded members get the larger quotas."""
        total = sum(len(owners) for owners in self._owners.values())
        quota, larger = divmod(total, len(self._members))
        self._quotas = dict.fromkeys(self._members, quota)
        places = {member_id: place for place, member_id in enumerate(self._members)}
        by_load = sorted(self._members, key=lambda m: (-self._load[m], places[m]))
        for member_id in by_load[:larger]:
            self._quotas[member_id] += 1
        for topic_id, owners in self._owners.items():
            for partition in reversed(range(len(owners))):
                owner = owners[partition]
                if owner is not None and self._load[owner] > self._quotas[owner]:
                    self._take(topic_id, partition)

    def fill_up(self) -> None:
        unassigned = self._unassigned()
        for member_id in self._members:
            while self._load[member_id] < self._quotas[member_id]:
                topic_id, partition = next(unassigned)
                self._give(topic_id, partition, member_id)

    # -- different subscriptions ---------------------------------------------------------------

    def deal_out(self) -> None:
        for topic_id in self._hardest_first():
            loads = [
                (self._load[member_id], place, member_id)
                for place, member_id in enumerate(self._by_load(topic_id))
            ]  # in order, so they are a heap
            for partition, owner in enumerate(self._owners[topic_id]):
                if owner is None:
                    load, place, member_id = loads[0]
                    self._give(topic_id, partition, member_id)
                    heapq.heapreplace(loads, (load + 1, place, member_id))

    def balance(self) -> None:
        topic_ids = self._hardest_first()
        for _ in range(ROUNDS):
            before = dict(self._load)
            for topic_id in topic_ids:
                self._balance_topic(topic_id)
            if self._load == before:
                return

    def _balance_topic(self, topic_id: bytes) -> None:
        owned: dict[str, list[int]] = {}
        for partition, owner in enumerate(self._owners[topic_id]):
            if owner is not None:
                owned.setdefault(owner, []).append(partition)
        subscribers = self._by_load(topic_id)
        while True:
            donors = [member_id for member_id in subscribers if owned.get(member_id)]
            most = max(donors, key=self._load.__getitem__)
            least = min(subscribers, key=self._load.__getitem__)
            if self._load[most] - self._load[least] <= 1:
                return
            partition = owned[most].pop()
            self._take(topic_id, partition)
            self._give(topic_id, partition, least)
            owned.setdefault(least, []).append(partition)

    def _hardest_first(self) -> list[bytes]:
        """Return topics by partitions per subscriber, descending, then by subscriber count."""

        def key(topic_id: bytes) -> tuple[float, int, bytes]:
            count = len(self._subscribers[topic_id])
            return (-len(self._owners[topic_id]) / count, count, topic_id)

        return sorted(self._subscribers, key=key)

    # -- small parts ---------------------------------------------------------------------------

    def _by_load(self, topic_id: bytes) -> Sequence[str]:
        return sorted(self._subscribers[topic_id], key=self._load.__getitem__)

    def _unassigned(self) -> Iterator[tuple[bytes, int]]:
        for topic_id, owners in self._owners.items():
            for partition, owner in enumerate(owners):
                if owner is None:
                    yield topic_id, partition

    def _give(self, topic_id: bytes, partition: int, member_id: str) -> None:
        self._owners[topic_id][partition] = member_id
        self._load[member_id] += 1

    def _take(self, topic_id: bytes, partition: int) -> None:
        owner = self._owners[topic_id][partition]
        if owner is not None:
            self._load[owner] -= 1
        self._owners[topic_id][partition] = None


# In Kafka's order, which error messages show.
ASSIGNORS: Final[Mapping[str, Assignor]] = {
    DEFAULT_ASSIGNOR: assign_uniformly,
    "range": assign_ranges,
}
