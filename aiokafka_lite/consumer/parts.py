"""The parts of a consumer between start and stop: everything that needs brokers, and the tasks.

Their scopes are stopped in the order of SCOPE_NAMES (docs/design.md). A step of a stop that fails
or hangs does not prevent the next ones. At the end every task is cancelled and every socket closed,
without an await, so that no cancellation can interfere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from aiokafka_lite._chance import Chance
from aiokafka_lite._compat import override, timeout_at
from aiokafka_lite._tasks import Event, TaskScope
from aiokafka_lite._transaction import transaction_around
from aiokafka_lite._virtual import simulation_of
from aiokafka_lite.abc import AbstractTokenProvider
from aiokafka_lite.client.arguments import authenticator
from aiokafka_lite.client.backoff import LONGEST_BACKOFF_S, Backoff
from aiokafka_lite.client.cluster import Cluster, ignore_moves
from aiokafka_lite.client.config import DEFAULT_MAX_FRAME_BYTES
from aiokafka_lite.consumer.assignment.assignment import SubscriptionMode
from aiokafka_lite.consumer.assignment.work import in_words
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.fetching.sources import Sources
from aiokafka_lite.consumer.membership.none import NoGroup
from aiokafka_lite.consumer.positions.leader_requests import OffsetLookup
from aiokafka_lite.consumer.positions.resolver import LogEnds, PositionResolver, Watchdog
from aiokafka_lite.consumer.positions.topic_changes import TopicChanges
from aiokafka_lite.errors import (
    ConsumerStoppedError,
    IllegalStateError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.records.decoders import COMPILED, PLAIN_DECODER_NOTE

if TYPE_CHECKING:
    from aiokafka_lite.client.sasl import Mechanism
    from aiokafka_lite.consumer.assignment.cursor import Range
    from aiokafka_lite.consumer.commits.commits import Commits
    from aiokafka_lite.consumer.life import Engine
    from aiokafka_lite.consumer.membership.heartbeat_thread import OpenCluster
    from aiokafka_lite.consumer.membership.protocol import Membership, Offsets
    from aiokafka_lite.structs import TopicPartition

log = logging.getLogger(__name__)

SCOPE_NAMES: Final = ("fetch", "positions", "group", "cluster")
# Of a fetch response besides the records: some tens of bytes for each partition.
FRAME_OVERHEAD_BYTES: Final = 1 << 20
# Each step of a stop gets this even when the time is used up: most need no network.
LEAST_STEP_S: Final = 0.05
# A heartbeat of the thread may be tried again within a session, perhaps at another broker.
ATTEMPTS_IN_A_SESSION: Final = 4

FIRST_TOPIC_RETRY_S: Final = 0.1
# The application's part of the time to stop. The rest is for commits and the group.
WORK_SHARE: Final = 0.8

T = TypeVar("T")


class Scopes(NamedTuple):
    fetching: TaskScope
    positions: TaskScope
    grouping: TaskScope
    connecting: TaskScope


@cache
def warn_of_plain_decoder() -> None:
    if not COMPILED:
        log.warning("%s", PLAIN_DECODER_NOTE)


class Running:
    def __init__(self, engine: Engine) -> None:
        warn_of_plain_decoder()
        self._engine, self._core = engine, engine.core
        core, config, rng = engine.core, engine.core.config, engine.core.rng
        self._config, self._state = config, core.state
        self._loop = asyncio.get_running_loop()
        # How the stop ends the membership, and the offsets that it commits.
        self._is_clean, self._leaves = True, None  # type: bool, bool | None
        self._to_commit: Offsets = {}
        # Offsets that the stop could not commit, as far as known.
        self.uncommitted: Offsets = {}
        # Of all parts, even if they begin later. The engine closes it with the parts.
        self.observers = core.observers.collect()
        core.observers.assignment_changed.add(self._watch_topics)
        core.observers.subscription_changed.add(self._watch_topics)
        on_failure, on_restart = engine.on_failure, engine.on_restart
        self.scopes = Scopes(
            *(TaskScope(name, on_failure=on_failure, on_restart=on_restart) for name in SCOPE_NAMES)
        )
        client = config.client_config(max_frame_bytes=max_frame_bytes(config))
        self._mechanism = mechanism_of(config, rng)
        self.cluster = Cluster(
            client,
            scope=self.scopes.connecting,
            rng=rng,
            authenticate=authenticator(self._mechanism, client),
        )
        self.cluster.pool.on_reachability = engine.on_reachability
        self.lookup = OffsetLookup(config, self.cluster, self.scopes.connecting, rng)
        self.topic_changes = TopicChanges(core)
        self.cluster.add_listener(self.topic_changes.view_changed, on_moves=ignore_moves)
        # None: there is no group.
        self.commits: Commits | None = None
        self.membership: Membership
        # Starts a membership that has replaced the first one.
        self._starting: asyncio.Task[None] | None = None
        if config.group_id is None:
            self.membership = NoGroup(core, self.cluster)
        else:
            self.commits, self.membership = self._make_group(config.group_id)
        self.sources = Sources(core, self.cluster, self.scopes.fetching)
        self.resolver = PositionResolver(
            core,
            self.cluster,
            self.lookup,
            self.commits,
            self.topic_changes,
            self.scopes.positions,
        )
        self.topic_changes.reset_by_policy = self.resolver.reset_by_policy
        log_ends = LogEnds(core, self.cluster, self.lookup, self.sources, self.scopes.positions)
        self.watchdog = Watchdog(core, self.cluster, log_ends, self.resolver)

    def _make_group(self, group_id: str) -> tuple[Commits, Membership]:
        # Only consumers in a group need most of these modules.
        from aiokafka_lite.consumer.commits.commits import Commits
        from aiokafka_lite.consumer.membership.choice import member_of
        from aiokafka_lite.consumer.membership.coordinator import Coordinator
        from aiokafka_lite.consumer.membership.protocol import Surroundings

        core, config = self._core, self._config
        coordinator = Coordinator(self.cluster, group_id, core.events)
        known_as = _known_as(config, self._engine.parts)
        member, make_membership = member_of(config, group_id, known_as=known_as, chance=core.rng)
        commits = Commits(core, self.cluster, coordinator, member)
        around = Surroundings(
            core,
            self.cluster,
            coordinator,
            commits,
            self.scopes.grouping,
            self._replace_membership,
            open_cluster=opener_of(config, self._mechanism),
        )
        return commits, make_membership(around)

    def _replace_membership(self, membership: Membership) -> None:
        self.membership = membership
        self._starting = self.scopes.grouping.spawn(membership.start(), name="group protocol")

    async def wait_assigned(self) -> None:
        """See Membership. A membership that replaces this one has to have an assignment, too."""
        membership: Membership | None = None
        while membership is not self.membership:
            if self._starting is not None:
                await asyncio.wait({self._starting})
            membership = self.membership
            try:
                await membership.wait_assigned()
            except ConsumerStoppedError:
                if membership is self.membership:
                    raise

    def _watch_topics(self) -> None:
        self._state.watch_topics(self.cluster)

    # --- Start ----------------------------------------------------------------------------
    async def connect_and_start(self) -> None:
        config, state = self._config, self._state
        self._engine.probe.start()
        self._watch_topics()  # before the first answer, which then has them
        is_needed = state.is_subscribed or state.assignment
        await self.cluster.start(group_id=config.group_id if is_needed else None)
        if state.mode is SubscriptionMode.TOPICS:
            await self._wait_for_topics()
        self.sources.start()
        self.cluster.add_listener(self.resolver.view_changed, on_moves=self.resolver.leaders_moved)
        self.scopes.positions.supervise(self.resolver.run, name="positions")
        self.scopes.positions.supervise(self.watchdog.run, name="watchdog")
        if self.commits is not None:
            self.commits.start_auto_commit(self.scopes.grouping)
        await self.membership.start()
        await self.wait_assigned()

    async def _wait_for_topics(self) -> None:
        cluster = self.cluster
        deadline = self._loop.time() + self._config.request_timeout_s
        backoff = Backoff(FIRST_TOPIC_RETRY_S, LONGEST_BACKOFF_S, self._core.rng)
        missing = sorted(self._state.subscription or ())
        view = cluster.view
        try:
            async with timeout_at(deadline):
                while True:
                    for topic in missing:
                        topic_view = view.topics.get(topic)
                        error = None if topic_view is None else topic_view.error
                        if error is not None and not error.retriable:
                            raise error(f"the brokers refuse to return metadata of topic {topic!r}")
                    missing = [t for t in missing if not view.partitions_for_topic(t)]
                    if not missing:
                        return
                    await asyncio.sleep(backoff.next_delay_s())
                    view = await cluster.refresh()
        except asyncio.TimeoutError:
            names = ", ".join(repr(topic) for topic in missing)
            unknown = cluster.unknown_topics.text(missing)
            raise UnknownTopicOrPartitionError(
                f"topic {names} was not found within {self._config.request_timeout_ms} "
                f"ms{f' ({unknown})' if unknown else ''}: create it, or check its name and the "
                "cluster's auto.create.topics.enable"
            ) from None

    # --- Stop -----------------------------------------------------------------------------
    def stop_as(self, *, is_clean: bool, leaves: bool | None) -> None:
        self._is_clean, self._leaves = is_clean, leaves

    async def finish(self, timeout_s: float | None) -> None:
        core, config = self._core, self._config
        if core.works.begun or core.works.undecided(self._state.assignment):
            now, left_s = self._loop.time(), timeout_s or 0.0
            work_s = left_s * WORK_SHARE if self._is_clean else 0.0
            await self._finish_works(now + work_s, now + left_s)
        if config.enable_auto_commit and config.group_id is not None:
            finished = core.finished
            self._to_commit = (
                finished.finished_offsets() if self._is_clean else finished.processed_offsets()
            )

    async def _finish_works(self, until: float, deadline: float) -> None:
        processing = self._core.reads.processing
        if processing is None or not processing.is_always_asking:
            self._core.gate.refuse(self._engine.stopped)
            if self._config.group_id is not None:
                await self._until_finished(until)
        if processing is not None:
            await processing.end(until, deadline)

    async def _until_finished(self, until: float) -> None:
        """Wait for works and transactions as a rebalance does, but not for the caller's own."""
        core = self._core
        works, assigned = core.works, self._state.assignment
        now, caller = self._loop.time(), asyncio.current_task()
        around, hold_s = transaction_around(), self._config.rebalance_hold_s
        limits = {
            work: min(until, now + (hold_s if work.hold_s is None else work.hold_s))
            for work in works.begun
            if not work.is_of(caller)
        }
        of_transactions = min(until, now + hold_s)

        def undone() -> list[tuple[Mapping[TopicPartition, Range], float]]:
            found = [
                (work.undone(assigned), limit) for work, limit in limits.items() if work.is_open
            ]
            undecided = works.undecided(assigned, besides=around)
            return [each for each in (*found, (undecided, of_transactions)) if each[0]]

        left = undone()
        if not left or until <= now:
            return
        log.info(
            "stopping: the application has up to %.1f s to finish %s",
            max(limit for _, limit in left) - now,
            in_words(ranges for ranges, _ in left),
        )
        for work, limit in limits.items():
            work.is_wanted_by(limit)
        acted = Event()
        core.observers.subscription_changed.add(acted.set)  # forgotten with the parts
        core.observers.acted.add(acted.set)
        while waiting := [limit for _, limit in undone() if limit > self._loop.time()]:
            acted.clear()
            await acted.wait(min(waiting))
        if left := undone():
            log.warning(
                "stopping: the application did not finish all records in time. The partitions' "
                "next owners will read these offsets again: %s",
                in_words(ranges for ranges, _ in left),
            )

    async def stop(self, deadline: float) -> None:
        self._engine.probe.stop()
        self.uncommitted = self._left_to_commit()
        try:
            self.uncommitted = await self._stop_in_order(deadline)
        except BaseException:
            self.uncommitted = self._left_to_commit()
            self._abort()  # first of all: the waits that follow may be cancelled as well
            await self._end(0.0)
            raise
        finally:
            self._abort()

    def give_up(self) -> None:
        """End all at once. Nothing is committed: how far the application got is unknown."""
        self.sources.close()
        self.membership.leave_nowait("the consumer was garbage-collected without stop()")
        self._abort()

    def drop(self) -> None:
        for scope in self.scopes:
            scope.drop_all()
        self.cluster.pool.hang_up()

    def _abort(self) -> None:
        for scope in self.scopes:
            scope.cancel_all()
        self.cluster.abort()
        self.membership.wake_waiters()
        self._engine.probe.stop()
        self.observers.close()
        self._core.buffer.clear()

    async def _stop_in_order(self, deadline: float) -> Offsets:
        # First of all: the offsets are of the present assignment, not of one that is on its way.
        self.membership.halt()
        self.sources.close()
        await bounded(self.scopes.fetching.close(), deadline, "stop fetching")
        await bounded(self.scopes.positions.close(), deadline, "stop looking up positions")
        leaving = self.membership.leave(
            deadline=deadline, offsets=self._to_commit, leaves=self._leaves
        )
        uncommitted = await bounded(leaving, deadline, "leave the group")
        await self._end(deadline)
        return self._left_to_commit() if uncommitted is None else uncommitted

    def _left_to_commit(self) -> Offsets:
        return {} if self.commits is None else self.commits.left_to_commit(self._to_commit)

    async def _end(self, deadline: float) -> None:
        for scope in (self.scopes.fetching, self.scopes.positions, self.scopes.grouping):
            await bounded(scope.close(), deadline, f"end {scope.name} tasks")
        await bounded(self.cluster.close(), deadline, "close connections")
        await bounded(self.scopes.connecting.close(), deadline, "end cluster tasks")


