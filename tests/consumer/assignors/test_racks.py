"""Racks in the assignors (KIP-881): partitions near their owners, where that costs no balance."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aiokafka_lite.consumer.assignors import (
    AbstractPartitionAssignor,
    ConsumerProtocolMemberMetadata,
    RangePartitionAssignor,
)
from aiokafka_lite.consumer.assignors.cooperative_sticky import CooperativeStickyPartitionAssignor
from aiokafka_lite.consumer.assignors.sticky import (
    Claim,
    StickyPartitionAssignor,
    share_out,
)
from aiokafka_lite.structs import TopicPartition
from tests.support.cpu import CpuTime
from tests.support.for_each import for_each
from tests.support.java import JavaTools

RACKS: Final = ("r0", "r1", "r2")
STICKY_ONES: Final = (StickyPartitionAssignor, CooperativeStickyPartitionAssignor)
EVERY_ONE: Final = (RangePartitionAssignor, *STICKY_ONES)
Shares = dict[str, set[TopicPartition]]


class Spread:
    """A cluster that knows in which racks each partition has replicas."""

    def __init__(self, replicas: Mapping[str, Sequence[frozenset[str]]]) -> None:
        self.replicas = replicas

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(range(len(self.replicas[topic]))) if topic in self.replicas else None

    def replica_racks(self, topic: str) -> Mapping[int, frozenset[str]]:
        return dict(enumerate(self.replicas[topic]))

    @property
    def every_partition(self) -> set[TopicPartition]:
        return {TopicPartition(t, n) for t, each in self.replicas.items() for n in range(len(each))}


class Said(NamedTuple):
    """What a member says of itself."""

    rack: str | None
    topics: tuple[str, ...]
    instance_id: str | None = None


class Case(NamedTuple):
    """A cluster and a group."""

    replicas: dict[str, tuple[frozenset[str], ...]]
    members: dict[str, Said]

    @property
    def cluster(self) -> Spread:
        return Spread(self.replicas)

    def near(self, shares: Mapping[str, set[TopicPartition]]) -> int:
        """How many partitions have a replica in their owner's rack."""
        return sum(
            self.members[member].rack in self.replicas[tp.topic][tp.partition]
            for member, tps in shares.items()
            for tp in tps
        )

    def is_balanced(self, shares: Mapping[str, set[TopicPartition]]) -> bool:
        return not any(
            tp.topic in self.members[other].topics and len(shares[other]) <= len(tps) - 2
            for tps in shares.values()
            for tp in tps
            for other in shares
        )

    @property
    def metadata(self) -> dict[str, ConsumerProtocolMemberMetadata]:
        return {
            member: ConsumerProtocolMemberMetadata(
                3, said.topics, b"", group_instance_id=said.instance_id, rack_id=said.rack
            )
            for member, said in self.members.items()
        }

    def keep(self, held: Mapping[str, Claim]) -> Shares:
        """Share out by the sticky ones' rule where members have something."""
        answer = share_out(self.cluster, self.metadata, held)
        return {member: set(tps) for member, tps in answer.items()}

    def share_out(self, assignor: type[AbstractPartitionAssignor]) -> Shares:
        answer = assignor.assign(self.cluster, self.metadata)
        assert all(numbers for share in answer.values() for _, numbers in share.assignment)
        return {
            member: {TopicPartition(*tp) for tp in assignment.partitions()}
            for member, assignment in answer.items()
        }


some_racks = st.frozensets(st.sampled_from(RACKS), max_size=3)
replicas_of_topics = st.dictionaries(
    st.sampled_from("abc"), st.lists(some_racks, min_size=1, max_size=9).map(tuple), min_size=1
)
said_by_members = st.dictionaries(
    st.text("xyz", min_size=1, max_size=4),
    st.builds(
        Said,
        st.sampled_from((*RACKS, "elsewhere", None)),
        st.lists(st.sampled_from("abcd"), unique=True).map(tuple),
    ),
    min_size=1,
    max_size=7,
)
cases = st.builds(Case, replicas_of_topics, said_by_members)


def evenly(count: int, *names: str) -> dict[str, Said]:
    """Members that subscribe to "a", in racks by turns."""
    return {name: Said(RACKS[turn % count], ("a",)) for turn, name in enumerate(names)}


# --- What it brings ---------------------------------------------------------------------------
@pytest.mark.parametrize("assignor", EVERY_ONE)
def test_each_member_gets_the_partitions_of_its_rack(
    assignor: type[AbstractPartitionAssignor],
) -> None:
    replicas = tuple(frozenset({RACKS[n % 3]}) for n in range(9))
    case = Case({"a": replicas}, evenly(3, "one", "two", "three"))
    shares = case.share_out(assignor)
    assert case.near(shares) == 9
    assert {len(tps) for tps in shares.values()} == {3}


