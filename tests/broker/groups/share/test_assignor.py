"""The assignor `simple`: every partition has members, members have about as many, and keep them."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from aiokafka_lite.broker.groups.modern.group import Assignment
from aiokafka_lite.broker.groups.share.assignor import ShareMemberSpec, assign

TOPICS = [number.to_bytes(16, "big") for number in range(3)]
topics = st.frozensets(st.sampled_from(TOPICS))
partitions = st.dictionaries(st.sampled_from(TOPICS), st.frozensets(st.integers(0, 5)))
names = st.sampled_from("abcdefgh")


def holders(assigned: dict[str, Assignment]) -> Counter[tuple[bytes, int]]:
    return Counter(
        (topic_id, partition)
        for held in assigned.values()
        for topic_id, found in held.items()
        for partition in found
    )


def size(held: Assignment) -> int:
    return sum(map(len, held.values()))


@given(
    st.dictionaries(names, topics, min_size=1),
    partitions,
    st.dictionaries(names, partitions),
)
def test_subscribed_partitions_are_assigned_to_subscribers_only(
    subscriptions: dict[str, frozenset[bytes]],
    existing: dict[bytes, frozenset[int]],
    before: dict[str, dict[bytes, frozenset[int]]],
) -> None:
    members = {
        name: ShareMemberSpec(wanted, before.get(name, {}))
        for name, wanted in subscriptions.items()
    }
    assigned = assign(members, existing)
    assert assigned.keys() == members.keys()
    for name, held in assigned.items():
        assert held.keys() <= subscriptions[name]
        assert all(held[topic_id] <= existing[topic_id] for topic_id in held)
    wanted = frozenset[bytes]().union(*subscriptions.values())
    assert holders(assigned).keys() == {
        (topic_id, partition)
        for topic_id in wanted & existing.keys()
        for partition in existing[topic_id]
    }


@given(st.integers(1, 12), st.integers(1, 8), st.integers(1, 12))
def test_equal_members_have_about_as_many_partitions_and_keep_them(
    member_count: int, partition_count: int, later_count: int
) -> None:
    existing = {TOPICS[0]: range(partition_count)}
    wanted = frozenset(TOPICS[:1])
    members = {f"m{number}": ShareMemberSpec(wanted, {}) for number in range(member_count)}
    first = assign(members, existing)
    sizes = [size(held) for held in first.values()]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1 or member_count > partition_count
    if member_count <= partition_count:
        assert set(holders(first).values()) == {1}
    again = {name: ShareMemberSpec(wanted, held) for name, held in first.items()}
    assert assign(again, existing) == first
    later = {
        f"m{number}": again.get(f"m{number}", ShareMemberSpec(wanted, {}))
        for number in range(later_count)
    }
    if later_count <= member_count <= partition_count:
        for name, held in assign(later, existing).items():
            assert held[TOPICS[0]] >= first[name][TOPICS[0]]


def test_different_subscriptions_are_balanced_by_topic() -> None:
    one, two = TOPICS[:2]
    members = {
        "a": ShareMemberSpec({one}, {}),
        "b": ShareMemberSpec({one, two}, {one: frozenset({2})}),
    }
    assigned = assign(members, {one: range(3), two: range(2)})
    assert assigned["b"] == {one: frozenset({0, 2}), two: frozenset({0, 1})}
    assert assigned["a"] == {one: frozenset({1})}
