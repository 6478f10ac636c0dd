"""What a course asks of its cluster: who leads, who coordinates, who controls."""

from __future__ import annotations

import asyncio
import functools
import signal
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from aiokafka_lite.errors import KafkaError, for_code
from aiokafka_lite.protocol.messages.metadata import (
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from aiokafka_lite.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from aiokafka_lite.protocol.schema import Request, Response
from tests.support.failover.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.support.failover.describe_quorum import DescribeQuorumRequest
from tests.support.failover.elect_leaders import ElectLeadersRequest, TopicPartitions
from tests.support.real_kafka import RealKafka
from tests.support.wire import RawClient

PATIENCE_S: Final = 60.0
PAUSE_S: Final = 0.1
METADATA_TOPIC: Final = "__cluster_metadata"
OFFSETS_TOPIC: Final = "__consumer_offsets"

R = TypeVar("R", bound=Response)
T = TypeVar("T")


class FailingCluster:
    """Three real brokers, and the ways in which they fail."""

    def __init__(self, kafka: RealKafka) -> None:
        self.kafka: Final = kafka
        self._absent: set[int] = set()

    @property
    def bootstrap_servers(self) -> str:
        return self.kafka.bootstrap_servers

    # --- Faults ---------------------------------------------------------------------------
    async def stop(self, node_id: int, sig: signal.Signals = signal.SIGKILL) -> None:
        """Kill a node, or have it shut down; returns when it is gone."""
        self._absent.add(node_id)
        await asyncio.to_thread(self.kafka.kill_node, node_id, sig)

    async def start(self, node_id: int) -> None:
        """Start a node that is gone; returns when it serves."""
        await asyncio.to_thread(self.kafka.start_node, node_id)
        self._absent.discard(node_id)

    def pause(self, node_id: int) -> None:
        """Have a node hang, with its connections open."""
        self._absent.add(node_id)
        self.kafka.pause_node(node_id)

    def resume(self, node_id: int) -> None:
        """Let a paused node go on."""
        self.kafka.resume_node(node_id)
        self._absent.discard(node_id)

    # --- Questions ------------------------------------------------------------------------
    async def _ask(self, request: Request[R], version: int | None = None) -> R:
        """Ask any broker that is there."""
        present = next(n for n in self.kafka.nodes if n not in self._absent)
        async with RawClient(f"127.0.0.1:{self.kafka.nodes[present].port}") as client:
            return await client.request(request, version)

    async def controller(self) -> int:
        """Return the node that is the active controller."""
        log = DescribeQuorumRequest.TopicData.PartitionData(partition_index=0)
        topic = DescribeQuorumRequest.TopicData(topic_name=METADATA_TOPIC, partitions=[log])
        answer = await self._ask(DescribeQuorumRequest(topics=[topic]))
        leader_id: int = answer.topics[0].partitions[0].leader_id
        return leader_id

    async def coordinator(self, key: str, key_type: int = 0) -> int:
        """Return the node that coordinates a group or transactional id (1); waits for one."""

        async def find() -> tuple[int, int]:
            request = FindCoordinatorRequest(coordinator_keys=[key], key_type=key_type)
            (found,) = (await self._ask(request)).coordinators
            return found.error_code, found.node_id

        return (await until(find, lambda found: found[0] == 0))[1]

    async def leaders(self, topic: str) -> dict[int, int]:
        """Return the leader of each partition."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
        (described,) = (await self._ask(request)).topics
        return {each.partition_index: each.leader_id for each in described.partitions}

    async def whole(self, *topics: str) -> None:
        """Wait until each partition has a leader and all its replicas in sync."""

        async def lagging() -> int:
            request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in topics])
            return sum(
                part.leader_id < 0 or len(part.isr_nodes) < len(part.replica_nodes)
                for topic in (await self._ask(request)).topics
                for part in topic.partitions
            )

        await until(lagging, lambda count: count == 0)

    # --- Changes --------------------------------------------------------------------------
    async def create(self, topic: str, partitions: int) -> None:
        """Create a topic whose partitions are led by the brokers in turn."""
        node_ids = sorted(self.kafka.nodes)
        assignments = [
            CreatableReplicaAssignment(
                partition_index=index,
                broker_ids=[node_ids[(index + step) % len(node_ids)] for step in range(3)],
            )
            for index in range(partitions)
        ]
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=topic,
                    num_partitions=-1,
                    replication_factor=-1,
                    assignments=assignments,
                )
            ],
            timeout_ms=10_000,
        )
        for result in (await self._ask(request)).topics:
            if result.error_code:
                raise for_code(result.error_code)(f"{topic}: {result.error_message}")
        await until(
            functools.partial(self.leaders, topic), lambda leaders: len(leaders) == partitions
        )
        await self.whole(topic)

    async def move(self, topic: str, index: int, node_id: int) -> None:
        """Have a node lead a partition that all nodes have, with nothing wrong anywhere."""
        others = [n for n in sorted(self.kafka.nodes) if n != node_id]
        partition = ReassignablePartition(partition_index=index, replicas=[node_id, *others])
        asked = ReassignableTopic(name=topic, partitions=[partition])
        request = AlterPartitionReassignmentsRequest(topics=[asked], timeout_ms=10_000)
        elected = [TopicPartitions(topic=topic, partitions=[index])]

        async def elect() -> int:
            answer = await self._ask(request)
            if answer.error_code:
                raise for_code(answer.error_code)(f"{answer.error_message}")
            await self._ask(ElectLeadersRequest(topic_partitions=elected, timeout_ms=10_000))
            return (await self.leaders(topic))[index]

        await until(elect, lambda leader_id: leader_id == node_id)

    async def elect_preferred(self) -> None:
        """Have every partition led by the first of its replicas again."""
        await self._ask(ElectLeadersRequest(topic_partitions=None, timeout_ms=10_000))


async def until(attempt: Callable[[], Awaitable[T]], is_so: Callable[[T], bool]) -> T:
    """Ask until the answer is as wanted; a broker that is just gone or coming is no answer."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    answer: object = None
    while asyncio.get_running_loop().time() < deadline:
        try:
            answer = found = await attempt()
        except (OSError, EOFError, KafkaError, IndexError) as error:
            answer = error
        else:
            if is_so(found):
                return found
        await asyncio.sleep(PAUSE_S)
    raise TimeoutError(f"after {PAUSE_S:g} s still {answer}")


def groups_together(names: Iterable[str], partitions: int) -> dict[str, str]:
    """Return a group's name for each name, all with their offsets in the same partition.

    So they have the same coordinator, whichever broker that is.
    """
    # Kafka takes the hash code of Java's String, modulo the partitions of __consumer_offsets.
    from aiokafka_lite.broker.topics import java_hash

    wanted = None
    groups = {}
    for name in names:
        number = 0
        while True:
            group = f"{name}-{number}"
            place = (java_hash(group) & 0x7FFFFFFF) % partitions
            if wanted is None or place == wanted:
                wanted = place
                groups[name] = group
                break
            number += 1
    return groups
