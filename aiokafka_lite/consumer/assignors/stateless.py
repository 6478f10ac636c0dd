"""The range and the round-robin assignor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from aiokafka_lite.consumer.assignors.abstract import (
    ClusterTopics,
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
    StatelessAssignor,
    assigned_numbers,
    do_racks_matter,
    members_in_order,
    racks_of_members,
    racks_of_partitions,
    subscribers_of,
)


class RoundRobinPartitionAssignor(StatelessAssignor):
    """Assigns the partitions of all topics, in order, to the members in turn.

    A member that does not subscribe to the next partition's topic is skipped. Two members, topics
    ``a`` and ``b`` with 3 partitions each: the first member has a0 a2 b1, the second a1 b0 b2.
    """

    name = "roundrobin"
    version = 0
    may_assign_in_thread = True

    @classmethod
    def assign(
        cls, cluster: ClusterTopics, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        order = members_in_order(members)
        topics_of = {member: set(members[member].subscription) for member in members}
        shares: dict[str, dict[str, list[int]]] = {member: {} for member in members}
        turn = 0
        for topic in sorted(set().union(*topics_of.values())):
            for partition in assigned_numbers(cluster, topic):
                # Terminates, because a member subscribes to the topic.
                while topic not in topics_of[order[turn % len(order)]]:
                    turn += 1
                shares[order[turn % len(order)]].setdefault(topic, []).append(partition)
                turn += 1
        return {
            member: ConsumerProtocolMemberAssignment(cls.version, sorted(share.items()), b"")
            for member, share in shares.items()
        }


# The assignment of each member.
Shares = dict[str, list[tuple[str, list[int]]]]


class RangePartitionAssignor(StatelessAssignor):
    """Assigns each subscriber of a topic a range of consecutive partitions.

    With P partitions and M subscribers, each has P // M, and the first P % M one more. So a member
    has the same partition numbers of topics with equal numbers of partitions and equal subscribers.
    Two members, topics ``a`` and ``b`` with 3 partitions each: the first member has a0 a1 b0 b1,
    the second a2 b2.

    If members have a rack (`client_rack`), and replicas are not in all racks, each member is first
    assigned partitions with a replica in its own rack, up to the size of its share (KIP-881, as
    Kafka's ``RangeAssignor``). A share may then have gaps.
    """

    name = "range"
    version = 0
    may_assign_in_thread = True
    is_rack_aware = True

    @classmethod
    def assign(
        cls, cluster: ClusterTopics, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        shares: Shares = {member: [] for member in members}
        subscribers = subscribers_of(members)
        at = racks_of_members(members)
        cuts = [
            _Cut(topic, numbers, subscribers[topic], at, cluster)
            for topic in sorted(subscribers)
            if (numbers := assigned_numbers(cluster, topic))
        ]
        if any(cut.do_racks_matter for cut in cuts):
            _give_what_is_near(cuts)
        for cut in cuts:
            cut.finish(shares)
        return {
            member: ConsumerProtocolMemberAssignment(cls.version, share, b"")
            for member, share in shares.items()
        }


class _Cut:
    def __init__(
        self,
        topic: str,
        numbers: list[int],
        members: Sequence[str],
        at: Mapping[str, str | None],
        cluster: ClusterTopics,
    ) -> None:
        self.topic = topic
        self.members = tuple(members)
        self.numbers = numbers
        self._at = at
        are_named = any(map(at.get, members))
        self._replicas = racks_of_partitions(cluster, topic, numbers) if are_named else {}
        self.do_racks_matter = do_racks_matter(map(at.get, members), self._replicas.values())
        self._size, self._longer = divmod(len(numbers), len(members))
        self._left = numbers
        self._given: dict[str, list[int]] = {}

    def room(self, member: str) -> int:
        most = self._size + (self._longer > 0)
        return max(0, most - len(self._given.get(member, ())))

    def is_near(self, member: str, number: int) -> bool:
        rack = self._at[member]
        return rack is None or rack in self._replicas[number]

    def give(self, member: str, numbers: Iterable[int]) -> None:
        given = self._given.setdefault(member, [])
        given += numbers
        if len(given) > self._size:
            self._longer -= 1

    def drop_given(self) -> None:
        gone = {number for numbers in self._given.values() for number in numbers}
        self._left = [number for number in self.numbers if number not in gone]

    def give_what_is_near(self) -> None:
        """Assign members, in order, the partitions near them, as far as they have room."""
        for member in self.members:
            near = (number for number in self._left if self.is_near(member, number))
            if given := list(islice(near, self.room(member))):
                self.give(member, given)
                self.drop_given()

    def finish(self, shares: Shares) -> None:
        start = 0
        for member in self.members:
            if run := self._left[start : start + self.room(member)]:
                start += len(run)
                self.give(member, run)
            if given := self._given.get(member):
                shares[member].append((self.topic, sorted(given)))


def _give_what_is_near(cuts: Iterable[_Cut]) -> None:
    """Assign members the partitions near them, with topics that are divided alike together."""
    alike: dict[tuple[tuple[str, ...], int], list[_Cut]] = {}
    for cut in cuts:
        alike.setdefault((cut.members, len(cut.numbers)), []).append(cut)
    for (members, count), together in alike.items():
        if len(together) > 1:
            _give_together(together, members, count)
        elif together[0].do_racks_matter:
            together[0].give_what_is_near()


def _give_together(cuts: Sequence[_Cut], order: Sequence[str], count: int) -> None:
    """Assign each partition number of such topics to the first member near all of them."""
    members = dict.fromkeys(order)
    for turn in range(count):
        for member in members:
            if all(cut.is_near(member, cut.numbers[turn]) and cut.room(member) for cut in cuts):
                for cut in cuts:
                    cut.give(member, [cut.numbers[turn]])
                if not any(cut.room(member) for cut in cuts):
                    del members[member]
                break
    for cut in cuts:
        cut.drop_given()
