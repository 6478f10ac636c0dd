"""A consumer's group part on its own: subscription, commits and membership, no fetching."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Generic, TypeVar, cast

from aiokafka_lite._compat import Self, timeout
from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.config import ClientConfig
from aiokafka_lite.consumer.assignors import RebalanceProtocol, RoundRobinPartitionAssignor
from aiokafka_lite.consumer.commits.commits import Commits
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.membership.classic.member import Member
from aiokafka_lite.consumer.membership.classic.membership import ClassicMembership
from aiokafka_lite.consumer.membership.classic.rebalance import common_protocol
from aiokafka_lite.consumer.membership.coordinator import Coordinator
from aiokafka_lite.consumer.membership.kip848.member import ConsumerMember
from aiokafka_lite.consumer.membership.kip848.membership import ConsumerMembership
from aiokafka_lite.consumer.membership.protocol import Membership, Surroundings
from aiokafka_lite.consumer.membership.stateful import GroupMember
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.support.states import NotedGate, State
from tests.support.waiting import PATIENCE_S

MemberT = TypeVar("MemberT", bound=GroupMember)
MembershipT = TypeVar("MembershipT", bound=Membership)


class GroupWorker(ABC, Generic[MemberT, MembershipT]):
    """One member of a group; use it in an `async with`, or `start` and `close` it."""

    def __init__(
        self,
        bootstrap_servers: str,
        group_id: str,
        topics: Iterable[str] = (),
        settings: Mapping[str, object] | None = None,
        *,
        listener: ConsumerRebalanceListener | None = None,
    ) -> None:
        make_config = cast("Callable[..., ConsumerConfig]", ConsumerConfig)
        self.config = make_config(
            bootstrap_servers=bootstrap_servers,
            group_id=group_id,
            **{
                "partition_assignment_strategy": (RoundRobinPartitionAssignor,),
                "heartbeat_interval_ms": 100,
                "session_timeout_ms": 6000,
                "enable_auto_commit": False,
                "retry_backoff_ms": 20,
                **(settings or {}),
            },
        )
        self.failed = asyncio.Event()
        self.scope = TaskScope(group_id, on_failure=lambda _: self.failed.set())
        self.state = State()
        if topics:
            self.state.subscribe(topics, listener)
        rng = random.Random(0)
        self.cluster = Cluster(
            ClientConfig(
                bootstrap_servers=bootstrap_servers,
                request_timeout_s=self.config.request_timeout_s,
                metadata_max_age_s=self.config.metadata_max_age_s,
            ),
            scope=self.scope,
            rng=rng,
        )
        self.state.observers.subscription_changed.add(lambda: self.state.watch_topics(self.cluster))
        self.state.gate = gate = NotedGate()
        self.errors, self.listener_errors = gate.posted, gate.posted_to_poll
        self.member = self._make_member(group_id)
        coordinator = Coordinator(self.cluster, group_id, self.state.events)
        self.commits = Commits(
            self.state.core(self.config, rng=rng), self.cluster, coordinator, self.member
        )
        self.membership = self._make_membership(
            Surroundings(
                self.state.core(self.config, rng=rng),
                self.cluster,
                coordinator,
                self.commits,
                self.scope,
                replace=lambda _: None,
            )
        )

    @abstractmethod
    def _make_member(self, group_id: str) -> MemberT:
        """Make the member."""

    @abstractmethod
    def _make_membership(self, around: Surroundings) -> MembershipT:
        """Make its membership."""

    @property
    def partitions(self) -> set[TopicPartition]:
        return set(self.state.assignment)

    async def start(self) -> Self:
        """Connect and join."""
        await self.connect()
        async with timeout(PATIENCE_S):
            await self.membership.wait_assigned()
        return self

    async def connect(self) -> None:
        """Connect, and begin to join."""
        await self.cluster.start()
        self.state.watch_topics(self.cluster)
        await self.cluster.refresh()
        await self.membership.start()
        self.commits.start_auto_commit(self.scope)

    async def leave(
        self, timeout_s: float = 5.0, *, commit: bool = False, leaves: bool | None = None
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Leave as a clean stop does; return what was not committed."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        offsets = self.state.finished.handed_out_offsets() if commit else {}
        return await self.membership.leave(deadline=deadline, offsets=offsets, leaves=leaves)

    async def die(self) -> None:
        """Go without a word, as a killed process does."""
        await self.scope.close()
        await self.cluster.close()

    async def close(self) -> None:
        await self.leave()
        await self.die()

    async def __aenter__(self) -> Self:
        try:
            return await self.start()
        except BaseException:
            await self.die()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def work(self, tp: TopicPartition, count: int, *, leader_epoch: int = 0) -> None:
        """Be handed `count` records of a partition, as by one get."""
        partition = self.state.partition(tp)
        if partition.position is None:
            self.state.seek(partition, 0)
        assert partition.position is not None
        self.state.reads.begin_get()
        end = partition.position + count
        self.state.reads.hand_out(partition, partition.position, end, ((0, leader_epoch),))


class Worker(GroupWorker[Member, ClassicMembership]):
    """A member of a classic group."""

    def _make_member(self, group_id: str) -> Member:
        protocol = common_protocol(self.config.partition_assignment_strategy)
        is_cooperative = protocol is RebalanceProtocol.COOPERATIVE
        return Member(group_id, self.config.group_instance_id, is_cooperative=is_cooperative)

    def _make_membership(self, around: Surroundings) -> ClassicMembership:
        return ClassicMembership(around, self.member)


class EpochWorker(GroupWorker[ConsumerMember, ConsumerMembership]):
    """A member of a group of KIP-848."""

    def _make_member(self, group_id: str) -> ConsumerMember:
        return ConsumerMember(group_id, self.config.group_instance_id)

    def _make_membership(self, around: Surroundings) -> ConsumerMembership:
        return ConsumerMembership(around, self.member)
