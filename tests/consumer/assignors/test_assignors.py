"""Assignors: every partition once, fair shares, and the answers of aiokafka and kafka-python."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping
from types import SimpleNamespace

import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as TheirRange
from aiokafka.coordinator.assignors.roundrobin import (
    RoundRobinPartitionAssignor as TheirRoundRobin,
)
from hypothesis import given
from hypothesis import strategies as st

from aiokafka_lite.consumer.assignors import (
    AbstractPartitionAssignor,
    ConsumerProtocolMemberMetadata,
    RangePartitionAssignor,
    RoundRobinPartitionAssignor,
)
from aiokafka_lite.consumer.assignors.cooperative_sticky import (
    CooperativeStickyPartitionAssignor,
    read_owned,
)
from aiokafka_lite.consumer.assignors.sticky import Claim, StickyPartitionAssignor
from aiokafka_lite.structs import TopicPartition
from tests.consumer.assignors.groups import Topics, group_subscriptions, member_ids, topic_counts
from tests.support.for_each import for_each

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # kafka-python reads its resources in a deprecated way
    from kafka.coordinator.assignors.range import RangePartitionAssignor as PythonRange
    from kafka.coordinator.assignors.roundrobin import (
        RoundRobinPartitionAssignor as PythonRoundRobin,
    )

Subscriptions = Mapping[str, list[str]]
Shares = dict[str, set[TopicPartition]]

OURS = [RangePartitionAssignor, RoundRobinPartitionAssignor]


def ours(
    assignor: type[AbstractPartitionAssignor],
    counts: Mapping[str, int],
    subscriptions: Subscriptions,
    instance_ids: Mapping[str, str] | None = None,
) -> Shares:
    members = {
        member: ConsumerProtocolMemberMetadata(0, topics, b"", (instance_ids or {}).get(member))
        for member, topics in subscriptions.items()
    }
    answer = assignor.assign(Topics(counts), members)
    assert all(numbers for share in answer.values() for _, numbers in share.assignment)
    given_away = {member: assignment.partitions() for member, assignment in answer.items()}
    assert all(len(tps) == len(set(tps)) for tps in given_away.values())
    return {member: {TopicPartition(*tp) for tp in tps} for member, tps in given_away.items()}


def aiokafkas(
    assignor: type[TheirRange], counts: Mapping[str, int], subscriptions: Subscriptions
) -> Shares:
    members = {
        member: SimpleNamespace(subscription=topics) for member, topics in subscriptions.items()
    }
    answer = assignor.assign(Topics(counts), members)
    return {
        member: {TopicPartition(*tp) for tp in assignment.partitions()}
        for member, assignment in answer.items()
    }


def kafka_pythons(
    assignor: type[PythonRange], counts: Mapping[str, int], subscriptions: Subscriptions
) -> Shares:
    members = [
        SimpleNamespace(
            member_id=member, group_instance_id=None, metadata=SimpleNamespace(topics=topics)
        )
        for member, topics in subscriptions.items()
    ]
    answer = assignor.assign(Topics(counts), members)
    return {
        member: {TopicPartition(*tp) for tp in assignment.partitions()}
        for member, assignment in answer.items()
    }


@pytest.mark.parametrize("assignor", OURS)
@given(counts=topic_counts, subscriptions=group_subscriptions)
def test_every_subscribed_partition_is_given_once_to_a_subscriber(
    assignor: type[AbstractPartitionAssignor],
    counts: dict[str, int],
    subscriptions: dict[str, list[str]],
) -> None:
    shares = ours(assignor, counts, subscriptions)

    assert shares.keys() == subscriptions.keys()
    owners = Counter(tp for tps in shares.values() for tp in tps)
    wanted = {topic for topics in subscriptions.values() for topic in topics if topic in counts}
    assert owners == {
        TopicPartition(topic, number): 1 for topic in wanted for number in range(counts[topic])
    }
    for member, tps in shares.items():
        assert {tp.topic for tp in tps} <= set(subscriptions[member])


@given(counts=topic_counts, members=st.lists(member_ids, unique=True, min_size=1, max_size=7))
def test_roundrobin_counts_differ_by_one_at_most(
    counts: dict[str, int], members: list[str]
) -> None:
    subscriptions = {member: list(counts) for member in members}

    shares = ours(RoundRobinPartitionAssignor, counts, subscriptions)

    sizes = [len(tps) for tps in shares.values()]
    assert max(sizes) - min(sizes) <= 1


@given(counts=topic_counts, subscriptions=group_subscriptions)
def test_range_gives_each_subscriber_of_a_topic_a_fair_run(
    counts: dict[str, int], subscriptions: dict[str, list[str]]
) -> None:
    shares = ours(RangePartitionAssignor, counts, subscriptions)

    for topic in counts:
        runs = [
            sorted(tp.partition for tp in shares[member] if tp.topic == topic)
            for member, topics in subscriptions.items()
            if topic in topics
        ]
        sizes = [len(run) for run in runs] or [0]
        assert max(sizes) - min(sizes) <= 1
        assert all(run == list(range(run[0], run[-1] + 1)) for run in runs if run)


@pytest.mark.parametrize(
    ("assignor", "theirs"),
    [(RangePartitionAssignor, TheirRange), (RoundRobinPartitionAssignor, TheirRoundRobin)],
)
@given(counts=topic_counts, subscriptions=group_subscriptions)
def test_shares_equal_aiokafkas(
    assignor: type[AbstractPartitionAssignor],
    theirs: type[TheirRange],
    counts: dict[str, int],
    subscriptions: dict[str, list[str]],
) -> None:
    assert ours(assignor, counts, subscriptions) == aiokafkas(theirs, counts, subscriptions)


@given(counts=topic_counts, subscriptions=group_subscriptions)
def test_range_shares_equal_kafka_pythons(
    counts: dict[str, int], subscriptions: dict[str, list[str]]
) -> None:
    assert ours(RangePartitionAssignor, counts, subscriptions) == kafka_pythons(
        PythonRange, counts, subscriptions
    )


# kafka-python 3.0.12 raises KeyError when it has to pass a member over, so only alike members.
@given(counts=topic_counts, members=st.lists(member_ids, unique=True, min_size=1, max_size=7))
def test_roundrobin_shares_equal_kafka_pythons_for_members_alike(
    counts: dict[str, int], members: list[str]
) -> None:
    subscriptions = {member: list(counts) for member in members}

    assert ours(RoundRobinPartitionAssignor, counts, subscriptions) == kafka_pythons(
        PythonRoundRobin, counts, subscriptions
    )


@pytest.mark.parametrize("assignor", OURS)
def test_shares_do_not_depend_on_the_order_of_members(
    assignor: type[AbstractPartitionAssignor],
) -> None:
    counts = {"a": 5, "b": 2}
    subscriptions = {"m1": ["a", "b"], "m2": ["b", "a"], "m3": ["a"]}

    backwards = dict(reversed(subscriptions.items()))

    assert ours(assignor, counts, subscriptions) == ours(assignor, counts, backwards)


@pytest.mark.parametrize("assignor", OURS)
def test_a_topic_named_twice_counts_once(assignor: type[AbstractPartitionAssignor]) -> None:
    twice = ours(assignor, {"a": 4}, {"m1": ["a", "a"], "m2": ["a"]})

    assert twice == ours(assignor, {"a": 4}, {"m1": ["a"], "m2": ["a"]})


@pytest.mark.parametrize("assignor", OURS)
def test_a_static_member_keeps_its_share_under_a_new_member_id(
    assignor: type[AbstractPartitionAssignor],
) -> None:
    counts = {"a": 5}
    before = ours(
        assignor,
        counts,
        {"m1": ["a"], "m2": ["a"], "m3": ["a"]},
        {"m1": "first", "m2": "second"},
    )
    after = ours(
        assignor,
        counts,
        {"z9": ["a"], "m2": ["a"], "m3": ["a"]},
        {"z9": "first", "m2": "second"},
    )

    assert after["z9"] == before["m1"]
    assert after["m2"] == before["m2"]
    assert after["m3"] == before["m3"]


def test_examples_of_the_docstrings_hold() -> None:
    counts = {"a": 3, "b": 3}
    subscriptions = {"m1": ["a", "b"], "m2": ["a", "b"]}

    def short(shares: Shares) -> dict[str, str]:
        return {
            member: " ".join(f"{topic}{number}" for topic, number in sorted(tps))
            for member, tps in shares.items()
        }

    assert short(ours(RangePartitionAssignor, counts, subscriptions)) == {
        "m1": "a0 a1 b0 b1",
        "m2": "a2 b2",
    }
    assert short(ours(RoundRobinPartitionAssignor, counts, subscriptions)) == {
        "m1": "a0 a2 b1",
        "m2": "a1 b0 b2",
    }


@pytest.mark.parametrize("assignor", OURS)
def test_no_topics_known_leaves_every_member_with_nothing(
    assignor: type[AbstractPartitionAssignor], caplog: pytest.LogCaptureFixture
) -> None:
    assert ours(assignor, {}, {"m1": ["a"], "m2": []}) == {"m1": set(), "m2": set()}
    assert "topic a is not assigned to any member" in caplog.text


@pytest.mark.parametrize(
    "assignor", [*OURS, StickyPartitionAssignor, CooperativeStickyPartitionAssignor]
)
def test_every_client_can_read_the_version_of_an_assignment(
    assignor: type[AbstractPartitionAssignor],
) -> None:
    members = {"m": ConsumerProtocolMemberMetadata(0, ["t"], b"")}
    encoded = assignor.assign(Topics({"t": 1}), members)["m"].encode()
    assert int.from_bytes(encoded[:2], "big") == 0


def java_data(generation: int) -> bytes:
    """The user data of Java's members and ours: the generation alone."""
    assignor = CooperativeStickyPartitionAssignor()
    if generation >= 0:
        assignor.on_generation_assignment(generation)
    return assignor.metadata(["a"]).user_data


