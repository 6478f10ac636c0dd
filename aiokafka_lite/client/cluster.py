"""A client's view of its cluster, kept current by one task.

Only the refresh task requests metadata, with a backoff that grows while refreshes keep being
needed. Others read ``view``, an immutable snapshot, or listen for the next one.

    requested                                  when
    all watched topics                         the view is stale or too old, or a leader is missing
    newly watched topics, those of waiting     otherwise: the response is merged into the view
    callers, and incomplete ones               (as Java's partial updates, KIP-526)

If every known broker is unreachable, the bootstrap servers are asked again (KIP-899).
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from aiokafka_lite._compat import Never, timeout, timeout_at
from aiokafka_lite._tasks import Event, TaskScope
from aiokafka_lite.client.backoff import Backoff
from aiokafka_lite.client.cluster_requests import (
    GROUP_COORDINATOR,
    MAX_METADATA_WAIT_S,
    PASSING_ERRORS,
    coordinator_of,
    coordinator_request,
    metadata_request,
    no_usable_broker,
    raise_for_metadata,
    raise_for_rebootstrap,
    reason,
)
from aiokafka_lite.client.config import ClientConfig, parse_bootstrap_servers
from aiokafka_lite.client.connection import Authenticate
from aiokafka_lite.client.lanes import Lane
from aiokafka_lite.client.pool import Pool
from aiokafka_lite.client.view import ClusterView, Node
from aiokafka_lite.client.watched_topics import UnknownTopics, WatchedTopics
from aiokafka_lite.errors import (
    BrokerResponseError,
    ClientClosedError,
    IncompatibleBrokerVersion,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    NodeNotReadyError,
    RebootstrapRequiredError,
    RequestTimedOutError,
    StaleMetadata,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.metadata import MetadataRequest, MetadataResponse
from aiokafka_lite.protocol.prepared import AnyRequest
from aiokafka_lite.protocol.schema import Request, Response
from aiokafka_lite.structs import TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.protocol.messages.metadata import FindCoordinatorResponse

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Response)

REFRESH_TASK: Final = "cluster refresh"
# The part of the time to start within which attempts to connect end.
ATTEMPTS_SHARE: Final = 0.9
# The range of the longest pause between two refreshes while a leader is missing.
SEARCH_PAUSE_S: Final = (0.1, 0.2)
# The time of the first attempt: a part of the remaining time, between these. Each attempt without a
# response doubles it for the node.
TRY_SHARE: Final = 0.25
LEAST_TRY_S: Final = 2.0
MOST_TRY_S: Final = 10.0
MOST_SILENCES: Final = 4
# The least timeout, with which requests fail with their own errors.
LEAST_S: Final = 0.001
# How long a limit may be exceeded, because the operations in it have better errors.
SLACK_S: Final = 0.05

# The time to list all topics, to find a similar name for a wrong one.
MAX_NAMES_WAIT_S: Final = 2.0
# The time to ask all other nodes for a coordinator.
MAX_ELSEWHERE_S: Final = 5.0
# Of Metadata (KIP-516).
FIRST_WITH_TOPIC_IDS: Final = 10

Listener = Callable[[ClusterView], None]
# Its argument: the topics that may have changed.
TopicsListener = Callable[[ClusterView, Collection[str]], None]
# Its argument: the partitions with another leader.
MovesListener = Callable[[ClusterView, Collection[TopicPartition]], None]


class Listening(NamedTuple):
    """A listener's callbacks for smaller changes. Without one, the listener itself is called."""

    on_topics: TopicsListener | None
    on_moves: MovesListener | None


class Waiter(NamedTuple):
    answered: asyncio.Future[ClusterView]
    topics: frozenset[str] | None


