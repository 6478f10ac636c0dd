"""The sticky assignor: balanced as KIP-54 says, and nothing moves that need not."""

from __future__ import annotations

import asyncio
import subprocess
from collections import Counter
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyAssignorUserDataV1
from hypothesis import given
from hypothesis import strategies as st

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer.assignors import (
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
)
from aiokafka_lite.consumer.assignors.sticky import (
    Claim,
    StickyPartitionAssignor,
    share_out,
)
from aiokafka_lite.protocol.codec import decode, decode_versioned
from aiokafka_lite.protocol.messages.group_members import (
    ConsumerProtocolSubscription,
    JoinGroupRequest,
    StickyUserData,
)
from aiokafka_lite.structs import TopicPartition
from tests.consumer.assignors.groups import (
    TOPIC_NAMES,
    Topics,
    group_subscriptions,
    member_ids,
    topic_counts,
)
from tests.support.cluster import KafkaHandle, unique
from tests.support.cpu import CpuTime
from tests.support.java import JavaTools
from tests.support.programs import started

JAVAS = "org.apache.kafka.clients.consumer.StickyAssignor"
Shares = dict[str, set[TopicPartition]]


class Group:
    """A group's members over several rebalances, each with an assignor of its own."""

    def __init__(self) -> None:
        self.assignors: dict[str, StickyPartitionAssignor] = {}
        self.generation = 0

    def rebalance(
        self, counts: Mapping[str, int], subscriptions: Mapping[str, list[str]]
    ) -> Shares:
        members: dict[str, ConsumerProtocolMemberMetadata] = {}
        for member, topics in subscriptions.items():
            assignor = self.assignors.setdefault(member, StickyPartitionAssignor())
            members[member] = assignor.metadata(topics)
        self.generation += 1
        answer = StickyPartitionAssignor.assign(Topics(counts), members)
        assert answer.keys() == subscriptions.keys()
        for member, assignment in answer.items():
            self.assignors[member].on_assignment(assignment)
            self.assignors[member].on_generation_assignment(self.generation)
        return {
            member: {TopicPartition(*tp) for tp in assignment.partitions()}
            for member, assignment in answer.items()
        }


def is_balanced(shares: Shares, subscriptions: Mapping[str, list[str]]) -> bool:
    """Whether no partition could go to a subscriber that has two or more fewer."""
    return not any(
        tp.topic in subscriptions[other] and len(shares[other]) <= len(tps) - 2
        for tps in shares.values()
        for tp in tps
        for other in shares
    )


def every_partition(
    counts: Mapping[str, int], subscriptions: Mapping[str, list[str]]
) -> Counter[TopicPartition]:
    wanted = {topic for topics in subscriptions.values() for topic in topics if topic in counts}
    return Counter(TopicPartition(topic, n) for topic in wanted for n in range(counts[topic]))


class Change(NamedTuple):
    """A group before and after something happened to it."""

    counts: dict[str, int]
    subscriptions: dict[str, list[str]]


changes = st.lists(st.builds(Change, topic_counts, group_subscriptions), min_size=1, max_size=5)


@given(history=changes)
def test_every_rebalance_is_complete_and_balanced(history: list[Change]) -> None:
    group = Group()
    for counts, subscriptions in history:
        shares = group.rebalance(counts, subscriptions)
        owners = Counter(tp for tps in shares.values() for tp in tps)
        assert owners == every_partition(counts, subscriptions)
        for member, tps in shares.items():
            assert {tp.topic for tp in tps} <= set(subscriptions[member])
        assert is_balanced(shares, subscriptions)


@given(counts=topic_counts, subscriptions=group_subscriptions)
def test_nothing_moves_when_nothing_changes(
    counts: dict[str, int], subscriptions: dict[str, list[str]]
) -> None:
    group = Group()
    before = group.rebalance(counts, subscriptions)
    assert group.rebalance(counts, subscriptions) == before


members_lists = st.lists(member_ids, unique=True, min_size=1, max_size=8)


