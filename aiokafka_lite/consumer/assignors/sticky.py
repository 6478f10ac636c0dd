"""The sticky assignor: balanced shares, of which as much as possible stays where it was."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Final, NamedTuple

from aiokafka_lite.consumer.assignors.abstract import (
    AbstractPartitionAssignor,
    ClusterTopics,
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
    members_in_order,
)
from aiokafka_lite.errors import KafkaProtocolError
from aiokafka_lite.protocol.codec import decode, encode
from aiokafka_lite.protocol.messages.sticky_user_data import PreviousShare, StickyUserData
from aiokafka_lite.structs import TopicPartition

log = logging.getLogger(__name__)

NO_GENERATION: Final = -1


class Claim(NamedTuple):
    """What a member says it has, and of which generation of the group."""

    generation: int = NO_GENERATION
    partitions: tuple[TopicPartition, ...] = ()


class StickyPartitionAssignor(AbstractPartitionAssignor):
    """Keeps members' partitions with them, and moves only what balance asks for (KIP-54).

    Balanced means: the members' counts differ by one at most, or, where not everybody subscribes
    to everything, no member has a partition that a subscriber with two fewer could take over.
    Members tell the leader what they had and of which generation (KIP-341). Of two that claim a
    partition the one of the later generation keeps it, so that a member which slept through a
    rebalance takes nothing away from its successors.

    The user data is that of Kafka's ``StickyAssignor``: both may be in one group. An instance
    remembers the share of one member; the consumer makes its own.
    """

    name = "sticky"
    version = 0
    may_assign_in_thread = True

    def __init__(self) -> None:
        self._claim = Claim()

    @classmethod
    def assign(
        cls, cluster: ClusterTopics, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Keep what can be kept, give the rest to those with least, and even out."""
        claims = {member: read_claim(members[member].user_data) for member in members}
        return {
            member: ConsumerProtocolMemberAssignment(cls.version, by_topic(partitions), b"")
            for member, partitions in share_out(cluster, members, claims).items()
        }

    # aiokafka declares class methods; what a member had is its own, so these need an instance.
    def metadata(  # type: ignore[override]
        self, topics: Iterable[str]
    ) -> ConsumerProtocolMemberMetadata:
        """Return the topics, and what this member had when it last knew."""
        user_data = StickyUserData(
            previous_assignment=[
                PreviousShare(topic=topic, partitions=numbers)
                for topic, numbers in by_topic(self._claim.partitions)
            ],
            generation=self._claim.generation,
        )
        return ConsumerProtocolMemberMetadata(self.version, sorted(topics), encode(user_data, 1))

    def on_assignment(  # type: ignore[override]
        self, assignment: ConsumerProtocolMemberAssignment
    ) -> None:
        """Remember the share, to claim it in the next rebalance."""
        self._claim = self._claim._replace(partitions=tuple(assignment.partitions()))

    def on_generation_assignment(self, generation: int) -> None:
        """Remember the generation of the share."""
        self._claim = self._claim._replace(generation=generation)


def share_out(
    cluster: ClusterTopics,
    members: Mapping[str, ConsumerProtocolMemberMetadata],
    claims: Mapping[str, Claim],
) -> dict[str, list[TopicPartition]]:
    """Share all partitions out, in balance, and leave with members what they claim if possible."""
    sharing = _Sharing(cluster, members)
    sharing.keep(claims)
    sharing.give_the_rest()
    sharing.even_out()
    return sharing.shares()


def by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    """Return partitions in the shape of an assignment."""
    numbers: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        numbers.setdefault(tp.topic, []).append(tp.partition)
    return list(numbers.items())


def read_claim(user_data: bytes | None) -> Claim:
    """Decode what a member says it had; nothing, where that makes no sense."""
    if not user_data:
        return Claim()
    for version in (1, 0):  # version 0, of before KIP-341, has no generation
        try:
            said = decode(StickyUserData, version, user_data)
        except KafkaProtocolError:
            continue
        return Claim(
            said.generation,
            tuple(
                TopicPartition(share.topic, number)
                for share in said.previous_assignment
                for number in share.partitions
            ),
        )
    log.warning("a member sent unreadable sticky user data: what it had is not known")
    return Claim()


