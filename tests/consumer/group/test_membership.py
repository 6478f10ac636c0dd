"""Membership on both brokers: joining, sharing, leaving, dying, static members, patterns."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest

from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.assignors import RangePartitionAssignor, RoundRobinPartitionAssignor
from aiokafka_lite.consumer.membership.classic.member import MemberState
from aiokafka_lite.errors import CommitFailedError, FencedInstanceIdError
from aiokafka_lite.protocol.messages.groups import DescribeGroupsRequest
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.support.cluster import KafkaHandle, unique
from tests.support.listeners import Calls
from tests.support.other_member import throw_out
from tests.support.rows import tps
from tests.support.waiting import until
from tests.support.worker import Worker


def share_all(topic: str, count: int, *workers: Worker) -> bool:
    """Whether each partition is with exactly one of the workers, all being stable."""
    held = [tp for worker in workers for tp in worker.partitions]
    return all(worker.membership.is_settled for worker in workers) and sorted(held) == sorted(
        tps(topic, *range(count))
    )


async def test_a_single_member_gets_every_partition(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=3)
    calls = Calls()

    async with Worker(kafka.bootstrap_servers, unique("g"), [topic], listener=calls) as worker:
        assert worker.partitions == tps(topic, 0, 1, 2)
        assert worker.member.state is MemberState.STABLE
        assert worker.membership.member_id
        assert worker.membership.generation == 1
        assert worker.membership.status.coordinator_id in worker.cluster.view.nodes

    assert calls.calls == [("revoked", set()), ("assigned", tps(topic, 0, 1, 2))]


async def test_a_second_member_takes_its_share_and_gives_it_back(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=4)
    group, calls = unique("g"), Calls()

    async with Worker(kafka.bootstrap_servers, group, [topic], listener=calls) as first:
        async with Worker(kafka.bootstrap_servers, group, [topic]) as second:
            await until(lambda: share_all(topic, 4, first, second), first, second)
            assert len(first.partitions) == len(second.partitions) == 2
            halves = set(first.partitions)
        await until(lambda: share_all(topic, 4, first), first)

    everything = tps(topic, 0, 1, 2, 3)
    assert calls.calls == [
        ("revoked", set()),
        ("assigned", everything),
        ("revoked", everything),
        ("assigned", halves),
        ("revoked", halves),
        ("assigned", everything),
    ]


async def test_members_that_start_at_once_share_everything(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=5)
    group = unique("g")
    workers = [Worker(kafka.bootstrap_servers, group, [topic]) for _ in range(4)]

    await asyncio.gather(*(worker.start() for worker in workers))
    await until(lambda: share_all(topic, 5, *workers), *workers)

    await asyncio.gather(*(worker.close() for worker in workers))


@pytest.mark.every_loop
async def test_the_partitions_of_a_dead_member_go_to_the_others() -> None:
    async with Broker(group_min_session_timeout_ms=100) as broker:
        await lose_a_member(KafkaHandle("embedded", broker.bootstrap_servers), session_ms=500)


@pytest.mark.real_kafka
async def test_the_partitions_of_a_dead_member_go_to_the_others_on_kafka(real_kafka: str) -> None:
    # The shortest session that Kafka allows by default: once for both loops is enough.
    await lose_a_member(KafkaHandle("real", real_kafka), session_ms=6000)


async def lose_a_member(kafka: KafkaHandle, session_ms: int) -> None:
    topic = await kafka.create_topic(partitions=2)
    group, settings = unique("g"), {"session_timeout_ms": session_ms}

    async with Worker(kafka.bootstrap_servers, group, [topic], settings) as survivor:
        victim = await Worker(kafka.bootstrap_servers, group, [topic], settings).start()
        await until(lambda: share_all(topic, 2, survivor, victim), survivor, victim)

        await victim.die()

        await until(lambda: share_all(topic, 2, survivor), survivor)


async def test_a_static_member_comes_back_without_a_rebalance(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=4)
    group = unique("g")

    async with Worker(kafka.bootstrap_servers, group, [topic]) as other:
        settings = {"group_instance_id": "the-static-one"}
        static = await Worker(kafka.bootstrap_servers, group, [topic], settings).start()
        await until(lambda: share_all(topic, 4, other, static), other, static)
        share, generation = static.partitions, other.membership.generation
        await static.close()

        async with Worker(kafka.bootstrap_servers, group, [topic], settings) as back:
            assert back.partitions == share
            assert back.membership.generation == generation
            assert await state_of(kafka, group) == "Stable"
            assert other.membership.generation == generation


async def state_of(kafka: KafkaHandle, group: str) -> str:
    async with kafka.raw() as client:
        answer = await client.request(DescribeGroupsRequest(groups=[group]))
    return answer.groups[0].group_state


async def test_the_older_of_two_with_one_instance_id_is_fenced(
    kafka: KafkaHandle, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await kafka.create_topic()
    group = unique("g")
    settings = {"group_instance_id": "twin"}
    older = await Worker(kafka.bootstrap_servers, group, [topic], settings).start()

    async with Worker(kafka.bootstrap_servers, group, [topic], settings) as newer:
        await asyncio.wait_for(older.failed.wait(), 10)
        assert newer.partitions == tps(topic, 0)
    assert isinstance(older.scope.failure, FencedInstanceIdError)
    assert older.member.state is MemberState.FENCED
    assert older.partitions == set()
    (told,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert "'twin'" in told.getMessage()
    assert told.exc_info is None

    await older.close()


async def test_a_member_that_was_thrown_out_joins_again(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    group = unique("g")

    async with Worker(kafka.bootstrap_servers, group, [topic]) as worker:
        before = worker.member.identity
        worker.work(TopicPartition(topic, 0), 3)
        await throw_out(kafka, group, before.member_id)

        with pytest.raises(CommitFailedError):
            await worker.commits.commit({TopicPartition(topic, 0): 3})

        await until(lambda: worker.member.identity.member_id not in ("", before.member_id), worker)
        await until(lambda: share_all(topic, 2, worker), worker)


async def test_a_new_subscription_brings_its_partitions(kafka: KafkaHandle) -> None:
    first, second = await kafka.create_topic(), await kafka.create_topic(partitions=2)

    async with Worker(kafka.bootstrap_servers, unique("g"), [first]) as worker:
        worker.state.subscribe([second])

        await worker.membership.wait_assigned()

        assert worker.partitions == tps(second, 0, 1)


async def test_unsubscribing_leaves_the_group(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    group = unique("g")

    async with (
        Worker(kafka.bootstrap_servers, group, [topic]) as one,
        Worker(kafka.bootstrap_servers, group, [topic]) as two,
    ):
        await until(lambda: share_all(topic, 1, one, two), one, two)
        one.state.unsubscribe()
        await until(lambda: one.member.state is MemberState.UNJOINED, one)
        await until(lambda: share_all(topic, 1, two), two)


async def test_a_pattern_takes_in_topics_as_they_are_created(kafka: KafkaHandle) -> None:
    prefix = unique("pattern")
    first = await kafka.create_topic(f"{prefix}.a")
    await kafka.create_topic(f"not-{prefix}")
    settings = {"metadata_max_age_ms": 200}

    worker = Worker(kafka.bootstrap_servers, unique("g"), (), settings)
    worker.state.subscribe_pattern(re.compile(f"{prefix}\\..*"))
    async with worker:
        assert worker.partitions == tps(first, 0)
        second = await kafka.create_topic(f"{prefix}.b")

        await until(lambda: worker.partitions == tps(first, 0) | tps(second, 0), worker)


async def test_the_group_uses_an_assignor_that_all_members_know(kafka: KafkaHandle) -> None:
    topics = [await kafka.create_topic(partitions=3) for _ in range(2)]
    group = unique("g")
    both = {"partition_assignment_strategy": (RoundRobinPartitionAssignor, RangePartitionAssignor)}
    only_range = {"partition_assignment_strategy": (RangePartitionAssignor,)}

    async with (
        Worker(kafka.bootstrap_servers, group, topics, both) as one,
        Worker(kafka.bootstrap_servers, group, topics, only_range) as two,
    ):
        await until(
            lambda: len(one.partitions) + len(two.partitions) == 6 and one.membership.is_settled,
            one,
            two,
        )
        assert one.member.protocol_name == "range"
        assert {len(one.partitions), len(two.partitions)} == {2, 4}


async def test_commits_are_read_back_with_metadata_in_one_go(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=3)
    zero, one, two = sorted(tps(topic, 0, 1, 2))

    async with Worker(kafka.bootstrap_servers, unique("g"), [topic]) as worker:
        await worker.commits.commit({zero: 0, one: (7, "seven")})

        assert await worker.commits.committed([zero, one, two]) == {
            zero: OffsetAndMetadata(0, ""),
            one: OffsetAndMetadata(7, "seven"),
            two: None,
        }
        assert worker.state.assignment[one].committed == OffsetAndMetadata(7, "seven")


@pytest.mark.real_if_long
async def test_a_clean_stop_commits_what_was_handed_out(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    group, (tp,) = unique("g"), tps(topic, 0)
    worker = await Worker(kafka.bootstrap_servers, group, [topic]).start()
    worker.work(tp, 5)

    assert await worker.leave(commit=True) == {}
    await worker.die()

    async with Worker(kafka.bootstrap_servers, group, [topic]) as reader:
        assert await reader.commits.committed([tp]) == {tp: OffsetAndMetadata(5, "")}


@pytest.mark.real_if_long
async def test_auto_commit_leaves_out_what_the_latest_get_handed_out(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    (tp,) = tps(topic, 0)
    settings = {"enable_auto_commit": True, "auto_commit_interval_ms": 50}

    async with Worker(kafka.bootstrap_servers, unique("g"), [topic], settings) as worker:
        worker.work(tp, 5)
        worker.work(tp, 3)
        await until(lambda: worker.state.assignment[tp].committed, worker)
        assert await worker.commits.committed([tp]) == {tp: OffsetAndMetadata(5, "")}

        worker.state.reads.begin_get()
        await until(lambda: worker.state.assignment[tp].committed != (5, ""), worker)
        assert await worker.commits.committed([tp]) == {tp: OffsetAndMetadata(8, "")}


async def test_what_was_processed_is_committed_before_partitions_are_given_back(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic(partitions=2)
    group = unique("g")
    zero, one = sorted(tps(topic, 0, 1))
    settings = {
        "enable_auto_commit": True,
        "auto_commit_interval_ms": 60_000,
        "rebalance_hold_ms": 300,
    }

    async with Worker(kafka.bootstrap_servers, group, [topic], settings) as first:
        first.work(zero, 4)
        first.work(one, 6)
        async with Worker(kafka.bootstrap_servers, group, [topic]) as second:
            await until(lambda: share_all(topic, 2, first, second), first, second)

            assert await second.commits.committed([zero, one]) == {
                zero: OffsetAndMetadata(4, ""),
                one: OffsetAndMetadata(0, ""),  # being worked on: from the start again
            }


async def test_without_subscription_the_group_only_keeps_offsets(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    (tp,) = tps(topic, 0)
    worker = Worker(kafka.bootstrap_servers, unique("g"))
    worker.state.assign_from_user([tp])

    async with worker:
        await worker.commits.commit({tp: 11})

        assert await worker.commits.committed([tp]) == {tp: OffsetAndMetadata(11, "")}
        assert worker.membership.member_id == ""


@pytest.mark.virtual_time
async def test_a_member_whose_leave_is_not_answered_keeps_its_id_and_commits_nothing_more() -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        (tp,) = tps("t", 0)
        worker = await Worker(broker.bootstrap_servers, "g", ["t"]).start()
        member_id = worker.membership.member_id
        worker.work(tp, 3)
        with broker.on("LeaveGroup").hold():
            await worker.leave()
            assert worker.membership.member_id == member_id
            with pytest.raises(CommitFailedError):
                await worker.commits.commit({tp: 2})
            assert not broker.committed("g")
        await worker.die()


@pytest.mark.virtual_time
async def test_a_start_after_a_cancelled_one_takes_the_same_place_in_the_group() -> None:
    """Otherwise each rebalance waits for a member that is none, until its session is over."""
    async with Broker(nodes=2) as broker:
        broker.create_topic("t", partitions=2)
        settings = {"heartbeat_interval_ms": 1000, "session_timeout_ms": 30_000}
        async with Worker(broker.bootstrap_servers, "g", ["t"], settings) as first:
            (other,) = broker.nodes.keys() - {broker.coordinator_of("g")}
            second = AIOKafkaConsumer(
                "t",
                # To the coordinator it has the one connection by which it joins.
                bootstrap_servers=f"127.0.0.1:{broker.nodes[other].address.port}",
                group_id="g",
                group_protocol="classic",
                partition_assignment_strategy=(RoundRobinPartitionAssignor,),
            )
            joins = len(broker.requests.of("JoinGroup"))
            starting = asyncio.ensure_future(second.start())
            await until(lambda: len(broker.requests.of("JoinGroup")) >= joins + 2, first)
            assert not starting.done(), "the first member has not joined again yet"
            starting.cancel()
            await asyncio.wait({starting})

            async with timeout(10.0), second:
                await until(lambda: len(second.assignment()) == 1, first)
                await until(lambda: len(first.partitions) == 1, first)