def _known_as(config: ConsumerConfig, before: Running | None) -> str:
    """Return the member id of an earlier start that failed, or "": the group may have that member.

    So no rebalance of the classic protocol waits for its session.
    """
    status = None if before is None else before.membership.status
    if before is None or status is None:
        return ""
    is_classic = config.joins_as == "classic"
    if status.protocol != ("classic" if is_classic else "consumer"):
        return ""
    # Of a static member the coordinator knows the place by the instance id.
    return "" if is_classic and config.group_instance_id else before.membership.member_id


async def bounded(step: Awaitable[T], deadline: float, name: str) -> T | None:
    loop = asyncio.get_running_loop()
    try:
        async with timeout_at(max(deadline, loop.time() + LEAST_STEP_S)):
            return await step
    except asyncio.TimeoutError:
        log.warning("stop() continues, although its step %r did not finish in time", name)
    except Exception as error:  # noqa: BLE001 -- whatever it was, the next steps must run
        log.warning("stop() continues, although its step %r failed with %r", name, error)
    return None


def max_frame_bytes(config: ConsumerConfig) -> int:
    records = max(config.fetch_max_bytes, config.max_partition_fetch_bytes)
    return max(DEFAULT_MAX_FRAME_BYTES, records + FRAME_OVERHEAD_BYTES)