@given(counts=topic_counts, before=members_lists, after=members_lists, more=st.integers(0, 5))
def test_members_alike_keep_as_much_as_balance_allows(
    counts: dict[str, int], before: list[str], after: list[str], more: int
) -> None:
    topics = list(counts)
    group = Group()
    had = group.rebalance(counts, dict.fromkeys(before, topics))
    counts = {topic: count + more for topic, count in counts.items()}

    has = group.rebalance(counts, dict.fromkeys(after, topics))

    # Everybody has `least` or one more, of which there are `longer`: who had most keep that one.
    least, longer = divmod(sum(counts.values()), len(after))
    sizes_before = sorted((len(had.get(member, ())) for member in after), reverse=True)
    most_kept = sum(min(size, least + (turn < longer)) for turn, size in enumerate(sizes_before))
    kept = sum(len(has[member] & had.get(member, set())) for member in after)
    assert kept == most_kept


def test_a_member_that_goes_moves_only_what_it_had() -> None:
    group = Group()
    topics = ["a"]
    before = group.rebalance({"a": 12}, dict.fromkeys(["m1", "m2", "m3", "m4"], topics))
    after = group.rebalance({"a": 12}, dict.fromkeys(["m1", "m2", "m4"], topics))
    assert all(before[member] < after[member] for member in after)
    assert {len(tps) for tps in after.values()} == {4}


def test_a_member_that_comes_takes_only_its_own_share() -> None:
    group = Group()
    before = group.rebalance({"a": 9}, {"m1": ["a"], "m2": ["a"]})
    after = group.rebalance({"a": 9}, {"m1": ["a"], "m2": ["a"], "m3": ["a"]})
    assert after["m1"] < before["m1"]
    assert after["m2"] < before["m2"]
    assert len(after["m3"]) == 3


def test_what_was_moved_for_a_while_comes_home_where_balance_asks_for_it() -> None:
    group = Group()
    subscriptions = {"m1": ["a", "b"], "m2": ["a"], "m3": ["b"]}
    shares = group.rebalance({"a": 4, "b": 4}, subscriptions)
    # KIP-54's own kind of example: one topic is dropped by the only member that bridges both.
    shares = group.rebalance({"a": 4, "b": 4}, {**subscriptions, "m1": ["b"]})
    assert shares["m2"] == {TopicPartition("a", n) for n in range(4)}
    assert is_balanced(shares, {**subscriptions, "m1": ["b"]})


def relieved_in_s(counts: Mapping[str, int], subscriptions: Mapping[str, list[str]]) -> float:
    """Share out what the last member has, and return the processor's time for that."""
    *_, owner = subscriptions
    all_there_is = tuple(TopicPartition(topic, n) for topic in counts for n in range(counts[topic]))
    claims = {**dict.fromkeys(subscriptions, Claim()), owner: Claim(1, all_there_is)}
    members = {
        member: ConsumerProtocolMemberMetadata(0, topics)
        for member, topics in subscriptions.items()
    }
    with CpuTime() as took:
        shares = share_out(Topics(counts), members, claims)
    assert sum(len(tps) for tps in shares.values()) == len(all_there_is)
    sizes = [len(shares[member]) for member in subscriptions]
    # All of these groups can be balanced so, from each member to the next.
    assert all(abs(size - other) <= 1 for size, other in pairwise(sizes))
    return took.s


def test_a_hundred_members_relieve_one_that_has_a_hundred_thousand_within_a_second() -> None:
    counts = {"a": 100_000}
    assert relieved_in_s(counts, {f"m{number}": ["a"] for number in range(100)}) < 1


def test_members_of_many_tastes_relieve_one_that_has_all_within_two_seconds() -> None:
    counts = {f"topic-{number:02}": 100 for number in range(100)}
    prefixes = {f"m{number:02}": list(counts)[: number + 1] for number in range(100)}
    assert relieved_in_s(counts, prefixes) < 2


# --- Claims --------------------------------------------------------------------------------
def claim(generation: int, *numbers: int) -> ConsumerProtocolMemberMetadata:
    assignor = StickyPartitionAssignor()
    assignor.on_assignment(ConsumerProtocolMemberAssignment(0, [("a", numbers)]))
    assignor.on_generation_assignment(generation)
    return assignor.metadata(["a"])


