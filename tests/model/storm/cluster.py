"""The cluster under a storm: three real nodes, of which one after the other fails."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from aiokafka_lite import records
from aiokafka_lite._compat import timeout
from aiokafka_lite.broker.topics import partition_for
from aiokafka_lite.errors import DuplicateSequenceNumber, KafkaError, for_code
from aiokafka_lite.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from aiokafka_lite.protocol.messages.transactions import InitProducerIdRequest
from aiokafka_lite.structs import TopicPartition
from tests.model.clusters import AFTERMATH_S, RealCommits, value_of
from tests.model.ledger import Fault, Ledger
from tests.model.world import World
from tests.support.cluster import PRODUCE_BY_NAME
from tests.support.failover.cluster import OFFSETS_TOPIC, FailingCluster, until
from tests.support.real_kafka import RealKafka
from tests.support.wire import RawClient

OFFSETS_PARTITIONS: Final = 8  # as real_kafka.py has it
SESSION_S: Final = 6.0
ANSWER_S: Final = 5.0
AGAIN_S: Final = 0.1
# How long a fault may last until all replicas are in sync again, for those who look meanwhile.
LASTS_S: Final = 60.0

# The shortest session that members of the classic protocol may have, for the others as well; and
# the coordinator shares out as often as somebody comes or goes, not once a second.
PROPERTIES: Final = {
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
    "group.consumer.assignment.interval.ms": "100",
    "group.consumer.min.assignment.interval.ms": "0",
    "broker.session.timeout.ms": "3000",
}


class StormCluster(RealCommits):
    """Three nodes; `produce` is idempotent, so that a record's offset is known when it is sent."""

    least_session_s = most_session_s = SESSION_S

    def __init__(
        self, world: World, ledger: Ledger, rng: random.Random, failing: FailingCluster
    ) -> None:
        super().__init__(world, ledger, rng)
        self.failing: Final = failing
        self.written_at: dict[TopicPartition, list[float]] = {}
        self._producer = (-1, -1)
        self._leaders: dict[TopicPartition, int] = {}
        self._clients: dict[TopicPartition, RawClient] = {}

    @property
    def bootstrap_servers(self) -> str:
        return self.failing.bootstrap_servers

    # --- Topics, records, commits ---------------------------------------------------------
    async def create_topic(self, name: str, partitions: int) -> str:
        await self.failing.create(name, partitions)
        self._know(name, partitions)
        self._producer = await until(self._ask_for_producer, lambda found: found[0] >= 0)
        return name

    async def _ask_for_producer(self) -> tuple[int, int]:
        async with RawClient(self.bootstrap_servers) as client:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
            answer = await client.request(request)
            return answer.producer_id, answer.producer_epoch

    async def add_partition(self, topic: str) -> None:
        raise NotImplementedError("partitions stay as they are")

    async def produce(self, counts: dict[TopicPartition, int], size: int) -> None:
        """Write to each partition in turn; returns when all is acknowledged."""
        producer_id, epoch = self._producer
        for tp, count in counts.items():
            first = self.sent[tp]
            now_ms = int(self.world.now() * 1000)
            rows = [(now_ms, None, value_of(first + n, size), ()) for n in range(count)]
            self.sent[tp] = first + count
            batch = records.build_batch(
                rows, producer_id=producer_id, producer_epoch=epoch, base_sequence=first
            )
            await self._write(tp, batch, first)
            self.acknowledged[tp] = first + count
            self.written_at.setdefault(tp, []).append(self.world.now())

    async def _write(self, tp: TopicPartition, batch: bytes, first: int) -> None:
        """Write a batch, again and again until it is there: which changes nothing but the time."""
        data = PartitionProduceData(index=tp.partition, records=memoryview(batch))
        topic = TopicProduceData(name=tp.topic, partition_data=[data])
        request = ProduceRequest(acks=-1, timeout_ms=2_000, topic_data=[topic])
        while True:
            try:
                async with timeout(ANSWER_S):
                    client = await self._client_of(tp)
                    answer = await client.request(request, PRODUCE_BY_NAME)
            except (OSError, EOFError, KafkaError, IndexError, KeyError, asyncio.TimeoutError):
                await self._forget(tp)
            else:
                (result,) = answer.responses[0].partition_responses
                error = for_code(result.error_code) if result.error_code else None
                if error is None:
                    assert result.base_offset == first, f"{tp}: {first} is at {result.base_offset}"
                if error in (None, DuplicateSequenceNumber):
                    return
                if not error.retriable:
                    raise error(f"{tp}: {result.error_message}")
                await self._forget(tp)
            await asyncio.sleep(AGAIN_S)

    async def _client_of(self, tp: TopicPartition) -> RawClient:
        client = self._clients.get(tp)
        if client is None:
            leader_id = (await self.failing.leaders(tp.topic))[tp.partition]
            client = RawClient(f"127.0.0.1:{self.failing.kafka.nodes[leader_id].port}")
            self._clients[tp] = await client.__aenter__()
        return client

    async def _forget(self, tp: TopicPartition) -> None:
        client = self._clients.pop(tp, None)
        if client is not None:
            with suppress(OSError):
                await client.__aexit__(None, None, None)

    async def close(self) -> None:
        """Close the connections of the writers."""
        for tp in tuple(self._clients):
            await self._forget(tp)

    async def until_coordinated(self, group: str) -> None:
        await self.failing.coordinator(group)
        await self.failing.whole(OFFSETS_TOPIC)

    # --- What happens to coordinators -----------------------------------------------------
    async def kill_coordinator(self, group: str) -> None:
        """Kill the node that coordinates the group, and start it again."""
        await self._restart(group, signal.SIGKILL)

    async def shut_coordinator_down(self, group: str) -> None:
        """Have the node that coordinates the group hand over and end, and start it again."""
        await self._restart(group, signal.SIGTERM)

    async def _restart(self, group: str, sig: signal.Signals) -> None:
        node_id = await self.failing.coordinator(group)
        with self._fault(f"{sig.name} for node {node_id}, the coordinator"):
            await self.failing.stop(node_id, sig)
            await asyncio.sleep(self.rng.uniform(0.0, 6.0))
            await self.failing.start(node_id)
            await self.failing.whole(OFFSETS_TOPIC, *self.partitions)
            # Leaders go back to where they were made.
            await self.failing.elect_preferred()

    async def move_coordinator(self, group: str) -> None:
        """Have another node coordinate the group, with nothing wrong anywhere."""
        node_id = await self.failing.coordinator(group)
        other = self.rng.choice([n for n in self.failing.kafka.nodes if n != node_id])
        with self._fault(f"the coordinator moves from node {node_id} to {other}"):
            index = partition_for(group, OFFSETS_PARTITIONS)
            await self.failing.move(OFFSETS_TOPIC, index, other)

    @contextmanager
    def _fault(self, name: str) -> Iterator[None]:
        now = self.world.now()
        fault = Fault(at=now, name=name, until=now + LASTS_S)
        self.ledger.write(fault)
        try:
            yield
        finally:
            fault.until = self.world.now() + AFTERMATH_S

    async def port_of_coordinator(self, group: str) -> int:
        """Return where the group's coordinator listens."""
        return self.failing.kafka.nodes[await self.failing.coordinator(group)].port

    async def begin_fault(self) -> float:
        raise NotImplementedError("the storm has faults of its own")

    async def end_faults(self) -> None:
        """They end by themselves."""


def three_nodes() -> RealKafka:
    """Return three nodes for a storm, which are to be started.

    Raises:
        KafkaUnavailableError: There is no real Kafka here.
    """
    return RealKafka(3, properties=PROPERTIES, heap_mib=384)
