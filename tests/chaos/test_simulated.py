"""Three simulated brokers die one after the other under a consumer in a group."""

from __future__ import annotations

import itertools
from collections.abc import Collection

import pytest

from aiokafka_lite import _compat
from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.protocol.messages.group_members import (
    ConsumerGroupHeartbeatRequest,
    JoinGroupRequest,
)
from aiokafka_lite.structs import TopicPartition
from tests.support.protocols import in_both_protocols

PARTITIONS = 6
SHARE = 40
WAIT_S = 30.0


class Told(ConsumerRebalanceListener):
    """Keeps what the listener is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self.calls.append(("assigned", len(assigned)))

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self.calls.append(("revoked", len(revoked)))


class Stream:
    """Writes numbered records to all partitions in turn, and checks them as they are read."""

    def __init__(self, broker: Broker, consumer: AIOKafkaConsumer) -> None:
        self._broker = broker
        self._consumer = consumer
        self._numbers = itertools.count()
        self.written = [0] * PARTITIONS
        self.read = [0] * PARTITIONS

    def write(self, count: int = SHARE) -> None:
        for _ in range(count):
            index = next(self._numbers) % PARTITIONS
            self._broker.produce("t", b"%d" % self.written[index], partition=index)
            self.written[index] += 1

    async def catch_up(self) -> None:
        """Read until everything written is there: each record once, in order."""
        async with _compat.timeout(WAIT_S):
            while self.read != self.written:
                for tp, batch in (await self._consumer.getmany(timeout_ms=100)).items():
                    for record in batch:
                        assert record.value is not None
                        assert int(record.value) == record.offset == self.read[tp.partition]
                        self.read[tp.partition] += 1


def joins(broker: Broker) -> int:
    """How often a member asked to be let in, by either protocol."""
    return sum(
        isinstance(seen.request, JoinGroupRequest)
        or (
            isinstance(seen.request, ConsumerGroupHeartbeatRequest)
            and seen.request.member_epoch == 0
        )
        for seen in broker.requests
    )


@pytest.mark.virtual_time
@pytest.mark.parametrize("clean", [False, True], ids=["killed", "shut down"])
@in_both_protocols
async def test_brokers_fail_in_turn_and_the_group_stays_as_it_is(
    *, protocol: str, clean: bool
) -> None:
    """Of three nodes each fails once: leaders, the coordinator and the controller among them."""
    async with Broker(nodes=3, request_log_size=100_000) as broker:
        broker.create_topic("t", PARTITIONS)
        told = Told()
        consumer = AIOKafkaConsumer(
            bootstrap_servers=broker.bootstrap_servers,
            group_id="g",
            group_protocol=protocol,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=50,
            session_timeout_ms=6_000,
            auto_commit_interval_ms=50,
            retry_backoff_ms=10,
            fetch_max_wait_ms=50,
        )
        consumer.subscribe(["t"], listener=told)
        async with consumer:
            stream = Stream(broker, consumer)
            stream.write()
            await stream.catch_up()
            before = list(told.calls)
            joined = joins(broker)
            failed = []
            for _ in range(3):
                coordinator = broker.coordinator_of("g")
                node_id = coordinator if coordinator not in failed else broker.controller_id
                if node_id in failed:
                    node_id = next(n for n in broker.nodes if n not in failed)
                failed.append(node_id)
                led = [
                    n
                    for n in range(PARTITIONS)
                    if broker.leader_of(TopicPartition("t", n)) == node_id
                ]
                stream.write()
                await broker.stop_node(node_id, clean=clean)
                stream.write()
                await stream.catch_up()
                await broker.start_node(node_id)
                for number in led or [0]:
                    broker.move_leader(TopicPartition("t", number), node_id)
                stream.write()
                await stream.catch_up()
            assert sorted(failed) == sorted(broker.nodes)
            # The member is of the same generation, and what it commits is taken.
            await consumer.commit()
            assert told.calls == before
            assert joins(broker) == joined
            assert sum(broker.committed("g").values()) == sum(stream.written)
        assert broker.failure is None
