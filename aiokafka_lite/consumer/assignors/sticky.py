"""The sticky assignor."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Final, NamedTuple

from aiokafka_lite.consumer.assignors.abstract import (
    NOWHERE,
    AbstractPartitionAssignor,
    ClusterTopics,
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
    Racks,
    assigned_numbers,
    by_topic,
    do_racks_matter,
    members_in_order,
    racks_of_members,
    racks_of_partitions,
    subscribers_of,
)
from aiokafka_lite.errors import KafkaProtocolError
from aiokafka_lite.protocol.codec import decode, encode
from aiokafka_lite.protocol.messages.group_members import StickyUserData
from aiokafka_lite.protocol.messages.group_members import TopicPartition as PreviousShare
from aiokafka_lite.structs import TopicPartition

log = logging.getLogger(__name__)

NO_GENERATION: Final = -1


class Claim(NamedTuple):
    """A member's former partitions and their generation, from its metadata."""

    generation: int = NO_GENERATION
    partitions: tuple[TopicPartition, ...] = ()


class StickyPartitionAssignor(AbstractPartitionAssignor):
    """Lets members keep their partitions, and moves only those needed for balance (KIP-54).

    Balanced means: the members' numbers of partitions differ by one at most. If subscriptions
    differ, it means: no member has a partition that a subscriber with two fewer could take. If two
    members claim a partition, the later generation wins (KIP-341).

    If members have a rack (`client_rack`), and replicas are not in all racks, an equally balanced
    assignment is chosen in which many partitions have a replica in their owner's rack (KIP-881). As
    in Kafka's own assignors, racks rank below balance and above few moves.

    The user data are those of Kafka's ``StickyAssignor``, so both may be in one group.
    """

    name = "sticky"
    version = 0
    may_assign_in_thread = True
    is_rack_aware = True

    def __init__(self) -> None:
        self._claim = Claim()

    @classmethod
    def assign(
        cls, cluster: ClusterTopics, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        claims = {member: read_claim(members[member].user_data) for member in members}
        return {
            member: ConsumerProtocolMemberAssignment(cls.version, by_topic(partitions), b"")
            for member, partitions in share_out(cluster, members, claims).items()
        }

    # Not class methods as in aiokafka, because each member has its own claim.
    def metadata(  # type: ignore[override]
        self, topics: Iterable[str]
    ) -> ConsumerProtocolMemberMetadata:
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
        self._claim = self._claim._replace(partitions=tuple(assignment.partitions()))

    def on_generation_assignment(self, generation: int) -> None:
        """Remember the assignment's generation."""
        self._claim = self._claim._replace(generation=generation)


def share_out(
    cluster: ClusterTopics,
    members: Mapping[str, ConsumerProtocolMemberMetadata],
    claims: Mapping[str, Claim],
) -> dict[str, list[TopicPartition]]:
    """Assign all partitions: balanced first, then near their owners, then where they were."""
    sharing = _Sharing(cluster, members)
    sharing.keep(claims)
    sharing.give_the_rest()
    sharing.even_out()
    while sharing.bring_home():
        sharing.even_out()
    return sharing.shares()


def read_claim(user_data: bytes | None) -> Claim:
    """Decode a member's claim; malformed user data is no claim."""
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
    log.warning(
        "the sticky assignor ignores the previous partitions of a member, because the user data "
        "that the member sent cannot be decoded"
    )
    return Claim()


class _Line:
    def __init__(
        self,
        members: Iterable[str],
        rank: Mapping[str, int],
        untold: Mapping[str, dict[_Line, None]],
    ) -> None:
        self.members = dict.fromkeys(members)
        self._rank = rank
        self._untold = untold
        # Each member has an entry that is at most its load. An entry that is too low is replaced
        # when it is found. The line is then told of the member's next loss (`_untold`).
        self._heap = [(0, rank[member], member) for member in self.members]
        heapq.heapify(self._heap)

    def expect(self, member: str, load: int) -> None:
        heapq.heappush(self._heap, (load, self._rank[member], member))

    def least_loaded(self, loads: Mapping[str, int]) -> str:
        while True:
            load, rank, member = self._heap[0]
            if load == loads[member]:
                return member
            if load < loads[member]:
                heapq.heapreplace(self._heap, (loads[member], rank, member))
                self._untold[member][self] = None
            else:  # the member has a lower entry
                heapq.heappop(self._heap)


class _Audience:
    """Partitions with the same subscribers and, if racks matter, the same racks of replicas."""

    def __init__(self, line: _Line, near_line: _Line | None, racks: Racks) -> None:
        self.members = line.members
        self.racks = racks
        # Members in a rack of the partitions, in order; empty if racks do not matter.
        self.near = near_line.members if near_line else {}
        self.line, self._near_line = line, near_line

    def least_loaded_near(self, loads: Mapping[str, int]) -> str | None:
        return self._near_line.least_loaded(loads) if self._near_line else None


class _Held:
    def __init__(self) -> None:
        self.kept: list[TopicPartition] = []
        # By the owner before. None: the partition had no owner.
        self._new: dict[str | None, list[TopicPartition]] = {}

    def __bool__(self) -> bool:
        return bool(self.kept or self._new)

    @property
    def has_new(self) -> bool:
        return bool(self._new)

    def __iter__(self) -> Iterator[TopicPartition]:
        return chain(self.kept, *self._new.values())

    def add(self, tp: TopicPartition, owner_before: str | None) -> None:
        self._new.setdefault(owner_before, []).append(tp)

    def take_for(self, taker: str) -> TopicPartition:
        """Remove a former partition of the taker, else a new one, else one of the member."""
        if not self._new:
            return self.kept.pop()
        home: str | None = taker
        if taker not in self._new:
            home = None if None in self._new else next(iter(self._new))
        tps = self._new[home]
        tp = tps.pop()
        if not tps:
            del self._new[home]
        return tp


# For each donor a heap of its audiences, by the least cost of a move to one of their members.
Choices = dict[str, list[tuple[int, int, _Audience]]]
# The audiences that each member may exchange, by rack; under None those far from the member.
Offers = dict[str, dict[str | None, list[_Audience]]]


class _Sharing:
    def __init__(
        self, cluster: ClusterTopics, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> None:
        self._order = members_in_order(members)
        rank = {member: turn for turn, member in enumerate(self._order)}
        subscribers = subscribers_of(members)
        self._loads = dict.fromkeys(self._order, 0)
        # The load that all lines expect of each member, at most, except the untold ones.
        self._told = dict.fromkeys(self._order, 0)
        self._untold: dict[str, dict[_Line, None]] = {member: {} for member in self._order}
        self._lines: dict[tuple[str, ...], _Line] = {}
        self._lines_of: dict[str, list[_Line]] = {member: [] for member in self._order}
        self._audiences_of: dict[str, list[_Audience]] = {member: [] for member in self._order}
        # Unassigned partitions by topic, in order.
        self._left: dict[str, dict[int, _Audience]] = {}
        # By member and audience.
        self._held: dict[str, dict[_Audience, _Held]] = {member: {} for member in self._order}
        self._owner_before: dict[TopicPartition, str] = {}
        self._at = racks_of_members(members)
        numbers = {
            topic: found
            for topic in sorted(subscribers)
            if (found := assigned_numbers(cluster, topic))
        }
        replicas: dict[str, dict[int, Racks]] = {}
        if any(self._at.values()):
            replicas = {
                topic: racks_of_partitions(cluster, topic, numbers[topic]) for topic in numbers
            }
        self._do_racks_matter = do_racks_matter(
            self._at.values(),
            chain.from_iterable(set(each.values()) for each in replicas.values()),
        )
        known: dict[tuple[tuple[str, ...], Racks], _Audience] = {}
        for topic in numbers:
            alike = tuple(subscribers[topic])
            racks_of = replicas[topic] if self._do_racks_matter else {}
            of_topic: dict[Racks, _Audience] = {}
            for racks in dict.fromkeys(racks_of.values()) or (NOWHERE,):
                if (audience := known.get((alike, racks))) is None:
                    audience = known[alike, racks] = self._audience(alike, rank, racks)
                of_topic[racks] = audience
            if racks_of:
                self._left[topic] = {number: of_topic[racks] for number, racks in racks_of.items()}
            else:
                self._left[topic] = dict.fromkeys(numbers[topic], of_topic[NOWHERE])

    def _audience(self, alike: tuple[str, ...], rank: Mapping[str, int], racks: Racks) -> _Audience:
        near = tuple(member for member in alike if self._at[member] in racks)
        audience = _Audience(
            self._line(alike, rank), self._line(near, rank) if near else None, racks
        )
        for member in alike:
            self._audiences_of[member].append(audience)
        return audience

    def _line(self, members: tuple[str, ...], rank: Mapping[str, int]) -> _Line:
        if (line := self._lines.get(members)) is None:
            line = self._lines[members] = _Line(members, rank, self._untold)
            for member in members:
                self._lines_of[member].append(line)
        return line

    def shares(self) -> dict[str, list[TopicPartition]]:
        return {
            member: list(chain.from_iterable(held_of.values()))
            for member, held_of in self._held.items()
        }

    def keep(self, claims: Mapping[str, Claim]) -> None:
        for member in sorted(self._order, key=lambda member: -claims[member].generation):
            for tp in claims[member].partitions:
                left = self._left.get(tp.topic, {})
                audience = left.get(tp.partition)
                if audience is not None and member in audience.members:
                    del left[tp.partition]
                    self._owner_before[tp] = member
                    self._give(tp, member, audience)

    def give_the_rest(self) -> None:
        """Assign the rest to the members with the fewest, near ones first up to a fair share."""
        if self._do_racks_matter:
            self._give_what_is_near()
        for topic, numbers in self._in_order():
            for number, audience in numbers:
                self._give(TopicPartition(topic, number), self._taker(audience), audience)
        self._left.clear()

    def _give_what_is_near(self) -> None:
        count = sum(self._loads.values()) + sum(map(len, self._left.values()))
        fair = -(-count // len(self._order))
        for topic, numbers in self._in_order():
            for number, audience in numbers:
                near = audience.least_loaded_near(self._loads)
                if near is not None and self._loads[near] < fair:
                    self._give(TopicPartition(topic, number), near, audience)
                    del self._left[topic][number]

    def _in_order(self) -> Iterator[tuple[str, Iterable[tuple[int, _Audience]]]]:
        """Yield unassigned partitions by topic: few subscribers first, then few near members."""
        ranked: dict[tuple[int, int, str], list[tuple[int, _Audience]]] = {}
        for topic, left in self._left.items():
            alike: dict[int, list[tuple[int, _Audience]]] = {}
            for number, audience in left.items():
                alike.setdefault(len(audience.near), []).append((number, audience))
            for near, numbers in alike.items():
                ranked[len(numbers[0][1].members), near, topic] = numbers
        for rank in sorted(ranked):
            yield rank[-1], ranked[rank]

    # --- Balance --------------------------------------------------------------------------
    def even_out(self) -> None:
        """Move partitions from the members with the most. Ends: the squares of loads decrease."""
        has_moved = True
        while has_moved:
            has_moved = False
            choices: Choices = {}
            donors = [(-self._loads[member], turn) for turn, member in enumerate(self._order)]
            heapq.heapify(donors)
            while donors:
                donor = self._order[donors[0][1]]
                if -donors[0][0] != self._loads[donor]:  # its load has changed
                    heapq.heapreplace(donors, (-self._loads[donor], donors[0][1]))
                elif self._relieve(donor, choices):
                    has_moved = True
                    heapq.heapreplace(donors, (-self._loads[donor], donors[0][1]))
                else:
                    heapq.heappop(donors)

    def _relieve(self, donor: str, choices: Choices) -> bool:
        """Move one of a member's partitions to the taker with the fewest, if that helps."""
        if donor not in choices:
            choices[donor] = [
                (0, turn, each) for turn, each in enumerate(self._audiences_of[donor])
            ]
        audiences = choices[donor]
        while audiences:
            expected, turn, audience = audiences[0]
            held = self._held[donor].get(audience)
            if not held:
                heapq.heappop(audiences)
                continue
            taker = self._taker(audience)
            cost = self._loads[taker]
            if self._do_racks_matter:
                # With equal balance, first near takers, then partitions that have moved anyway.
                gain = (taker in audience.near) - (donor in audience.near)
                cost = 6 * cost + 2 * (1 - gain) + (not held.has_new)
            if cost > expected:
                heapq.heapreplace(audiences, (cost, turn, audience))
                continue
            if self._loads[donor] - self._loads[taker] < 2:
                return False
            self._move(held, donor, taker, audience)
            return True
        return False

    def _taker(self, audience: _Audience) -> str:
        """Return the subscriber with the fewest partitions, if possible one near the partition."""
        taker = audience.line.least_loaded(self._loads)
        if self._do_racks_matter:
            near = audience.least_loaded_near(self._loads)
            if near is not None and self._loads[near] == self._loads[taker]:
                return near
        return taker

    # --- Racks ----------------------------------------------------------------------------
    def bring_home(self) -> bool:
        """Exchange far partitions, with equal loads. Terminates: each step brings one more near."""
        has_moved = False
        offers: Offers = {}
        for member in self._order if self._do_racks_matter else ():
            # First partitions that have moved anyway.
            held_of = self._held[member]
            for audience in sorted(held_of, key=lambda each: not held_of[each].has_new):
                if audience.near and member not in audience.near:
                    has_moved |= self._bring(audience, member, offers)
        return has_moved

    def _bring(self, audience: _Audience, owner: str, offers: Offers) -> bool:
        held = self._held[owner][audience]
        has_moved = False
        near = audience.least_loaded_near(self._loads)
        while held and near is not None and self._loads[near] < self._loads[owner]:
            self._move(held, owner, near, audience)
            has_moved = True
            near = audience.least_loaded_near(self._loads)
        # In exchange first for partitions near the owner, then for those near neither.
        for rack in dict.fromkeys((self._at[owner], None)):
            for taker in audience.near:
                if not held:
                    return has_moved
                offered = self._offers(taker, offers).get(rack, [])
                for turn in range(len(offered) - 1, -1, -1):
                    other = offered[turn]
                    if owner not in other.members:
                        continue
                    theirs = self._held[taker][other]
                    while held and theirs:
                        self._exchange(held, owner, audience, theirs, taker, other)
                        has_moved = True
                    if theirs:
                        break
                    del offered[turn]
        return has_moved

    def _offers(self, taker: str, offers: Offers) -> dict[str | None, list[_Audience]]:
        if (of_taker := offers.get(taker)) is None:
            of_taker = offers[taker] = {}
            for audience, held in self._held[taker].items():
                if held:
                    for rack in audience.racks:
                        of_taker.setdefault(rack, []).append(audience)
                    if taker not in audience.near:
                        of_taker.setdefault(None, []).append(audience)
        return of_taker

    # --- Steps ----------------------------------------------------------------------------
    def _move(self, held: _Held, donor: str, taker: str, audience: _Audience) -> None:
        self._give(held.take_for(taker), taker, audience)
        self._lose_one(donor, least=self._loads[taker])

    def _exchange(
        self,
        held: _Held,
        owner: str,
        audience: _Audience,
        theirs: _Held,
        taker: str,
        other: _Audience,
    ) -> None:
        tp, theirs_tp = held.take_for(taker), theirs.take_for(owner)
        self._loads[owner] -= 1
        self._loads[taker] -= 1
        self._give(tp, taker, audience)
        self._give(theirs_tp, owner, other)

    def _lose_one(self, donor: str, *, least: int) -> None:
        """Count one partition less, and inform the lines that expect a higher load."""
        self._loads[donor] -= 1
        load, untold = self._loads[donor], self._untold[donor]
        expected = (load + least) // 2
        if load < self._told[donor]:
            untold.update(dict.fromkeys(self._lines_of[donor]))
            self._told[donor] = expected
        else:
            self._told[donor] = max(self._told[donor], expected)
        for line in untold:
            line.expect(donor, expected)
        untold.clear()

    def _give(self, tp: TopicPartition, member: str, audience: _Audience) -> None:
        held_of = self._held[member]
        if (held := held_of.get(audience)) is None:
            held = held_of[audience] = _Held()
        owner_before = self._owner_before.get(tp)
        if owner_before == member:
            held.kept.append(tp)
        else:
            held.add(tp, owner_before)
        self._loads[member] += 1