class _Audience:
    """The members that subscribe to a set of topics alike, and who of them has least."""

    def __init__(
        self,
        members: tuple[str, ...],
        rank: Mapping[str, int],
        untold: Mapping[str, dict[_Audience, None]],
    ) -> None:
        self.members = frozenset(members)
        self._rank = rank
        self._untold = untold
        # Each member has an entry that is at most its load. One that is too low is mended when met;
        # then it has to be told of the member's next loss.
        self._heap = [(0, rank[member], member) for member in members]
        heapq.heapify(self._heap)

    def expect(self, member: str, load: int) -> None:
        """Take note that a member may have so little."""
        heapq.heappush(self._heap, (load, self._rank[member], member))

    def least_loaded(self, loads: Mapping[str, int]) -> str:
        while True:
            load, rank, member = self._heap[0]
            if load == loads[member]:
                return member
            if load < loads[member]:
                heapq.heapreplace(self._heap, (loads[member], rank, member))
                self._untold[member][self] = None
            else:  # another entry says less
                heapq.heappop(self._heap)


class _Held:
    """A member's partitions of one audience: those it had, and those that are new to it."""

    def __init__(self) -> None:
        self.kept: list[TopicPartition] = []
        # Nobody's before, and of others before: by whom.
        self._fresh: list[TopicPartition] = []
        self._moved: dict[str, list[TopicPartition]] = {}

    def __bool__(self) -> bool:
        return bool(self.kept or self._fresh or self._moved)

    def __iter__(self) -> Iterator[TopicPartition]:
        return chain(self.kept, self._fresh, *self._moved.values())

    def add(self, tp: TopicPartition, owner_before: str | None) -> None:
        """Add a partition that the member did not have before."""
        if owner_before is None:
            self._fresh.append(tp)
        else:
            self._moved.setdefault(owner_before, []).append(tp)

    def take_for(self, taker: str) -> TopicPartition:
        """Take out what comes home to the taker, else what has moved anyway, else the last."""
        if taker not in self._moved:
            if self._fresh:
                return self._fresh.pop()
            if not self._moved:
                return self.kept.pop()
        home = taker if taker in self._moved else next(iter(self._moved))
        tps = self._moved[home]
        tp = tps.pop()
        if not tps:
            del self._moved[home]
        return tp


Choices = dict[str, list[tuple[int, int, _Audience]]]
"""For each donor a heap of its audiences, by what their least loaded members have at least."""


