"""A member of a share group: its heartbeats, its sources, and the records that they lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from aiokafka_lite.client.backoff import LONGEST_BACKOFF_S, Backoff
from aiokafka_lite.consumer.membership.coordinator import Coordinator
from aiokafka_lite.consumer.membership.grouped import LEAVE_MAX_S
from aiokafka_lite.consumer.membership.kip848.member import MemberState
from aiokafka_lite.consumer.sharing.demand import Demand
from aiokafka_lite.consumer.sharing.leases import (
    AckType,
    LeasedRecords,
    LeaseRange,
    Leases,
    LostLeases,
    Record,
    RecordLease,
    SharePartition,
)
from aiokafka_lite.consumer.sharing.membership import ShareHeartbeat, ShareMember
from aiokafka_lite.consumer.sharing.source import ShareSource
from aiokafka_lite.errors import KafkaError, UnknownError
from aiokafka_lite.structs import TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite._chance import Chance
    from aiokafka_lite._tasks import TaskScope
    from aiokafka_lite.client.cluster import Cluster
    from aiokafka_lite.client.view import ClusterView
    from aiokafka_lite.consumer.events import Events
    from aiokafka_lite.consumer.membership.heartbeat_thread import OpenCluster
    from aiokafka_lite.consumer.sharing.config import ShareConfig

# The brokers' default (share.record.lock.duration.ms).
FIRST_LOCK_S: Final = 30.0


class Leasing:
    """Leases records for one consumer, from its start to its stop.

    Only as many as wanted are leased, because their locks begin at once. Leases are renewed until
    they are settled or lost, whether the application has the records or not.

    Attributes:
        leases: The table of leases, with its counts. Settle records by the methods here, which wake
            the tasks that send acknowledgements.
        topics: The subscription.
        lock_s: The time of a lock, as far as known.
    """

    def __init__(
        self,
        settings: ShareConfig,
        cluster: Cluster,
        scope: TaskScope,
        *,
        topics: Iterable[str],
        want: Callable[[], int],
        on_ready: Callable[[], None],
        on_lost: Callable[[LostLeases], None],
        on_error: Callable[[KafkaError], None],
        events: Events,
        rng: Chance,
        open_cluster: OpenCluster | None = None,
    ) -> None:
        """Create it in a running loop. The cluster is started, and closed, by the caller.

        Args:
            topics: The subscription, not empty.
            want: Returns how many records the application could begin with now, besides those that
                wait here: free handlers, or the number that a waiting read asks for. Call `wanted`
                when it grows.
            on_ready: Is called when records begin to wait for `take_nowait`.
            on_lost: Is called for leases of records that the application has, or has settled, that
                were lost. See LostLeases. It must not raise.
            on_error: Is called with each error that a retry will not fix, such as missing
                authorization. Retries continue, with pauses.
            open_cluster: Makes the client of the heartbeat thread. None: there is no thread.
        """
        self.settings, self.cluster, self.scope, self.rng = settings, cluster, scope, rng
        self.open_cluster = open_cluster
        self.topics = frozenset(topics)
        self.want, self.on_ready, self.surface = want, on_ready, on_error
        self._loop = asyncio.get_running_loop()
        self.lock_s = FIRST_LOCK_S
        self.leases = Leases(on_lost)
        self.demand = Demand(want, self.leases)
        self.coordinator = Coordinator(cluster, settings.group_id, events)
        self.member = ShareMember(settings.group_id, chance=rng)
        self.heartbeat = ShareHeartbeat(self, self.member)
        self._sources: dict[int, ShareSource] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        # By topic id and number.
        self._partitions: dict[tuple[bytes, int], SharePartition] = {}
        self._is_closing = False

    @property
    def member_id(self) -> str:
        return self.member.identity.member_id

    def new_backoff(self) -> Backoff:
        return Backoff(self.settings.retry_backoff_s, LONGEST_BACKOFF_S, self.rng)

    # --- Start ----------------------------------------------------------------------------
    def start(self) -> None:
        """Start to join and to fetch, in tasks of the scope."""
        self.cluster.watch(self, self.topics)
        self.cluster.add_listener(self.assigned)
        self.member.enter(MemberState.JOINING)
        self.heartbeat.start()

    async def wait_joined(self) -> None:
        while not self.member.is_member:
            await self.member.wait_for_change(None)

    def subscribe(self, topics: Iterable[str]) -> None:
        """Replace the subscription. It takes effect with the next assignment."""
        self.topics = frozenset(topics)
        self.cluster.watch(self, self.topics)
        self.member.notify()

    # --- The assignment -------------------------------------------------------------------
    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The assigned partitions whose leaders are known."""
        return frozenset(each.tp for each in self._partitions.values())

    @property
    def fetching_count(self) -> int:
        """The number of nodes with assigned partitions."""
        return sum(bool(source.partitions) for source in self._sources.values())

    def assigned(self, _: ClusterView | None = None) -> None:
        """Give each source its partitions, after a new assignment or new metadata.

        Topic ids without a name are kept, because the coordinator does not send them again.
        """
        if self._is_closing:
            return
        view, target = self.cluster.view, self.member.target or frozenset()
        is_complete = True
        partitions: dict[tuple[bytes, int], SharePartition] = {}
        for each in sorted(target):
            known = self._partitions.get(each)
            name = view.topic_names.get(each.topic_id)
            tp = known.tp if name is None and known else TopicPartition(name or "", each.number)
            leader = view.leader(tp)
            if leader is None:
                is_complete = False
                if known is not None:
                    partitions[each] = known
            elif known is not None and known.node_id == leader.leader:
                partitions[each] = known
            else:
                partitions[each] = SharePartition(each.topic_id, tp, leader.leader)
        before, self._partitions = self._partitions, partitions
        for key, former in before.items():
            if (now := partitions.get(key)) is former:
                continue
            source = self._sources[former.node_id]
            del source.partitions[key]
            if not source.partitions:
                source.failure = None
            if now is None:
                self.leases.release_waiting(former)
            else:
                why = f"the leader of {former.tp.topic}/{former.tp.partition} is another node"
                self.leases.lose_partition(former, why)
        for key, now in partitions.items():
            self._source(now.node_id).partitions[key] = now
        if not is_complete:
            self.cluster.invalidate()  # which has pauses of its own
        self.member.reconciled(is_done=is_complete)
        self.wanted()

    def _source(self, node_id: int) -> ShareSource:
        if (source := self._sources.get(node_id)) is None:
            source = self._sources[node_id] = ShareSource(self, node_id)
            name = f"share fetch from node {node_id}"
            self._tasks[node_id] = self.scope.spawn(source.run(), name=name)
        return source

    def dropped(self, reason: str) -> None:
        """Give up all, because the group has removed this member."""
        self._partitions = {}
        for source in self._sources.values():
            source.partitions.clear()
            source.drop(reason)

    def surface_if_permanent(self, error: KafkaError) -> None:
        # A broker also answers UNKNOWN_SERVER_ERROR while a topic is being deleted.
        if not error.retriable and not isinstance(error, UnknownError):
            self.surface(error)

    # --- Sources --------------------------------------------------------------------------
    def copy_sources(self) -> list[ShareSource]:
        """May be called by the heartbeat thread."""
        return list(self._sources.values())

    def take_turn(self) -> bool:
        return self.heartbeat.thread.take_turn()

    def share_demand(self) -> None:
        """Look whether it is another node's turn."""
        if len(self._sources) > 1:
            self.wanted()

    # --- Records --------------------------------------------------------------------------
    def wanted(self) -> None:
        """Look at `want` again, because it has grown."""
        for source in self._sources.values():
            source.wake()

    def take_nowait(self, most: int) -> list[LeasedRecords]:
        """Return at most so many records, without waiting. The application has them from now on."""
        return self.leases.take(most)

    def release_waiting(self) -> None:
        """Release what waits, and what fetches in flight bring while nothing is wanted."""
        self.leases.release_waiting()
        self.demand.read_nothing_ahead()
        for source in self._sources.values():
            source.leave()

    def put_back(self, taken: Sequence[LeasedRecords]) -> None:
        """Let records wait again, before all others: the read that has taken them was cancelled."""
        self.leases.put_back(taken)
        if self.leases.waiting_count:
            self.on_ready()

    def lease(self, lease_range: LeaseRange, record: Record) -> RecordLease:
        """Return the lease of one taken record, which `on_lost` will name."""
        return self.leases.lease(lease_range, record)

    # --- Acknowledgements -----------------------------------------------------------------
    def settle(self, lease: RecordLease, ack_type: AckType) -> bool:
        """Settle one record. Return False if it is settled already, or lost.

        The acknowledgement is sent within some milliseconds, unless a request is in flight.
        """
        is_settled = self.leases.settle(lease, ack_type)
        if is_settled:
            self._settled(lease.range, 1)
        return is_settled

    def settle_records(
        self, lease_range: LeaseRange, records: Sequence[Record], ack_type: AckType
    ) -> int:
        """Settle consecutive records of a range at once; return how many were held until now.

        Those that were settled, or lost, before are not changed.
        """
        count = self.leases.settle_records(lease_range, records, ack_type)
        if count:
            self._settled(lease_range, count)
        return count

    def _settled(self, lease_range: LeaseRange, count: int) -> None:
        now = self._loop.time()
        self.demand.note_settled(count, now)
        self._sources[lease_range.partition.node_id].settled(now)

    # --- End ------------------------------------------------------------------------------
    async def close(self, until: float) -> None:
        """Release all held records, acknowledge the settled ones, and leave the group.

        Requests in flight are awaited, and what they bring is released. Then the sessions are
        closed, and the member leaves. What is not done by `until` (loop time) is left to the
        broker, which releases the records when the connections close.
        """
        self._is_closing = True
        self.cluster.remove_listener(self.assigned)
        self.leases.release_all()
        for node_id, source in self._sources.items():
            source.close()
            if not source.is_connected:
                self.scope.cancel(self._tasks[node_id])
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=max(0.0, until - self._loop.time()))
        await self.heartbeat.end()
        await self.heartbeat.leave(min(until, self._loop.time() + LEAVE_MAX_S))