class Cluster:
    """A client's view of the cluster, and its connections, for one event loop.

    Call ``close`` also after a failed start. The refresh task writes `unknown_topics` and
    `has_topic_ids`.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        scope: TaskScope,
        rng: random.Random,
        authenticate: Authenticate | None = None,
        level: int = logging.WARNING,
        view: ClusterView | None = None,
    ) -> None:
        """`view` is what an earlier cluster of the same client has learned."""
        self.config = config
        self.pool = Pool(config, scope=scope, rng=rng, authenticate=authenticate, level=level)
        self._loop = asyncio.get_running_loop()
        self.scope = scope
        self._rng = rng
        self._bootstrap_nodes = [
            Node(-1 - index, address.host, address.port)
            for index, address in enumerate(parse_bootstrap_servers(config.bootstrap_servers))
        ]
        self.view = ClusterView() if view is None else view
        self._listeners: dict[Listener, Listening] = {}
        self._watched = WatchedTopics()
        # Watched topics that have existed: a request must not recreate them.
        self._seen: set[str] = set()
        self.unknown_topics = UnknownTopics()
        self._refresher: asyncio.Task[Never] | None = None
        # A group whose coordinator is requested with the first metadata, and the request.
        self._first_group: str | None = None
        self._early_lookup: asyncio.Task[FindCoordinatorResponse | None] | None = None
        self._is_closed = False
        # Written by callers that need a refresh; the refresh task resets them when it sends.
        self._is_stale = False
        self._is_leader_missing = False
        self._waiters: list[Waiter] = []
        self._wake = Event()
        # Topics of the view that another request may complete.
        self._incomplete: set[str] = set()
        # Written by the refresh task.
        self._answered_at = -math.inf
        self._spacing = self._new_backoff()
        self._spacing_s = 0.0
        self._last_error: KafkaError | None = None
        # Whether the pool has the bootstrap servers: until metadata arrive.
        self._is_bootstrapping = not self.view.nodes
        self.has_topic_ids = True
        # The node of the latest metadata, and those with older leader epochs.
        self._answered_by = -1
        self._outdated: frozenset[int] = frozenset()
        # By node and request: consecutive attempts without a response.
        self._silences: dict[tuple[int, type[Request[Response]]], int] = {}
        self._update_pool()

    # --- Starting and closing --------------------------------------------------------------
    async def start(self, *, group_id: str | None = None) -> None:
        """Connect to the cluster through its bootstrap servers and start refreshing the view.

        The servers are tried concurrently, in random order, and again only if one accepted a
        connection but did not respond. TLSError is raised if TLS failed with every server. The
        coordinator of `group_id` is requested with the first metadata, for the first
        ``find_coordinator``.
        """
        if self._refresher is not None or self._is_closed:
            raise RuntimeError("a Cluster can be started only once: create another one")
        self._first_group = group_id
        failures: list[KafkaError] = []
        # Earlier than the timeout, for the error of the last attempt.
        self.pool.give_up_at = self._loop.time() + ATTEMPTS_SHARE * self.config.request_timeout_s
        try:
            async with timeout(self.config.request_timeout_s):
                await self._bootstrap(failures, self.pool.give_up_at)
        except asyncio.TimeoutError as error:
            names = ", ".join(self.pool.describe(node.id) for node in self._bootstrap_nodes)
            tried = "; ".join(reason(failure) for failure in failures)
            raise KafkaConnectionError(
                f"cannot bootstrap within {self.config.request_timeout_s:g} s from {names}"
                + (f" ({tried})" if tried else "")
            ) from error
        finally:
            self.pool.give_up_at = None
        self._refresher = self.scope.supervise(
            self._keep_fresh,
            name=REFRESH_TASK,
            first_delay_s=self.config.retry_backoff_s,
            last_delay_s=self.config.retry_backoff_max_s,
        )
        self._refresher.add_done_callback(self._refresher_ended)

    async def _bootstrap(self, failures: list[KafkaError], give_up_at: float) -> None:
        backoff = self._new_backoff()
        while True:
            try:
                return await self._refresh(failures)
            except KafkaError as error:
                delay_s = backoff.next_delay_s()
                if error.retriable and self._loop.time() + delay_s >= give_up_at:
                    raise asyncio.TimeoutError from error
                if not error.retriable or not self.pool.opened_count:
                    raise
                log.info("the first metadata request failed and is sent again: %s", error)
            await asyncio.sleep(delay_s)
            if self._loop.time() >= give_up_at:  # the loop was blocked
                raise asyncio.TimeoutError
            failures.clear()

    def abort(self) -> None:
        """As `close`, without waiting."""
        self._is_closed = True
        if self._refresher is not None:
            self.scope.cancel(self._refresher)
        self.pool.abort()

    async def close(self) -> None:
        """Stop refreshing and close every connection. Idempotent."""
        self.abort()
        if self._refresher is not None:
            await asyncio.wait([self._refresher])
        await self.pool.close()

    def raise_if_closed(self) -> None:
        if self._is_closed:
            raise ClientClosedError("the client is closed")

    def _refresher_ended(self, task: asyncio.Task[Never]) -> None:
        cause = None if task.cancelled() else task.exception()
        waiters, self._waiters = self._waiters, []
        for waiter, _ in waiters:
            if not waiter.done():
                error = ClientClosedError(
                    "the metadata was not refreshed, because the client is closed"
                )
                error.__cause__ = cause
                waiter.set_exception(error)

    # --- What metadata covers, and when it is fetched --------------------------------------
    def watch(self, owner: object, topics: Iterable[str] | None) -> None:
        """Replace the topics that an owner needs in metadata, which may be all."""
        self._watched.set(owner, topics)
        if self._watched.topics is not None:
            self._seen &= self._watched.topics
        if not self._watched.are_covered:
            self._wake.set()

    def watch_another(self, owner: object, topic: str) -> None:
        self._watched.add(owner, topic)
        if not self._watched.are_covered:
            self._wake.set()

    def unwatch(self, owner: object, topic: str) -> None:
        self._watched.remove(owner, topic)

    @contextmanager
    def watching(self, topics: Iterable[str]) -> Iterator[None]:
        owner = object()
        self.watch(owner, topics)
        try:
            yield
        finally:
            self.watch(owner, ())

    def invalidate(self) -> None:
        self._is_stale = True
        self._wake.set()

    def look_for_leader(self) -> None:
        """Request a refresh without the usual backoff, because a leader is missing."""
        self._is_leader_missing = True
        self._wake.set()

    async def refresh(self, topics: Iterable[str] | None = None) -> ClusterView:
        """Return a view that was requested after this call, with these topics refreshed."""
        self.raise_if_closed()
        if self._refresher is None or self._refresher.done():
            raise KafkaConnectionError(
                "the client cannot refresh its metadata, because it was not started or has failed"
            )
        waiter = Waiter(self._loop.create_future(), None if topics is None else frozenset(topics))
        self._waiters.append(waiter)
        self._wake.set()
        try:
            async with timeout(self.config.request_timeout_s):
                return await waiter.answered
        except asyncio.TimeoutError:
            last = "" if self._last_error is None else f": {reason(self._last_error)}"
            raise KafkaTimeoutError(
                f"no broker returned metadata within {self.config.request_timeout_s:g} s{last}"
            ) from self._last_error
        finally:  # also after a cancellation
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    async def look(self, topics: frozenset[str] | None, failures: list[KafkaError]) -> ClusterView:
        """Request metadata without a start. `failures` gets the errors of servers."""
        response = await self._ask_for_metadata(topics, failures)
        return self.apply_metadata(response, is_of_all=topics is None)

    def apply_metadata(self, response: MetadataResponse, *, is_of_all: bool) -> ClusterView:
        self._is_bootstrapping = False
        self._swap(self.view.updated(response, self._loop.time(), is_of_all=is_of_all))
        return self.view

    def add_listener(
        self,
        listener: Listener,
        *,
        on_topics: TopicsListener | None = None,
        on_moves: MovesListener | None = None,
    ) -> None:
        """Call ``listener(view)`` synchronously after each change of the view.

        If only some topics changed, or only some partitions' leaders, `on_topics` or `on_moves` is
        called instead.
        """
        self._listeners[listener] = Listening(on_topics, on_moves)

    def remove_listener(self, listener: Listener) -> None:
        self._listeners.pop(listener, None)

    # --- Requests --------------------------------------------------------------------------
    async def request(
        self,
        node_id: int,
        request: AnyRequest[R],
        *,
        lane: Lane = Lane.GENERAL,
        timeout_s: float | None = None,
        left_s: float = math.inf,
        most_s: float = math.inf,
    ) -> R:
        """Send a request to a node and return the response. Connect first if necessary.

        With a ready connection, the request is sent before the first suspension. Cancellation
        leaves the connection usable, and an attempt to connect running. By default the timeout is a
        part of the time left, for another attempt over another connection.
        """
        asked = node_id, request.request_class
        is_one_of_several = timeout_s is None
        if timeout_s is None:
            timeout_s = self._try_s(self._silences.get(asked, 0), left_s)
        timeout_s = min(timeout_s, most_s)
        try:
            connection = self.pool.ready_connection(node_id, lane)
            if connection is None:
                connection = await self.pool.connect(node_id, lane)
            response = await connection.request(request, timeout_s=timeout_s)
        except RequestTimedOutError:
            if is_one_of_several:
                self._silences[asked] = min(self._silences.get(asked, 0) + 1, MOST_SILENCES)
            raise
        except (KafkaConnectionError, NodeNotReadyError):
            self.invalidate()
            raise
        self._silences.pop(asked, None)
        return response

    def _try_s(self, silences: int, left_s: float) -> float:
        total_s = self.config.request_timeout_s
        share_s = TRY_SHARE * min(total_s, left_s)
        first_s = max(LEAST_TRY_S, min(share_s, MOST_TRY_S))
        return min(total_s, first_s * 2.0**silences)

    async def request_any(
        self,
        request: Request[R],
        *,
        timeout_s: float | None = None,
        give_up_at: float = math.inf,
    ) -> R:
        """Send a request to one node after another, the least loaded first, until one responds.

        Without ``timeout_s``, nodes that did not respond are asked again, within
        ``request_timeout_s``. They share the time until ``give_up_at``.
        """
        ends_at = self._loop.time() + self.config.request_timeout_s
        while True:
            failures: list[KafkaError] = []
            try:
                _, response = await self._ask_any(
                    request, timeout_s=timeout_s, give_up_at=give_up_at, failures=failures
                )
                return response
            except KafkaConnectionError:
                was_silent = any(isinstance(error, RequestTimedOutError) for error in failures)
                if timeout_s is not None or not was_silent or self._loop.time() >= ends_at:
                    raise

    async def _ask_any(
        self,
        request: Request[R],
        *,
        timeout_s: float | None = None,
        give_up_at: float = math.inf,
        failures: list[KafkaError] | None = None,
        asked: set[int] | None = None,
        is_always_offered: bool = False,
    ) -> tuple[int, R]:
        """As request_any. It also returns the node, and adds errors to ``failures``.

        Nodes in ``asked`` are left out, and those that are asked now are added to it.
        With ``is_always_offered``, a node without the request is skipped, and its next connections
        request its versions again.
        """
        failures = [] if failures is None else failures
        asked = set() if asked is None else asked
        incompatible: IncompatibleBrokerVersion | None = None
        while (node_id := self._next_to_ask(frozenset(asked))) is not None:
            most_s, limit_s = math.inf, None
            if give_up_at < math.inf:
                untried = len(set(self.pool.node_ids()) - asked)
                most_s = self._share_s(give_up_at, untried)
                # Connecting takes a part of it, but for the last node it takes its own time.
                limit_s = most_s + LEAST_S if untried > 1 else None
            asked.add(node_id)
            try:
                async with timeout(limit_s):
                    return node_id, await self.request(
                        node_id, request, timeout_s=timeout_s, most_s=most_s
                    )
            except asyncio.TimeoutError:
                silence = f"no answer from {self.pool.describe(node_id)} in {most_s:g} s"
                failures.append(self.pool.last_error(node_id) or RequestTimedOutError(silence))
            except IncompatibleBrokerVersion as error:
                if not is_always_offered:
                    raise
                incompatible = error
                self.pool.renegotiate_versions(node_id)
            except PASSING_ERRORS as error:
                failures.append(error)
        self.raise_if_closed()
        if incompatible is not None:
            raise incompatible
        raise no_usable_broker(failures)

    def _share_s(self, give_up_at: float, untried: int) -> float:
        """Return the time for one of the untried nodes. If it is silent, others have time left."""
        left_s = max(LEAST_S, give_up_at - self._loop.time())
        share_s = max(left_s / untried, min(LEAST_TRY_S, TRY_SHARE * left_s))
        return round(share_s, 3)  # for messages

    def _next_to_ask(self, excluded: frozenset[int]) -> int | None:
        node_id = self.pool.least_loaded_node(exclude=excluded)
        if node_id is None:  # all in backoff: the first to end it
            others = [node_id for node_id in self.pool.node_ids() if node_id not in excluded]
            node_id = min(others, key=self.pool.connection_delay, default=None)
        return node_id

    async def find_coordinator(
        self, key: str, *, key_type: int = GROUP_COORDINATOR, timeout_s: float | None = None
    ) -> int:
        """Return the node id of a group's coordinator, which can be sent requests at once.

        Temporary errors are retried with backoff. If no broker supports the request, their versions
        are requested once more. A given timeout limits all tries, with their connections.
        """
        backoff = self._new_backoff()
        give_up_at = self._loop.time() + (timeout_s or self.config.request_timeout_s)
        ends_at = math.inf if timeout_s is None else give_up_at
        may_be_offered = True
        while True:
            try:
                return await self._find_coordinator_once(key, key_type, ends_at)
            except KafkaError as error:
                may_pass = error.retriable
                if isinstance(error, IncompatibleBrokerVersion):
                    may_pass, may_be_offered = may_be_offered, False
                delay_s = backoff.next_delay_s()
                if not may_pass or self._loop.time() + delay_s >= give_up_at:
                    raise
            await asyncio.sleep(delay_s)

    async def find_coordinator_elsewhere(
        self, node_id: int, key: str, key_type: int, give_up_at: float
    ) -> int | None:
        """Return this node's id if another node confirms that it is the coordinator.

        A node that was suspended considers itself the coordinator until it has read the cluster's
        log, and another node's view may also be old. So the other nodes are asked in turn. If none
        confirms it, the result is the first other name, None if they know no coordinator, or
        ``node_id`` if no node responds in time.
        """
        give_up_at = min(give_up_at, self._loop.time() + MAX_ELSEWHERE_S)
        request, asked = coordinator_request(key, key_type), {node_id}
        named: Node | None = None
        is_unknown = False
        while self._loop.time() < give_up_at:
            try:
                async with timeout_at(give_up_at):
                    _, response = await self._ask_any(request, give_up_at=give_up_at, asked=asked)
                node = coordinator_of(key, response)
            except (KafkaConnectionError, asyncio.TimeoutError):
                break  # no node is left, or no time
            except IncompatibleBrokerVersion:
                continue
            except KafkaError as error:
                if not error.retriable:
                    raise
                is_unknown |= isinstance(error, BrokerResponseError)
                continue
            if node.id == node_id:
                return node_id
            named = named or node
        self.raise_if_closed()
        if named is not None:
            return self.add_node(named)
        return None if is_unknown else node_id

    async def _find_coordinator_once(self, key: str, key_type: int, give_up_at: float) -> int:
        failures: list[KafkaError] = []
        try:
            async with timeout_at(None if give_up_at == math.inf else give_up_at + SLACK_S):
                response, early = None, self._early_lookup
                if early is not None and (key, key_type) == (self._first_group, GROUP_COORDINATOR):
                    await asyncio.wait([early])
                    self._early_lookup = None
                    response = None if early.cancelled() else early.result()
                if response is None:
                    _, response = await self._ask_any(
                        coordinator_request(key, key_type),
                        give_up_at=give_up_at,
                        failures=failures,
                        is_always_offered=True,
                    )
        except asyncio.TimeoutError as error:
            tried = "; ".join(map(reason, failures))
            raise RequestTimedOutError(
                f"no node named the coordinator of {key!r} in time" + (f" ({tried})" * bool(tried))
            ) from error
        return self.add_node(coordinator_of(key, response))

    def add_node(self, node: Node) -> int:
        """Add a node that metadata may lack, and return its id."""
        if (view := self.view.with_coordinator(node)) is not self.view:
            self._swap(view)
        return node.id

    def _ask_for_first_coordinator(self) -> None:
        group_id, early = self._first_group, self._early_lookup
        if group_id is None or not (early is None or early.done()):
            return

        async def ask() -> FindCoordinatorResponse | None:
            if (node_id := self._next_to_ask(frozenset())) is None:
                return None
            request, timeout_s = coordinator_request(group_id), self.config.request_timeout_s
            try:
                return await self.request(node_id, request, timeout_s=timeout_s)
            except KafkaError:
                return None

        self._early_lookup = self.scope.spawn(ask(), name="find coordinator")

    def apply_leader_hints(
        self, leaders: Mapping[TopicPartition, tuple[int, int]], endpoints: Iterable[Node] = ()
    ) -> Collection[TopicPartition]:
        """Apply newer leaders (node id and epoch) of an error response. Return what changed."""
        before = self.view
        view = before.with_leaders(leaders, endpoints)
        if view is before:
            return frozenset()
        moved = {tp for tp in leaders if view.partition(tp) is not before.partition(tp)}
        self._swap(view, moved)
        return moved

    # --- The refresh task ------------------------------------------------------------------
    async def _keep_fresh(self) -> Never:
        while True:
            while (due_at := self._due_at()) > self._loop.time():
                self._wake.clear()
                await self._wake.wait(due_at)
            try:
                await self._refresh([])
            except KafkaError as error:
                self._last_error = error
                if error.retriable or not isinstance(error, BrokerResponseError):
                    raise  # the scope restarts this task after a backoff, if it is retriable
                # The next response, from this broker or another, may succeed.
                raise StaleMetadata(f"no metadata: {error}") from error

    def _due_at(self) -> float:
        if not self._watched.are_covered:
            return self._loop.time()
        if self._is_leader_missing:
            return self._answered_at + min(self._spacing_s, self._rng.uniform(*SEARCH_PAUSE_S))
        if self._is_stale or self._waiters or self._incomplete:
            # A caller that waits for certain topics has its own pauses.
            is_paced = bool(self._waiters) and self._some_topics() is not None
            spacing_s = self.config.retry_backoff_s if is_paced else self._spacing_s
            return self._answered_at + min(self._spacing_s, spacing_s)
        return self.view.fetched_at + self.config.metadata_max_age_s

    def _some_topics(self) -> frozenset[str] | None:
        """Return the topics of a partial refresh, or None for all watched ones."""
        watched = self._watched.topics
        is_old = self._loop.time() >= self.view.fetched_at + self.config.metadata_max_age_s
        if is_old or self._is_stale or self._is_leader_missing or watched is None:
            return None
        topics = self._watched.missing | (self._incomplete & watched)
        for waiter in self._waiters:
            if waiter.topics is None:
                return None
            topics |= waiter.topics
        return frozenset(topics) or None

    async def _refresh(self, failures: list[KafkaError]) -> None:
        """Request metadata once and replace the view. After a failure, it is still due."""
        some = self._some_topics()
        is_spaced = some is None or (self._watched.are_covered and not self._waiters)
        asked = some
        if asked is None and self._watched.topics is not None:
            asked = frozenset(self._watched.topics)
        waiters, self._waiters = self._waiters, []
        is_stale, self._is_stale = self._is_stale, False
        self._is_leader_missing = False
        try:
            response = await self._ask_for_metadata(asked, failures)
            now = self._loop.time()
            if is_spaced:
                if now - self._answered_at > 2 * self.config.retry_backoff_max_s:
                    self._spacing.reset()
                self._spacing_s = self._spacing.next_delay_s()
            self._answered_at = now
            self._is_bootstrapping = False
            self._seen.update(topic.name or "" for topic in response.topics if topic.partitions)
            if some is None or response.cluster_id != self.view.cluster_id:
                self._watched.were_asked(asked)
                self._swap(self.view.updated(response, now, is_of_all=asked is None))
                self._avoid_outdated(is_outdated=self.view.was_contradicted)
            else:
                self._watched.were_added(some)
                self._swap(self.view.with_topics(response, now), topics=some)
                if any(self.view.topics[name].was_contradicted for name in self._known(some)):
                    self._avoid_outdated(is_outdated=True)
        except BaseException:
            self._waiters = [each for each in waiters if not each.answered.done()] + self._waiters
            self._is_stale |= is_stale
            raise
        self._last_error = None
        self.scope.recovered(REFRESH_TASK)
        for waiter, _ in waiters:
            if not waiter.done():
                waiter.set_result(self.view)
        await self._report_unknown_topics(self.unknown_topics.names.union(asked or ()), now)

    async def _report_unknown_topics(self, candidates: Iterable[str], now: float) -> None:
        watched = self._watched.topics or ()
        missing = {
            name
            for name in self._known(candidates)
            if name in watched
            and name not in self._seen
            and self.view.topics[name].error is UnknownTopicOrPartitionError
        }
        names = self.unknown_topics.update(
            missing, now, may_create=self.config.allow_auto_create_topics
        )
        if not names:
            return
        try:
            answer = await self.request_any(
                metadata_request(None, may_create=False), timeout_s=MAX_NAMES_WAIT_S
            )
        except KafkaError:
            existing = []  # warn without a similar name
        else:
            existing = [each.name for each in answer.topics if each.name and not each.is_internal]
        for name in names:
            self.unknown_topics.report(name, existing)

    def _known(self, topics: Iterable[str]) -> Iterator[str]:
        return (name for name in topics if name in self.view.topics)

    def _avoid_outdated(self, *, is_outdated: bool) -> None:
        """After older leader epochs, prefer other nodes for the next request."""
        self._outdated = self._outdated | {self._answered_by} if is_outdated else frozenset()
        self.pool.suspect(self, self._outdated)

    async def _ask_for_metadata(
        self, topics: frozenset[str] | None, failures: list[KafkaError]
    ) -> MetadataResponse:
        """Request topics. Brokers may create those that never existed, and no others."""
        may_create = self.config.allow_auto_create_topics
        unseen = topics - self._seen if topics is not None and may_create else frozenset()
        if unseen == topics:
            return await self._ask_for_topics(topics, failures, may_create=bool(unseen))
        response = await self._ask_for_topics(topics, failures, may_create=False)
        is_missing = UnknownTopicOrPartitionError.errno
        missing = unseen & {each.name for each in response.topics if each.error_code == is_missing}
        if missing:
            created = await self._ask_for_topics(missing, failures, may_create=True)
            response.topics = [
                *(each for each in response.topics if each.name not in missing),
                *created.topics,
            ]
        return response

    async def _ask_for_topics(
        self, topics: frozenset[str] | None, failures: list[KafkaError], *, may_create: bool
    ) -> MetadataResponse:
        bootstrap = [node.id for node in self._bootstrap_nodes]
        asked: set[int] = set()
        while True:
            known = self.pool.node_ids()
            try:
                if asked or not self.view.nodes:
                    self._rng.shuffle(bootstrap)
                    asked |= await self.pool.connect_one(bootstrap, failures)
                if self._refresher is None:
                    self._ask_for_first_coordinator()
                self._answered_by, response = await self._ask_any(
                    metadata_request(topics, may_create=may_create),
                    timeout_s=min(self.config.request_timeout_s, MAX_METADATA_WAIT_S),
                    give_up_at=self.pool.give_up_at or math.inf,
                    failures=failures,
                    asked=asked,
                    is_always_offered=True,
                )
                raise_for_rebootstrap(response)
                break
            except (KafkaConnectionError, RebootstrapRequiredError) as error:
                if not self.view.nodes or bootstrap[0] in known:
                    raise  # the bootstrap servers were among those asked
                if not self._is_bootstrapping:  # one line per change of state
                    self._is_bootstrapping = True
                    log.info("bootstrapping again: %s", error)
            self._update_pool()
            asked = set(known)
        connection = self.pool.usable(self._answered_by)
        if connection is not None:
            version = connection.api_versions.choose(MetadataRequest)
            self.has_topic_ids = version >= FIRST_WITH_TOPIC_IDS
        raise_for_metadata(response)
        return response

    def _swap(
        self,
        view: ClusterView,
        moved: Collection[TopicPartition] | None = None,
        topics: Collection[str] | None = None,
    ) -> None:
        """Replace the view. `moved` and `topics` are all that changed, or None if any may have."""
        if moved is not None:
            topics = {tp.topic for tp in moved}
        if view.nodes != self.view.nodes:
            topics = None  # any topic may have leaders among them
        self.view = view
        self._update_pool()
        if topics is None:
            self._incomplete = set(view.incomplete_topics())
        else:
            self._incomplete.difference_update(topics)
            known = (view.topics[name] for name in self._known(topics))
            self._incomplete.update(topic.name for topic in known if not topic.is_complete)
        for listener, (on_topics, on_moves) in tuple(self._listeners.items()):
            if moved is not None and on_moves is not None:
                on_moves(view, moved)
            elif topics is not None and on_topics is not None:
                on_topics(view, topics)
            else:
                listener(view)

    def _update_pool(self) -> None:
        nodes = dict(self.view.nodes)
        if self._is_bootstrapping:
            nodes |= {node.id: node for node in self._bootstrap_nodes}
        self.pool.cluster_id = self.view.cluster_id
        self.pool.update_nodes(nodes)

    def _new_backoff(self) -> Backoff:
        return Backoff(self.config.retry_backoff_s, self.config.retry_backoff_max_s, self._rng)


def ignore_moves(view: ClusterView, moved: Collection[TopicPartition]) -> None: ...