@pytest.mark.parametrize(
    ("replicas", "racks"),
    [
        pytest.param([set(RACKS)], RACKS, id="every partition in every rack"),
        pytest.param([{"r0"}, {"r1"}], (None,), id="no member in a rack"),
        pytest.param([{"r0"}, {"r1"}], ("elsewhere",), id="no member where partitions are"),
        pytest.param([set()], RACKS, id="no broker in a rack"),
    ],
)
@for_each(EVERY_ONE)
def test_racks_change_nothing_where_they_make_no_difference(
    assignor: type[AbstractPartitionAssignor],
    replicas: list[set[str]],
    racks: tuple[str | None, ...],
) -> None:
    spread = tuple(frozenset(replicas[n % len(replicas)]) for n in range(7))
    names = ("one", "two", "three")
    members = {name: Said(racks[n % len(racks)], ("a", "b")) for n, name in enumerate(names)}
    case = Case({"a": spread, "b": spread[:4]}, members)
    without = Case(
        {topic: (frozenset(),) * len(each) for topic, each in case.replicas.items()},
        {name: Said(None, said.topics) for name, said in members.items()},
    )
    assert case.share_out(assignor) == without.share_out(assignor)


def test_topics_that_are_cut_alike_stay_so_where_racks_allow_it() -> None:
    spread = tuple(frozenset({RACKS[n % 3]}) for n in range(6))
    members = {name: Said(RACKS[n], ("a", "b")) for n, name in enumerate(("one", "two", "three"))}
    case = Case({"a": spread, "b": spread}, members)
    shares = case.share_out(RangePartitionAssignor)
    for tps in shares.values():
        numbers = [{tp.partition for tp in tps if tp.topic == topic} for topic in "ab"]
        assert numbers[0] == numbers[1]
        assert len(numbers[0]) == 2
    assert case.near(shares) == 12


# --- What it never costs ----------------------------------------------------------------------
@pytest.mark.parametrize("assignor", EVERY_ONE)
@given(case=cases)
def test_every_partition_has_one_owner_that_subscribes_to_it(
    assignor: type[AbstractPartitionAssignor], case: Case
) -> None:
    shares = case.share_out(assignor)
    owners = Counter(tp for tps in shares.values() for tp in tps)
    wanted = {topic for said in case.members.values() for topic in said.topics}
    assert owners == Counter(tp for tp in case.cluster.every_partition if tp.topic in wanted)
    for member, tps in shares.items():
        assert {tp.topic for tp in tps} <= set(case.members[member].topics)


@given(case=cases)
def test_the_sticky_ones_stay_balanced(case: Case) -> None:
    assert case.is_balanced(case.share_out(StickyPartitionAssignor))


@given(case=cases)
def test_range_gives_as_many_as_without_racks(case: Case) -> None:
    without = case._replace(members={m: Said(None, s.topics) for m, s in case.members.items()})
    with_racks, plain = (c.share_out(RangePartitionAssignor) for c in (case, without))
    for topic in case.replicas:
        sizes = [
            sorted(sum(tp.topic == topic for tp in tps) for tps in shares.values())
            for shares in (with_racks, plain)
        ]
        assert sizes[0] == sizes[1]


class Group:
    """A group whose members keep what they have through rebalances, as cooperative ones do."""

    def __init__(self) -> None:
        self.has: Shares = {}
        self.generation = 0
        self.moved = 0

    def rebalance(self, case: Case) -> bool:
        """Share out once; whether another rebalance has to follow, as something was given back."""
        self.has = {member: self.has.get(member, set()) for member in case.members}
        members = {
            member: ConsumerProtocolMemberMetadata(
                3,
                said.topics,
                b"",
                owned_partitions=sorted(self.has[member]),
                generation=self.generation,
                rack_id=said.rack,
            )
            for member, said in case.members.items()
        }
        answer = CooperativeStickyPartitionAssignor.assign(case.cluster, members)
        self.generation += 1
        has_given_back = False
        for member, assignment in answer.items():
            now = {TopicPartition(*tp) for tp in assignment.partitions()}
            has_given_back |= not self.has[member] <= now
            self.moved += len(now - self.has[member])
            self.has[member] = now
        return has_given_back

    def settle(self, case: Case) -> int:
        """Rebalance until nothing is given back any more; return how often."""
        count = 1
        while self.rebalance(case):
            count += 1
            assert count < 4, "the group does not come to rest"
        return count


