"""Groups with other clients and with members that want different things; rebalance storms."""

from __future__ import annotations

import random
from itertools import pairwise

import aiokafka
import pytest
from aiokafka.coordinator.assignors.roundrobin import (
    RoundRobinPartitionAssignor as TheirRoundRobin,
)

from aiokafka_lite.broker import Broker
from aiokafka_lite.errors import CommitFailedError
from aiokafka_lite.structs import TopicPartition
from tests.support.cluster import KafkaHandle, unique
from tests.support.listeners import Calls
from tests.support.rows import tps
from tests.support.waiting import until
from tests.support.worker import Worker


async def test_the_leader_shares_out_topics_that_only_others_want(kafka: KafkaHandle) -> None:
    ours, theirs = await kafka.create_topic(partitions=2), await kafka.create_topic(partitions=3)
    group = unique("g")

    async with (
        Worker(kafka.bootstrap_servers, group, [ours]) as one,
        Worker(kafka.bootstrap_servers, group, [theirs]) as two,
    ):
        await until(lambda: one.partitions == tps(ours, 0, 1), one)
        await until(lambda: two.partitions == tps(theirs, 0, 1, 2), two)
        leader = one if one.member.is_leader else two
        assert leader.cluster.view.topics.keys() == {ours, theirs}


@pytest.mark.parametrize("who_is_first", ["we", "they"])
async def test_a_group_can_be_shared_with_aiokafka(kafka: KafkaHandle, who_is_first: str) -> None:
    topic = await kafka.create_topic(partitions=4)
    group = unique("g")
    everything = tps(topic, 0, 1, 2, 3)
    we = Worker(kafka.bootstrap_servers, group, [topic])
    they = aiokafka.AIOKafkaConsumer(
        topic,
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=group,
        enable_auto_commit=False,
        heartbeat_interval_ms=100,
        session_timeout_ms=6000,
        partition_assignment_strategy=(TheirRoundRobin,),
    )
    try:
        if who_is_first == "we":
            await we.start()
            await they.start()
        else:
            await they.start()
            await we.start()

        def is_shared() -> bool:
            their = {TopicPartition(*tp) for tp in they.assignment()}
            return len(their) == 2 and their | we.partitions == everything

        await until(is_shared, we)
        assert we.member.is_leader == (who_is_first == "we")
    finally:
        await they.stop()
    await until(lambda: we.partitions == everything, we)
    await we.close()


class Watched(Worker):
    """A worker that commits as it goes, and whose listener's calls are on record."""

    def __init__(self, bootstrap_servers: str, group: str, topic: str) -> None:
        self.calls = Calls()
        super().__init__(
            bootstrap_servers,
            group,
            [topic],
            {"session_timeout_ms": 500, "heartbeat_interval_ms": 30},
            listener=self.calls,
        )

    async def commit_something(self) -> None:
        for tp in sorted(self.partitions):
            self.work(tp, 1)
        try:
            await self.commits.commit()
        except CommitFailedError:
            pass  # the next owner of the partition reads it again

    def assert_calls_alternate(self) -> None:
        before = [("assigned", set[TopicPartition]()), *self.calls.calls]
        for (earlier, had), (later, has) in pairwise(before):
            assert (earlier, later) in {("assigned", "revoked"), ("revoked", "assigned")}
            if later == "revoked":
                assert has == had


@pytest.mark.every_loop
@pytest.mark.parametrize("seed", range(3))
async def test_after_a_storm_of_rebalances_each_partition_has_one_owner(seed: int) -> None:
    rng = random.Random(seed)
    async with Broker(group_min_session_timeout_ms=100) as broker:
        handle = KafkaHandle("embedded", broker.bootstrap_servers)
        topic, group = await handle.create_topic(partitions=6), unique("storm")
        everyone: list[Watched] = []
        members: list[Watched] = []
        for _ in range(20):
            step = rng.choice(["join", "join", "leave", "die", "commit", "commit"])
            if step == "join" and len(members) < 6:
                member = Watched(broker.bootstrap_servers, group, topic)
                await member.connect()  # joining goes on while the storm does
                members.append(member)
                everyone.append(member)
            elif step == "commit":
                for member in members:
                    await member.commit_something()
            elif members:
                member = members.pop(rng.randrange(len(members)))
                await (member.close() if step == "leave" else member.die())
        if not members:
            members.append(Watched(broker.bootstrap_servers, group, topic))
            everyone.append(members[0])
            await members[0].connect()

        def is_calm() -> bool:
            held = [tp for member in members for tp in member.partitions]
            return (
                all(member.membership.is_settled for member in members)
                and sorted(held) == sorted(tps(topic, *range(6)))
                and len({member.membership.generation for member in members}) == 1
            )

        await until(is_calm, *members)
        for member in members:
            await member.close()
        for member in everyone:
            member.assert_calls_alternate()
            assert member.scope.failure is None