class _Sharing:
    """One share-out while it is made."""

    def __init__(
        self, cluster: ClusterTopics, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> None:
        self._order = members_in_order(members)
        rank = {member: turn for turn, member in enumerate(self._order)}
        subscribers: dict[str, list[str]] = {}
        for member in self._order:
            for topic in set(members[member].subscription):
                subscribers.setdefault(topic, []).append(member)
        self._loads = dict.fromkeys(self._order, 0)
        # All audiences expect each member to have so little or less, but for these.
        self._told = dict.fromkeys(self._order, 0)
        self._untold: dict[str, dict[_Audience, None]] = {member: {} for member in self._order}
        self._audiences: dict[str, _Audience] = {}
        self._audiences_of: dict[str, list[_Audience]] = {member: [] for member in self._order}
        # Of each topic the partitions that nobody has yet. Dicts keep the order.
        self._left: dict[str, dict[int, None]] = {}
        known: dict[tuple[str, ...], _Audience] = {}
        for topic in sorted(subscribers):
            partitions = cluster.partitions_for_topic(topic)
            if not partitions:
                log.warning("topic %s has no known partitions: nothing of it is assigned", topic)
                continue
            alike = tuple(subscribers[topic])
            if (audience := known.get(alike)) is None:
                audience = known[alike] = _Audience(alike, rank, self._untold)
                for member in alike:
                    self._audiences_of[member].append(audience)
            self._audiences[topic] = audience
            self._left[topic] = dict.fromkeys(sorted(partitions))
        self._held: dict[tuple[str, _Audience], _Held] = {}
        self._owner_before: dict[TopicPartition, str] = {}

    def shares(self) -> dict[str, list[TopicPartition]]:
        shares: dict[str, list[TopicPartition]] = {member: [] for member in self._order}
        for (member, _), held in self._held.items():
            shares[member] += held
        return shares

    def keep(self, claims: Mapping[str, Claim]) -> None:
        """Leave with each member what it had and still subscribes to; later generations win."""
        for member in sorted(self._order, key=lambda member: -claims[member].generation):
            for tp in claims[member].partitions:
                left = self._left.get(tp.topic, {})
                if tp.partition in left and member in self._audiences[tp.topic].members:
                    del left[tp.partition]
                    self._owner_before[tp] = member
                    self._give(tp, member)

    def give_the_rest(self) -> None:
        """Give what nobody has to those with least, first what few subscribe to."""

        def rank(topic: str) -> tuple[int, str]:
            return (len(self._audiences[topic].members), topic)

        # Topics are sorted, not partitions: no other thread runs while very many are compared.
        for topic in sorted(self._left, key=rank):
            audience = self._audiences[topic]
            for number in self._left[topic]:
                self._give(TopicPartition(topic, number), audience.least_loaded(self._loads))
        self._left.clear()

    def even_out(self) -> None:
        """Move partitions from those with most, as long as that makes counts more equal.

        Ends: each move takes at least 2 off the sum of the squares of all counts.
        """
        has_moved = True
        while has_moved:
            has_moved = False
            choices: Choices = {}
            donors = [(-self._loads[member], turn) for turn, member in enumerate(self._order)]
            heapq.heapify(donors)
            while donors:
                donor = self._order[donors[0][1]]
                if -donors[0][0] != self._loads[donor]:  # it was given something meanwhile
                    heapq.heapreplace(donors, (-self._loads[donor], donors[0][1]))
                elif self._relieve(donor, choices):
                    has_moved = True
                    heapq.heapreplace(donors, (-self._loads[donor], donors[0][1]))
                else:
                    heapq.heappop(donors)

    def _relieve(self, donor: str, choices: Choices) -> bool:
        """Move one partition of a member to the one with least that may take it, if that helps."""
        if donor not in choices:
            choices[donor] = [
                (0, turn, each) for turn, each in enumerate(self._audiences_of[donor])
            ]
        audiences = choices[donor]
        while audiences:
            expected, turn, audience = audiences[0]
            held = self._held.get((donor, audience))
            if not held:
                heapq.heappop(audiences)
                continue
            taker = audience.least_loaded(self._loads)
            if self._loads[taker] > expected:
                heapq.heapreplace(audiences, (self._loads[taker], turn, audience))
                continue
            if self._loads[donor] - self._loads[taker] < 2:
                return False
            tp = held.take_for(taker)
            self._give(tp, taker)
            self._lose_one(donor, least=self._loads[taker])
            return True
        return False

    def _lose_one(self, donor: str, *, least: int) -> None:
        """Count one partition less, and tell the audiences that do not expect that.

        They are told to expect less than that, not to be told each time.
        """
        self._loads[donor] -= 1
        load, untold = self._loads[donor], self._untold[donor]
        expected = (load + least) // 2
        if load < self._told[donor]:
            untold.update(dict.fromkeys(self._audiences_of[donor]))
            self._told[donor] = expected
        else:
            self._told[donor] = max(self._told[donor], expected)
        for audience in untold:
            audience.expect(donor, expected)
        untold.clear()

    def _give(self, tp: TopicPartition, member: str) -> None:
        key = (member, self._audiences[tp.topic])
        if (held := self._held.get(key)) is None:
            held = self._held[key] = _Held()
        owner_before = self._owner_before.get(tp)
        if owner_before == member:
            held.kept.append(tp)
        else:
            held.add(tp, owner_before)
        self._loads[member] += 1