# A member is subscribed to nothing any more, and two others share out: what nobody had
# and what stayed changed places for ever.
NO_RACK: Final = frozenset[str]()
IN_R0: Final = frozenset({"r0"})
CHANGED_PLACES: Final = [
    Case({"a": (NO_RACK,)}, {"x": Said("r0", ("a",))}),
    Case(
        {"b": (NO_RACK, IN_R0, IN_R0, IN_R0, IN_R0), "a": (frozenset({"r0", "r1"}), NO_RACK)},
        {"x": Said("r0", ()), "y": Said("r2", ("a", "b")), "z": Said("r0", ("a", "b"))},
    ),
]


@given(history=st.lists(cases, min_size=1, max_size=4))
@example(history=CHANGED_PLACES)
def test_a_cooperative_group_comes_to_rest_and_stays_there(history: list[Case]) -> None:
    group = Group()
    for case in history:
        group.settle(case)
        assert case.is_balanced(group.has)
        before = {member: set(tps) for member, tps in group.has.items()}
        assert not group.rebalance(case)
        assert group.has == before


def test_what_nobody_has_goes_to_those_near_it_also_when_some_subscribe_to_nothing() -> None:
    """Otherwise it was far from its owner, and what stayed was given back for it, for ever."""
    racks = ["r0", "r0 r2", "", "", "r1", "r1", "", "r0", "r1", "r1", "r2", "r2", "r0", "r2"]
    members = {"o": None, "p": None, "u": "r1", "y": "r0", "z": None}
    others = {"r": "r2", "t": "r0", "w": "r1"}
    case = Case(
        {"c": tuple(frozenset(each.split()) for each in racks)},
        {
            **{member: Said(rack, ("c",)) for member, rack in members.items()},
            **{member: Said(rack, ()) for member, rack in others.items()},
        },
    )
    group = Group()
    numbers = {"o": (1, 2, 3), "p": (6, 9, 11), "u": (5, 8), "y": (7, 12), "z": (10, 13)}
    group.has = {m: {TopicPartition("c", n) for n in has} for m, has in numbers.items()}
    assert not group.rebalance(case)  # 0 and 4 are nobody's
    assert group.moved == 2
    assert case.is_balanced(group.has)
    assert {TopicPartition("c", 0)} <= group.has["y"]
    assert {TopicPartition("c", 4)} <= group.has["u"]


@given(case=cases)
def test_what_is_shared_out_badly_comes_near(case: Case) -> None:
    """What was assigned without a thought for racks ends as near as what was begun with one."""
    blind = case._replace(members={m: Said(None, s.topics) for m, s in case.members.items()})
    group = Group()
    group.settle(blind)
    before = case.near(group.has)
    group.settle(case)
    assert case.near(group.has) >= before


def test_counts_are_evened_out_again_after_a_partition_has_come_near() -> None:
    """The first member gives one to the second, and then takes one of the third."""
    members = {"m1": Said("r0", ("a", "b")), "m2": Said("r1", ("a",)), "m3": Said("r0", ("b",))}
    case = Case({"a": (frozenset({"r1"}),) * 2, "b": (frozenset({"r0"}),) * 4}, members)
    owned = {"m1": ("a0", "b0"), "m2": ("a1",), "m3": ("b1", "b2", "b3")}
    held = {
        member: Claim(1, tuple(TopicPartition(each[0], int(each[1])) for each in tps))
        for member, tps in owned.items()
    }
    shares = case.keep(held)
    assert {member: len(tps) for member, tps in shares.items()} == {"m1": 2, "m2": 2, "m3": 2}
    assert case.near(shares) == 6


def test_nothing_moves_for_racks_that_would_bring_nothing_near() -> None:
    """Two members of one rack share partitions of another: they stay where they are."""
    case = Case({"a": (frozenset({"r1"}),) * 5 + (frozenset({"r0"}),)}, evenly(1, "one", "two"))
    group = Group()
    group.settle(case)
    moved = group.moved
    group.settle(case)
    assert group.moved == moved == 6


