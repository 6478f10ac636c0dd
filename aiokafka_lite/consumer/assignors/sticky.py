"""The sticky assignor: balanced shares, of which as much as possible stays where it was."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Mapping
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

    def __init__(self, members: tuple[str, ...], rank: Mapping[str, int]) -> None:
        self.members = frozenset(members)
        self._rank = rank
        # Entries may be out of date: too low ones are mended when met, and for a load that went
        # down a new one is pushed.
        self._heap = [(0, rank[member], member) for member in members]
        heapq.heapify(self._heap)

    def load_fell(self, member: str, load: int) -> None:
        heapq.heappush(self._heap, (load, self._rank[member], member))

    def least_loaded(self, loads: Mapping[str, int]) -> str:
        while True:
            load, rank, member = self._heap[0]
            if load == loads[member]:
                return member
            if load < loads[member]:
                heapq.heapreplace(self._heap, (loads[member], rank, member))
            else:  # a newer entry says less
                heapq.heappop(self._heap)


class _Held(NamedTuple):
    """A member's partitions of one audience: had before, and new to it. Dicts keep the order."""

    kept: dict[TopicPartition, None]
    new: dict[TopicPartition, None]


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
        self._audiences: dict[str, _Audience] = {}
        self._audiences_of: dict[str, list[_Audience]] = {member: [] for member in self._order}
        self._left: dict[TopicPartition, None] = {}
        known: dict[tuple[str, ...], _Audience] = {}
        for topic in sorted(subscribers):
            partitions = cluster.partitions_for_topic(topic)
            if not partitions:
                log.warning("topic %s has no known partitions: nothing of it is assigned", topic)
                continue
            alike = tuple(subscribers[topic])
            if (audience := known.get(alike)) is None:
                audience = known[alike] = _Audience(alike, rank)
                for member in alike:
                    self._audiences_of[member].append(audience)
            self._audiences[topic] = audience
            self._left.update(dict.fromkeys(TopicPartition(topic, n) for n in sorted(partitions)))
        self._held: dict[tuple[str, _Audience], _Held] = {}
        self._owner_before: dict[TopicPartition, str] = {}

    def shares(self) -> dict[str, list[TopicPartition]]:
        shares: dict[str, list[TopicPartition]] = {member: [] for member in self._order}
        for (member, _), held in self._held.items():
            shares[member] += [*held.kept, *held.new]
        return shares

    def keep(self, claims: Mapping[str, Claim]) -> None:
        """Leave with each member what it had and still subscribes to; later generations win."""
        for member in sorted(self._order, key=lambda member: -claims[member].generation):
            for tp in claims[member].partitions:
                if tp in self._left and member in self._audiences[tp.topic].members:
                    del self._left[tp]
                    self._owner_before[tp] = member
                    self._give(tp, member)

    def give_the_rest(self) -> None:
        """Give what nobody has to those with least, first what few subscribe to."""
        for tp in sorted(self._left, key=lambda tp: (len(self._audiences[tp.topic].members), tp)):
            self._give(tp, self._audiences[tp.topic].least_loaded(self._loads))
        self._left.clear()

    def even_out(self) -> None:
        """Move partitions from those with most, as long as that makes counts more equal.

        Ends: each move takes at least 2 off the sum of the squares of all counts.
        """
        has_moved = True
        while has_moved:
            has_moved = False
            donors = [(-self._loads[member], turn) for turn, member in enumerate(self._order)]
            heapq.heapify(donors)
            while donors:
                donor = self._order[donors[0][1]]
                if -donors[0][0] != self._loads[donor]:  # it was given something meanwhile
                    heapq.heapreplace(donors, (-self._loads[donor], donors[0][1]))
                elif self._relieve(donor):
                    has_moved = True
                    heapq.heapreplace(donors, (-self._loads[donor], donors[0][1]))
                else:
                    heapq.heappop(donors)

    def _relieve(self, donor: str) -> bool:
        """Move one partition of a member to the one with least that may take it, if that helps."""
        best: tuple[int, str, _Audience] | None = None
        for audience in self._audiences_of[donor]:
            held = self._held.get((donor, audience))
            if held is None or not (held.kept or held.new):
                continue
            taker = audience.least_loaded(self._loads)
            if best is None or self._loads[taker] < best[0]:
                best = (self._loads[taker], taker, audience)
        if best is None or self._loads[donor] - best[0] < 2:
            return False
        _, taker, audience = best
        held = self._held[donor, audience]
        tp = self._to_move(held, taker)
        (held.new if tp in held.new else held.kept).pop(tp)
        self._loads[donor] -= 1
        for each in self._audiences_of[donor]:
            each.load_fell(donor, self._loads[donor])
        self._give(tp, taker)
        return True

    def _to_move(self, held: _Held, taker: str) -> TopicPartition:
        """Choose what goes: what comes home by it, else what has moved anyway, else the last."""
        if held.new:
            home = (tp for tp in held.new if self._owner_before.get(tp) == taker)
            return next(home, next(reversed(held.new)))
        return next(reversed(held.kept))

    def _give(self, tp: TopicPartition, member: str) -> None:
        key = (member, self._audiences[tp.topic])
        if (held := self._held.get(key)) is None:
            held = self._held[key] = _Held({}, {})
        (held.kept if self._owner_before.get(tp) == member else held.new)[tp] = None
        self._loads[member] += 1