def opener_of(config: ConsumerConfig, mechanism: Mechanism | None) -> OpenCluster | None:
    """Return the function that makes the heartbeat thread's client. None: there is no thread."""
    is_simulated = simulation_of(asyncio.get_running_loop()) is not None
    if not config.heartbeat_thread or is_simulated:
        return None
    # Imported now: a loop that is blocked in an import would keep the thread waiting.
    from aiokafka_lite.client.blocking_cluster import BlockingCluster

    client = config.client_config(
        max_frame_bytes=max_frame_bytes(config),
        at_most_s=config.session_timeout_s / ATTEMPTS_IN_A_SESSION,
    )
    return partial(BlockingCluster, client, mechanism=mechanism)


class SharedTokens(AbstractTokenProvider):
    """Asks a provider on the event loop that it belongs to. Other threads get the latest token."""

    def __init__(self, provider: AbstractTokenProvider) -> None:
        self._provider = provider
        self._loop = asyncio.get_running_loop()
        # Written on that loop.
        self._latest: tuple[str, dict[str, str]] | None = None

    @override
    async def token(self) -> str:
        if asyncio.get_running_loop() is self._loop:
            self._latest = await self._provider.token(), self._provider.extensions()
        elif self._latest is None:
            raise IllegalStateError(
                "the heartbeat thread has no OAuth token: the consumer's event loop has not "
                "received one from the token provider yet"
            )
        return self._latest[0]

    @override
    def extensions(self) -> dict[str, str]:
        return {} if self._latest is None else self._latest[1]


def mechanism_of(config: ConsumerConfig, chance: Chance) -> Mechanism | None:
    provider = config.sasl_oauth_token_provider
    if provider is not None and config.heartbeat_thread:
        provider = SharedTokens(provider)
    return config.mechanism(provider, chance)