def test_a_member_in_another_rack_takes_what_is_near_it_and_no_more_than_its_share() -> None:
    spread = tuple(frozenset({RACKS[n % 3]}) for n in range(12))
    group = Group()
    for count, near in ((1, 4), (2, 8), (3, 12)):
        case = Case({"a": spread}, evenly(3, *("one", "two", "three")[:count]))
        assert group.settle(case) <= 2
        assert {len(tps) for tps in group.has.values()} == {12 // count}
        assert case.near(group.has) == near
    # Twelve at first, then what the second and the third got.
    assert group.moved <= 12 + 6 + 4 + 2


@pytest.mark.few_rows(1)
@pytest.mark.parametrize("is_one_to_have_all", [False, True])
def test_a_hundred_thousand_partitions_come_near_a_hundred_members_within_two_seconds(
    *, is_one_to_have_all: bool
) -> None:
    """They have been shared out evenly without a thought for racks, or one has all."""
    names = [f"m{number:02}" for number in range(100)]
    racks = {name: f"r{turn % 10}" for turn, name in enumerate(names)}
    spread = tuple(frozenset({f"r{n // 100 % 10}"}) for n in range(100_000))
    case = Case({"a": spread}, {name: Said(racks[name], ("a",)) for name in names})
    every = [TopicPartition("a", n) for n in range(len(spread))]
    claims = {name: Claim(1, tuple(every[turn::100])) for turn, name in enumerate(names)}
    if is_one_to_have_all:
        claims = {**dict.fromkeys(names, Claim()), names[0]: Claim(1, tuple(every))}
    members = {
        name: ConsumerProtocolMemberMetadata(3, ("a",), b"", rack_id=racks[name]) for name in names
    }
    with CpuTime() as took:
        answer = share_out(case.cluster, members, claims)
    shares = {name: set(tps) for name, tps in answer.items()}
    assert {len(tps) for tps in shares.values()} == {1_000}
    assert case.near(shares) == len(spread)
    assert took.s < 2


# --- Java's ------------------------------------------------------------------------------------
PROBE = """
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.internals.*;
import org.apache.kafka.common.*;
public class Probe {
    // The target, before a cooperative assignor withholds what others have to give back first.
    static class Sticky extends AbstractStickyAssignor {
        public String name() { return "sticky"; }
        protected MemberData memberData(Subscription said) {
            return new MemberData(
                said.ownedPartitions(), Optional.of(said.generationId().orElse(-1)));
        }
    }
    public static void main(String[] arguments) {
        Scanner in = new Scanner(System.in);
        while (in.hasNextLine()) {
            String[] parts = in.nextLine().split("#", -1);
            Map<String, List<PartitionInfo>> topics = new HashMap<>();
            for (String topic : parts[0].split(";")) {
                String[] named = topic.split("=", -1);
                List<PartitionInfo> infos = new ArrayList<>();
                int number = 0;
                for (String racks : named[1].split(",", -1)) {
                    List<Node> nodes = new ArrayList<>();
                    nodes.add(new Node(0, "h", 1, null));
                    for (String rack : racks.split("[.]"))
                        if (!rack.isEmpty()) nodes.add(new Node(nodes.size(), "h", 1, rack));
                    Node[] replicas = nodes.toArray(new Node[0]);
                    infos.add(new PartitionInfo(
                        named[0], number++, replicas[0], replicas, replicas));
                }
                topics.put(named[0], infos);
            }
            Map<String, Subscription> members = new HashMap<>();
            for (String member : parts[1].split(";")) {
                String[] said = member.split(":", -1);
                List<String> names = said[2].isEmpty() ? List.of() : List.of(said[2].split(","));
                List<TopicPartition> owned = new ArrayList<>();
                for (String each : said[3].split(",")) if (!each.isEmpty())
                    owned.add(new TopicPartition(
                        each.substring(0, 1), Integer.parseInt(each.substring(1))));
                Subscription subscription = new Subscription(
                    names, null, owned, owned.isEmpty() ? -1 : 1,
                    said[1].isEmpty() ? Optional.empty() : Optional.of(said[1]));
                if (!said[4].isEmpty())
                    subscription.setGroupInstanceId(Optional.of(said[4]));
                members.put(said[0], subscription);
            }
            for (AbstractPartitionAssignor assignor : List.of(
                    new RangeAssignor(), new Sticky())) {
                // Those that nobody subscribes to are not asked for.
                Set<String> wanted = new HashSet<>();
                members.values().forEach(said -> wanted.addAll(said.topics()));
                Map<String, List<PartitionInfo>> asked = new HashMap<>(topics);
                asked.keySet().retainAll(wanted);
                StringBuilder line = new StringBuilder();
                new TreeMap<>(assignor.assignPartitions(asked, members)).forEach((member, tps) -> {
                    for (TopicPartition tp : tps)
                        line.append(member + ":" + tp.topic() + ":" + tp.partition() + " ");
                });
                System.out.println(line.toString().trim());
            }
        }
    }
}
"""


def drawn(rng: random.Random) -> Case:
    """A group as they are: few racks, replicas on some of them; some members are elsewhere."""
    racks = RACKS[: rng.randint(2, 3)]
    copies = rng.randint(1, 2)
    has_gaps = rng.random() < 0.2

    def spread() -> tuple[frozenset[str], ...]:
        return tuple(
            frozenset(() if has_gaps and rng.random() < 0.3 else rng.sample(racks, copies))
            for _ in range(rng.choice((1, 3, 4, 6, 6, 9, 12)))
        )

    topics = "abc"[: rng.randint(1, 3)]
    is_alike, are_static = rng.random() < 0.7, rng.random() < 0.2
    members = {
        f"m{n}": Said(
            rng.choice((*racks, *racks, *racks, "elsewhere", None)),
            # Those that subscribe to nothing may get something by Kafka's sticky assignor.
            tuple(topics) if is_alike else tuple(rng.sample(topics, rng.randint(1, len(topics)))),
            f"i{rng.randint(0, 9)}{n}" if are_static else None,
        )
        for n in range(rng.randint(1, 7))
    }
    return Case({topic: spread() for topic in topics}, members)


def held_in(case: Case, rng: random.Random) -> dict[str, Claim]:
    """What members have: nothing, or what they got without a thought for racks, one being new."""
    if rng.random() < 0.3:
        return dict.fromkeys(case.members, Claim())
    new = rng.choice((None, *case.members))
    before = {m: s._replace(rack=None) for m, s in case.members.items() if m != new}
    shares = case._replace(members=before).keep(dict.fromkeys(before, Claim()))
    return {member: Claim(1, tuple(sorted(shares.get(member, ())))) for member in case.members}


def line_of(case: Case, held: Mapping[str, Claim]) -> str:
    topics = ";".join(
        f"{topic}=" + ",".join(".".join(sorted(racks)) for racks in each)
        for topic, each in case.replicas.items()
    )
    members = ";".join(
        f"{name}:{said.rack or ''}:{','.join(said.topics)}"
        f":{','.join(f'{tp.topic}{tp.partition}' for tp in held[name].partitions)}"
        f":{said.instance_id or ''}"
        for name, said in case.members.items()
    )
    return f"{topics}#{members}"


def read(line: str, case: Case) -> Shares:
    shares: Shares = {member: set() for member in case.members}
    for each in line.split():
        member, topic, number = each.split(":")
        shares[member].add(TopicPartition(topic, int(number)))
    return shares


def test_groups_are_assigned_as_when_they_were_last_compared_with_kafkas_assignors() -> None:
    """The next test compares the same groups, and more of them, with Kafka's own assignors."""
    rng = random.Random(881)
    near, stay, by_range = 0, 0, 0
    for _ in range(40):
        case = drawn(rng)
        held = held_in(case, rng)
        shares = case.keep(held)
        assert case.is_balanced(shares)
        near += case.near(shares)
        stay += sum(len(shares[member] & set(held[member].partitions)) for member in held)
        each_range = sorted(
            (m, sorted(s)) for m, s in case.share_out(RangePartitionAssignor).items()
        )
        by_range = crc32(repr(each_range).encode(), by_range)
    assert (near, stay, by_range) == (276, 231, 2720666778)


@pytest.mark.java
async def test_range_is_javas_and_by_sticky_more_is_near_and_stays(
    java_tools: JavaTools, tmp_path: Path
) -> None:
    rng = random.Random(881)
    all_cases = [(case, held_in(case, rng)) for case in (drawn(rng) for _ in range(400))]
    source = tmp_path / "Probe.java"
    source.write_text(PROBE)
    stdin = "".join(line_of(*each) + "\n" for each in all_cases).encode()
    done = await java_tools.run(str(source), stdin=stdin)
    lines = done.stdout.splitlines()
    assert len(lines) == 2 * len(all_cases), done.stderr
    near: Counter[str] = Counter()
    stay: Counter[str] = Counter()
    for (case, held), by_range, by_sticky in zip(all_cases, lines[::2], lines[1::2], strict=True):
        assert case.share_out(RangePartitionAssignor) == read(by_range, case), line_of(case, held)
        shares = case.keep(held)
        assert case.is_balanced(shares)
        for whose, each in (("ours", shares), ("javas", read(by_sticky, case))):
            near[whose] += case.near(each)
            stay[whose] += sum(len(each[member] & set(held[member].partitions)) for member in held)
    assert near["ours"] >= near["javas"] > 0
    assert stay["ours"] >= stay["javas"] > 0