def shares_of(
    members: Mapping[str, ConsumerProtocolMemberMetadata], count: int
) -> dict[str, list[int]]:
    answer = StickyPartitionAssignor.assign(Topics({"a": count}), members)
    return {
        member: [number for _, numbers in assignment.assignment for number in numbers]
        for member, assignment in answer.items()
    }


@pytest.mark.parametrize("zombie", ["a-first", "z-last"])
def test_of_two_claims_the_one_of_the_later_generation_stands(zombie: str) -> None:
    members = {"m": claim(5, 0, 1), "n": claim(5, 2, 3), zombie: claim(4, 0, 1, 2, 3)}

    shares = shares_of(members, 6)

    assert (shares["m"], shares["n"], shares[zombie]) == ([0, 1], [2, 3], [4, 5])


def test_a_claim_of_before_kip_341_gives_way_to_any_generation() -> None:
    old = claim(9, 0, 1)
    without_generation = old._replace(user_data=old.user_data[:-4])
    members = {"a-old": without_generation, "m": claim(0, 0), "n": claim(0, 2)}

    shares = shares_of(members, 3)

    assert shares == {"a-old": [1], "m": [0], "n": [2]}


def test_claims_to_what_is_gone_or_not_subscribed_are_dropped() -> None:
    other = StickyPartitionAssignor()
    other.on_assignment(ConsumerProtocolMemberAssignment(0, [("a", [0, 7]), ("gone", [0])]))
    members = {"m": other.metadata(["b"]), "n": other.metadata(["a"])}

    answer = StickyPartitionAssignor.assign(Topics({"a": 2, "b": 1}), members)

    assert dict(answer["m"].assignment) == {"b": [0]}
    assert dict(answer["n"].assignment) == {"a": [0, 1]}


@given(garbage=st.binary(max_size=60))
def test_user_data_that_makes_no_sense_is_no_claim(garbage: bytes) -> None:
    members = {"m": ConsumerProtocolMemberMetadata(0, ["a"], garbage), "n": claim(1, 0, 1)}
    shares = shares_of(members, 4)
    assert sorted(shares["m"] + shares["n"]) == [0, 1, 2, 3]
    assert len(shares["m"]) == 2


def test_two_consumers_of_a_process_share_nothing() -> None:
    first, second = StickyPartitionAssignor(), StickyPartitionAssignor()
    first.on_assignment(ConsumerProtocolMemberAssignment(0, [("a", [1])]))
    assert first.metadata(["a"]) != second.metadata(["a"])


# --- Other implementations -----------------------------------------------------------------
shares_said = st.dictionaries(
    st.sampled_from(TOPIC_NAMES), st.lists(st.integers(0, 99), unique=True, min_size=1), max_size=3
)


@given(said=shares_said, generation=st.integers(-1, 2**31 - 1))
def test_user_data_is_aiokafkas(said: dict[str, list[int]], generation: int) -> None:
    assignor = StickyPartitionAssignor()
    assignor.on_assignment(ConsumerProtocolMemberAssignment(0, list(said.items())))
    assignor.on_generation_assignment(generation)

    theirs = StickyAssignorUserDataV1.decode(assignor.metadata(["a"]).user_data)

    assert theirs.generation == generation
    assert dict(theirs.previous_assignment) == {
        topic: sorted(numbers) for topic, numbers in said.items()
    }


USER_DATA_PROBE = """
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;
public class Probe {
    public static void main(String[] arguments) {
        StickyAssignor assignor = new StickyAssignor();
        assignor.onAssignment(
            new ConsumerPartitionAssignor.Assignment(List.of(
                new TopicPartition("a", 1), new TopicPartition("a", 4))),
            new ConsumerGroupMetadata("g", 7, "m", Optional.empty()));
        byte[] bytes = assignor.subscriptionUserData(Set.of("a")).array();
        System.out.println(HexFormat.of().formatHex(bytes));
    }
}
"""


@pytest.mark.java
async def test_user_data_is_javas(java_tools: JavaTools, tmp_path: Path) -> None:
    source = tmp_path / "Probe.java"
    source.write_text(USER_DATA_PROBE)
    done = await java_tools.run(str(source))
    assert done.stdout.strip() == claim(7, 1, 4).user_data.hex(), done.stderr


