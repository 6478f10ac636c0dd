"""The assignors `uniform` and `range`: balanced, sticky, and of every partition once."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from aiokafka_lite.broker.groups.kip848.assignors import ASSIGNORS, GroupSpec, MemberSpec
from aiokafka_lite.broker.groups.modern.group import Assignment

TOPICS = [number.to_bytes(16, "big") for number in range(4)]


def spec(
    counts: dict[bytes, int],
    subscriptions: dict[str, frozenset[bytes]],
    assigned: dict[str, Assignment] | None = None,
) -> GroupSpec:
    members = {
        name: MemberSpec(topics, (assigned or {}).get(name, {}))
        for name, topics in subscriptions.items()
    }
    return GroupSpec(members, counts)


counts_of_topics = st.fixed_dictionaries({topic: st.integers(1, 12) for topic in TOPICS})
names = st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True)
subscriptions = st.dictionaries(
    st.sampled_from("abcdefgh"), st.frozensets(st.sampled_from(TOPICS)), min_size=1
)


def owners(assigned: dict[str, Assignment]) -> Counter[tuple[bytes, int]]:
    return Counter(
        (topic, partition)
        for held in assigned.values()
        for topic, partitions in held.items()
        for partition in partitions
    )


def size(held: Assignment) -> int:
    return sum(map(len, held.values()))


@given(counts_of_topics, subscriptions, subscriptions, st.sampled_from(sorted(ASSIGNORS)))
def test_every_partition_goes_to_one_of_its_subscribers(
    counts: dict[bytes, int],
    before: dict[str, frozenset[bytes]],
    after: dict[str, frozenset[bytes]],
    name: str,
) -> None:
    assign = ASSIGNORS[name]
    first = assign(spec(counts, before))
    second = assign(spec(counts, after, first))
    subscribed = frozenset().union(*after.values())
    assert owners(second) == Counter(
        (topic, partition) for topic in subscribed for partition in range(counts[topic])
    )
    assert all(second[member].keys() <= topics for member, topics in after.items())
    assert second.keys() == after.keys()


@given(counts_of_topics, names, names)
def test_uniform_moves_no_more_than_the_balance_needs(
    counts: dict[bytes, int], before: list[str], after: list[str]
) -> None:
    every = frozenset(TOPICS)
    assign = ASSIGNORS["uniform"]
    first = assign(spec(counts, dict.fromkeys(before, every)))
    second = assign(spec(counts, dict.fromkeys(after, every), first))
    sizes = [size(held) for held in second.values()]
    assert max(sizes) - min(sizes) <= 1
    for member in set(before) & set(after):
        lost = owners({member: first[member]}) - owners({member: second[member]})
        gained = owners({member: second[member]}) - owners({member: first[member]})
        assert not (lost and gained), "it was given others for its own"
    assert assign(spec(counts, dict.fromkeys(after, every), second)) == second


@given(counts_of_topics, subscriptions)
def test_uniform_cannot_be_made_more_equal_by_moving_one(
    counts: dict[bytes, int], after: dict[str, frozenset[bytes]]
) -> None:
    assigned = ASSIGNORS["uniform"](spec(counts, after))
    for giver, held in assigned.items():
        for topic in held:
            for taker, topics in after.items():
                if topic in topics:
                    assert size(assigned[giver]) - size(assigned[taker]) <= 1


def test_members_that_get_no_partition_of_a_topic_have_nothing_of_it() -> None:
    every = frozenset(TOPICS[:1])
    for assign in ASSIGNORS.values():
        assigned = assign(spec({TOPICS[0]: 1}, dict.fromkeys("ab", every)))
        assert assigned == {"a": {TOPICS[0]: {0}}, "b": {}}


def test_free_partitions_go_to_the_least_loaded_subscriber_in_turn() -> None:
    first, second = TOPICS[:2]
    counts = {first: 4, second: 2}
    subscribed = {"a": frozenset(TOPICS[:2]), "b": frozenset(TOPICS[:1])}
    assigned = ASSIGNORS["uniform"](spec(counts, subscribed, {"a": {second: frozenset({0, 1})}}))
    assert assigned == {"a": {first: {3}, second: {0, 1}}, "b": {first: {0, 1, 2}}}
    assigned = ASSIGNORS["uniform"](spec({first: 4, second: 1}, subscribed))
    assert assigned == {"a": {first: {0, 2}, second: {0}}, "b": {first: {1, 3}}}


def test_range_gives_the_same_partitions_of_each_topic_to_the_same_member() -> None:
    counts = {TOPICS[0]: 3, TOPICS[1]: 3}
    both = frozenset(counts)
    members = {
        "z": MemberSpec(both, instance_id="1"),
        "b": MemberSpec(both),
        "a": MemberSpec(both),
    }
    assigned = ASSIGNORS["range"](GroupSpec(members, counts))
    assert assigned == {
        "z": dict.fromkeys(both, frozenset({0})),
        "a": dict.fromkeys(both, frozenset({1})),
        "b": dict.fromkeys(both, frozenset({2})),
    }
