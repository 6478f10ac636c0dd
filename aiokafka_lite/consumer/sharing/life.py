"""A share consumer's engine: its stages (client/life.py), and its parts between start and stop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from aiokafka_lite._chance import Chance
from aiokafka_lite._compat import override
from aiokafka_lite._tasks import Event, TaskScope, own_copy
from aiokafka_lite.client.arguments import authenticator
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.life import Owner, Stage
from aiokafka_lite.consumer.assignment.works import PROCESSING_TOTALS
from aiokafka_lite.consumer.events import Events
from aiokafka_lite.consumer.life import ConsumerLife
from aiokafka_lite.consumer.parts import (
    bounded,
    max_frame_bytes,
    mechanism_of,
    opener_of,
    warn_of_plain_decoder,
)
from aiokafka_lite.consumer.sharing.config import ShareConfig
from aiokafka_lite.consumer.sharing.leases import AckType, LeasedRecords, LostLeases
from aiokafka_lite.consumer.sharing.sharing import Leasing
from aiokafka_lite.errors import IllegalStateError
from aiokafka_lite.events import LeaseLost, OffsetRange

if TYPE_CHECKING:
    from aiokafka_lite.consumer.membership.heartbeat_thread import OpenCluster

# The handlers' part of the time to stop. The rest is for acknowledgements and the group.
WORK_SHARE: Final = 0.8


class Use(Protocol):
    """What the application does with leased records: reads, or one `run`."""

    max_lease_s: float

    def want(self) -> int:
        """Return how many records could begin now."""

    def lost(self, lost: LostLeases) -> None: ...

    async def end(self, until: float, deadline: float, *, is_clean: bool) -> None:
        """Wait for the application until a loop time, and then settle its records.

        Not clean: an exception of the application has caused the stop.
        """


class ShareEngine(ConsumerLife["ShareParts"]):
    """A share consumer without its public methods.

    Attributes:
        topics: The subscription.
        use: What leases records.
        changed: Records may have arrived, or reads may raise: for tasks that wait for records.
        totals: Counts of `run`, as in `AIOKafkaConsumer.metrics()`.
    """

    kind = "share consumer"

    def __init__(self, config: ShareConfig, events: Events, rng: Chance) -> None:
        super().__init__(self._make_parts, events)
        self.config, self.rng = config, rng
        self.topics: frozenset[str] = frozenset()
        self.use: Use
        self.changed = Event()
        self.totals = {**dict.fromkeys(PROCESSING_TOTALS, 0), "rejected_total": 0}
        self.record_count = self.lost_count = 0
        self.lost_at: float | None = None
        # The error that ended `run`, in words, until `run` or a read is called again.
        self.run_failure = ""
        self.owner = Owner(self.kind, self._loop, self.changed.set)
        # An error that retries do not fix. One read raises it.
        self._posted: BaseException | None = None

    def _make_parts(self) -> ShareParts:
        return ShareParts(self)

    @override
    def _entered(self, stage: Stage) -> None:
        self.changed.set()
        if stage in (Stage.STOPPED, Stage.ABANDONED):
            self.events.close()

    def use_for(self, use: Use) -> None:
        """Let another use have the records from now on."""
        self.use = use
        if self.current is not None:
            self.current.apply_limit()
        self.changed.set()

    # --- Called by Leasing ----------------------------------------------------------------
    def want(self) -> int:
        return 0 if self.is_stopping or self.error is not None else self.use.want()

    def lost(self, lost: LostLeases) -> None:
        self.lost_count += lost.record_count
        self.lost_at = self._loop.time()
        for first, last in lost.offsets:
            offsets = OffsetRange(first, last + 1)
            tp, delivery_count = lost.range.partition.tp, lost.range.delivery_count
            self.events.publish(LeaseLost(tp, offsets, delivery_count, lost.reason))
        self.use.lost(lost)

    def refused(self, error: BaseException) -> None:
        self._posted = error
        self.changed.set()

    # --- Records --------------------------------------------------------------------------
    @property
    def leasing(self) -> Leasing:
        """Raises ConsumerStoppedError, or IllegalStateError before the start or a subscription."""
        if (leasing := self.running.leasing) is None:
            raise IllegalStateError(
                "Not subscribed to any topics: pass topics to the constructor, or call subscribe()"
            )
        return leasing

    def check(self) -> None:
        """Raise the first error that applies."""
        if self.owner.is_forked:
            raise self.owner.refusal()
        if self.is_stopping:
            raise self.stopped()
        if self.error is not None:
            raise own_copy(self.error)
        if self._posted is not None:
            error, self._posted = self._posted, None
            raise error.with_traceback(None)

    def release_waiting(self) -> None:
        """Let other members have the records that wait here, or come while none is wanted."""
        if self.current is not None and self.current.leasing is not None:
            self.current.leasing.release_waiting()

    def settle(self, taken: LeasedRecords, ack_type: AckType) -> None:
        parts = self.parts
        if parts is not None and parts.leasing is not None:
            parts.leasing.settle_records(taken.range, taken.records, ack_type)

    # --- Stop -----------------------------------------------------------------------------
    async def stop_as(self, timeout_s: float, *, is_clean: bool) -> None:
        if not self.is_stopping and self.current is not None:
            self.current.is_clean = is_clean
        await self.stop(timeout_s)


class ShareScopes(NamedTuple):
    sharing: TaskScope
    connecting: TaskScope


class ShareParts:
    """The tasks and connections of one start."""

    def __init__(self, engine: ShareEngine) -> None:
        warn_of_plain_decoder()
        self._engine = engine
        self._config = config = engine.config
        self._loop = asyncio.get_running_loop()
        # Whether the stop accepts the records of implicit reads.
        self.is_clean = True
        on_failure, on_restart = engine.on_failure, engine.on_restart
        self.scopes = ShareScopes(
            TaskScope("sharing", on_failure=on_failure, on_restart=on_restart),
            TaskScope("cluster", on_failure=on_failure, on_restart=on_restart),
        )
        client = config.client_config(max_frame_bytes=max_frame_bytes(config))
        mechanism = mechanism_of(config, engine.rng)
        self.cluster = Cluster(
            client,
            scope=self.scopes.connecting,
            rng=engine.rng,
            authenticate=authenticator(mechanism, client),
        )
        self.cluster.pool.on_reachability = engine.on_reachability
        self._open_cluster: OpenCluster | None = opener_of(config, mechanism)
        # None: there is no subscription yet.
        self.leasing: Leasing | None = None

    # --- Start ----------------------------------------------------------------------------
    async def connect_and_start(self) -> None:
        await self.cluster.start(group_id=self._config.group_id)
        if self._engine.topics:
            self._lease(self._engine.topics)
            await self._until_joined()

    async def _until_joined(self) -> None:
        """Wait until the group has this member, or refuses it."""
        assert self.leasing is not None  # noqa: S101 -- it has begun
        changed = self._engine.changed
        joining = self.scopes.sharing.spawn(self.leasing.wait_joined(), name="joining")
        joining.add_done_callback(lambda _: changed.set())
        try:
            while not joining.done():
                self._engine.check()
                changed.clear()
                await changed.wait()
        finally:
            await self.scopes.sharing.stop(joining)
        self.scopes.sharing.raise_if_failed()

    def subscribe(self, topics: Iterable[str]) -> None:
        if self.leasing is not None:
            self.leasing.subscribe(topics)
        else:
            self._lease(topics)

    def _lease(self, topics: Iterable[str]) -> None:
        engine = self._engine
        self.leasing = Leasing(
            self._config,
            self.cluster,
            self.scopes.sharing,
            topics=topics,
            want=engine.want,
            on_lost=engine.lost,
            on_ready=engine.changed.set,
            on_error=engine.refused,
            events=engine.events,
            rng=engine.rng,
            open_cluster=self._open_cluster,
        )
        self.leasing.start()
        self.apply_limit()

    def apply_limit(self) -> None:
        if self.leasing is not None:
            self.leasing.leases.max_lease_s = self._engine.use.max_lease_s
            self.leasing.wanted()

    # --- Stop -----------------------------------------------------------------------------
    async def finish(self, timeout_s: float | None) -> None:
        now, left_s, is_clean = self._loop.time(), timeout_s or 0.0, self.is_clean
        work_s = left_s * WORK_SHARE if is_clean else 0.0
        await self._engine.use.end(now + work_s, now + left_s, is_clean=is_clean)

    async def stop(self, deadline: float) -> None:
        try:
            if self.leasing is not None:
                await bounded(self.leasing.close(deadline), deadline, "leave the group")
            await bounded(self.scopes.sharing.close(), deadline, "end sharing tasks")
            await bounded(self.cluster.close(), deadline, "close connections")
            await bounded(self.scopes.connecting.close(), deadline, "end cluster tasks")
        finally:
            self.give_up()

    def give_up(self) -> None:
        for scope in self.scopes:
            scope.cancel_all()
        self.cluster.abort()

    def drop(self) -> None:
        for scope in self.scopes:
            scope.drop_all()
        self.cluster.pool.hang_up()