# --- In a group ----------------------------------------------------------------------------
async def test_members_of_a_group_keep_what_they_have(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=9)
    group_id = unique("group")

    def member() -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            topic,
            bootstrap_servers=kafka.bootstrap_servers,
            group_id=group_id,
            partition_assignment_strategy=(StickyPartitionAssignor,),
            heartbeat_interval_ms=50,
        )

    async def have(*sizes: int) -> list[set[TopicPartition]]:
        shares: list[set[TopicPartition]] = []
        async with timeout(60):
            while [len(share) for share in shares] != list(sizes):
                await asyncio.sleep(0.01)  # heartbeats tell members of a rebalance
                shares = [consumer.assignment() for consumer in running]
        assert set.union(*shares) == {TopicPartition(topic, number) for number in range(9)}
        return shares

    running = [member()]
    try:
        await running[0].start()
        await have(9)
        for sizes in ((5, 4), (3, 3, 3)):
            before = [consumer.assignment() for consumer in running]
            running.append(member())
            await running[-1].start()
            after = await have(*sizes)
            assert all(has < had for has, had in zip(after, before, strict=False))
        second = running.pop(1)
        before = [consumer.assignment() for consumer in running]
        await second.stop()
        # Of the two that are left either may get the odd one.
        async with timeout(60):
            while sum(len(c.assignment()) for c in running) != 9:  # noqa: ASYNC110 -- no event
                await asyncio.sleep(0.01)
        after = [consumer.assignment() for consumer in running]
        assert all(has > had for has, had in zip(after, before, strict=True))
    finally:
        for consumer in running:
            await consumer.stop()


@pytest.mark.java
async def test_a_java_leader_leaves_our_members_what_they_claim(java_tools: JavaTools) -> None:
    async with Broker() as broker:
        broker.create_topic("t", 12)
        command = java_tools.command(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            "--bootstrap-server", broker.bootstrap_servers, "--topic", "t", "--group", "g",
            "--command-property", f"partition.assignment.strategy={JAVAS}",
            "--command-property", "heartbeat.interval.ms=50",
        )  # fmt: skip
        ours = [
            AIOKafkaConsumer(
                "t",
                bootstrap_servers=broker.bootstrap_servers,
                group_id="g",
                partition_assignment_strategy=(StickyPartitionAssignor,),
                heartbeat_interval_ms=50,
            )
            for _ in range(2)
        ]
        try:
            async with started(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
                await broker.wait_for_members("g", 1, timeout_s=60)
                await ours[0].start()
                before = ours[0].assignment()
                await ours[1].start()
                await broker.wait_until(
                    lambda: [len(consumer.assignment()) for consumer in ours] == [4, 4],
                    timeout_s=60,
                )
                assert len(before) == 6
                assert ours[0].assignment() < before
        finally:
            for consumer in ours:
                await consumer.stop()


def has_partitions_of(consumer: AIOKafkaConsumer, topics: list[str]) -> bool:
    return {tp.topic for tp in consumer.assignment()} == set(topics)


async def test_a_member_claims_by_the_generation_it_was_of() -> None:
    async with Broker() as broker:
        broker.create_topic("t", 2)
        broker.create_topic("u", 1)
        async with AIOKafkaConsumer(
            "t",
            bootstrap_servers=broker.bootstrap_servers,
            group_id="g",
            partition_assignment_strategy=(StickyPartitionAssignor,),
        ) as consumer:
            for generation, topics in ((1, ["t", "u"]), (2, ["t"]), (3, ["t", "u"])):
                asked_before = broker.requests.total
                had = [(tp.topic, tp.partition) for tp in sorted(consumer.assignment())]
                consumer.subscribe(topics)
                (join,) = await broker.requests.wait_for(
                    "JoinGroup", since=asked_before, timeout_s=60
                )
                assert isinstance(join.request, JoinGroupRequest)
                blob = join.request.protocols[0].metadata
                said = decode_versioned(ConsumerProtocolSubscription, blob)
                claim = decode(StickyUserData, 1, said.user_data or b"")
                assert claim.generation == generation
                assert had == [
                    (share.topic, number)
                    for share in claim.previous_assignment
                    for number in share.partitions
                ]
                await broker.wait_for_members("g", 1, timeout_s=60)
                await broker.wait_until(partial(has_partitions_of, consumer, topics))