def librdkafka_data(generation: int) -> bytes:
    """The user data of librdkafka's members: those of the sticky assignor."""
    assignor = StickyPartitionAssignor()
    assignor.on_generation_assignment(generation)
    return assignor.metadata(["a"]).user_data


def test_a_member_that_was_assigned_nothing_yet_is_of_no_generation() -> None:
    assert java_data(-1) == (-1).to_bytes(4, "big", signed=True)


@for_each(
    [
        (-1, java_data(5), 5),
        (0, java_data(5), 0),
        (3, java_data(5), 3),
        (-1, librdkafka_data(9), 9),
        (0, librdkafka_data(9), 0),
        (-1, b"", -1),
    ]
)
def test_the_generation_of_what_is_owned_is_read_where_the_member_says_it(
    said: int, user_data: bytes, generation: int
) -> None:
    owned = (TopicPartition("a", 1),)
    metadata = ConsumerProtocolMemberMetadata(
        0, ["a"], user_data, owned_partitions=owned, generation=said
    )
    assert read_owned(metadata) == Claim(generation, owned)


def test_aiokafkas_module_paths_lead_here() -> None:
    from aiokafka_lite.coordinator.assignors.abstract import AbstractPartitionAssignor as Base
    from aiokafka_lite.coordinator.assignors.range import RangePartitionAssignor as Range
    from aiokafka_lite.coordinator.assignors.roundrobin import (
        RoundRobinPartitionAssignor as RoundRobin,
    )
    from aiokafka_lite.coordinator.protocol import ConsumerProtocolMemberMetadata as Metadata

    assert [Base, Range, RoundRobin, Metadata] == [
        AbstractPartitionAssignor,
        RangePartitionAssignor,
        RoundRobinPartitionAssignor,
        ConsumerProtocolMemberMetadata,
    ]
