"""Access to a cluster for blocking callers: metadata, a connection per node, requests.

One thread at a time uses a cluster. Others may use its connections. If no known node responds, the
bootstrap servers are asked (KIP-899).
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from aiokafka_lite.client.backoff import Backoff
from aiokafka_lite.client.blocking import BlockingConnection
from aiokafka_lite.client.cluster_requests import (
    MAX_METADATA_WAIT_S,
    PASSING_ERRORS,
    coordinator_of,
    coordinator_request,
    is_refused,
    metadata_request,
    no_usable_broker,
    raise_for_metadata,
    raise_for_rebootstrap,
)
from aiokafka_lite.client.config import Address, ClientConfig
from aiokafka_lite.client.versions import FirstVersions
from aiokafka_lite.client.view import ClusterView, Node
from aiokafka_lite.client.wire import UnansweredCredentialsError
from aiokafka_lite.errors import (
    ClientClosedError,
    KafkaError,
    NodeNotReadyError,
    RebootstrapRequiredError,
)
from aiokafka_lite.protocol.messages.metadata import MetadataResponse
from aiokafka_lite.protocol.prepared import AnyRequest
from aiokafka_lite.protocol.schema import Response
from aiokafka_lite.structs import TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.client.sasl import Mechanism

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Response)
T = TypeVar("T")

# How long connections to servers that were never reached are retried while they are refused.
MAX_REFUSED_S: Final = 10.0
# The least timeout, with which operations fail with their own errors.
LEAST_S: Final = 0.001


class _NodeState:
    __slots__ = ("backoff", "connection", "is_doubtful", "next_attempt_at", "opened_at")

    def __init__(self, backoff: Backoff) -> None:
        self.backoff = backoff
        # It did not answer a request that any node could answer: it is asked last.
        self.is_doubtful = False
        self.connection: BlockingConnection | None = None
        self.next_attempt_at = 0.0
        self.opened_at = 0.0


class BlockingCluster:
    """It never creates topics."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        mechanism: Mechanism | None = None,
        receive_buffer_bytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self.config = config
        self.view = ClusterView()
        self._mechanism = mechanism
        self._receive_buffer_bytes = receive_buffer_bytes
        self._clock = clock
        self._sleep = sleep
        self._rng = rng or random.Random()
        self._bootstrap_nodes = [
            Node(-1 - index, address.host, address.port)
            for index, address in enumerate(config.bootstrap_addresses())
        ]
        self._states: dict[Address, _NodeState] = {}
        self._first_versions = FirstVersions(clock)
        # The latest metadata request failed because all servers refused connections.
        self._is_refused = False
        self._is_closed = False
        self._deadline = math.inf

    # --- Time ------------------------------------------------------------------------------
    def limit(self, seconds: float) -> None:
        """Limit the total time of all later calls. By default, each request has its own timeout."""
        self._deadline = self._clock() + seconds

    @property
    def left_s(self) -> float:
        return max(LEAST_S, self._deadline - self._clock())

    @contextmanager
    def _share_of_time(self, count: int) -> Iterator[None]:
        """Reserve as much time for each of the other attempts as the block may use."""
        before = self._deadline
        now = self._clock()
        self._deadline = now + (before - now) / count
        try:
            yield
        finally:
            self._deadline = before

    # --- Metadata --------------------------------------------------------------------------
    def refresh(self, topics: Collection[str] | None) -> ClusterView:
        """Fetch metadata and return the new view of these topics, or of all for None.

        Temporary errors are retried for ``request_timeout_s``, or for ``MAX_REFUSED_S`` while every
        bootstrap server refuses connections and no broker was ever reached.

        Raises:
            KafkaConnectionError: No broker could be used.
            KafkaError: A broker refused the credentials or the request.
        """
        response = self.retrying(lambda: self._ask_for_metadata(topics))
        return self.apply_metadata(response, is_of_all=topics is None)

    def apply_metadata(self, response: MetadataResponse, *, is_of_all: bool) -> ClusterView:
        """Update the view from a response that passed ``cluster_requests.raise_for_metadata``."""
        self._take(self.view.updated(response, self._clock(), is_of_all=is_of_all))
        return self.view

    def _ask_for_metadata(self, topics: Collection[str] | None) -> MetadataResponse:
        request = metadata_request(topics, may_create=False)
        timeout_s = min(self.config.request_timeout_s, MAX_METADATA_WAIT_S)
        failures: list[KafkaError] = []
        for nodes in (self._known_nodes(), self._bootstrap_nodes):
            response = self._ask_in_turn(nodes, request, timeout_s, failures)
            if response is None:
                continue
            try:
                raise_for_rebootstrap(response)
            except RebootstrapRequiredError as error:
                failures.append(error)
                continue
            raise_for_metadata(response)
            return response
        self._is_refused = all(map(is_refused, failures))
        raise no_usable_broker(failures)

    def apply_leader_hint(
        self, tp: TopicPartition, leader: int, leader_epoch: int, endpoints: Iterable[Node] = ()
    ) -> bool:
        """Update the leader from an error response (KIP-951). Return False if it is not newer."""
        view = self.view.with_leaders({tp: (leader, leader_epoch)}, endpoints)
        is_newer = view is not self.view
        if is_newer:
            self._take(view)
        return is_newer

    def _take(self, view: ClusterView) -> None:
        """Close connections to addresses that are no longer in the view."""
        self.view = view
        wanted = {
            Address(node.host, node.port) for node in (*view.nodes.values(), *self._bootstrap_nodes)
        }
        for address in [each for each in self._states if each not in wanted]:
            self._drop(self._states.pop(address))

    # --- Connections -----------------------------------------------------------------------
    def connection(self, node: int | Node) -> BlockingConnection:
        """Return an open connection to a node. Opening one waits for the node's backoff."""
        if self._is_closed:
            raise ClientClosedError("the client is closed")
        if not isinstance(node, Node):
            node = self._node(node)
        state = self._state(node)
        if (connection := self._usable(state)) is not None:
            return connection
        if (delay_s := state.next_attempt_at - self._clock()) > 0:
            self._sleep(min(delay_s, self.left_s))
        try:
            state.connection = BlockingConnection.open(
                Address(node.host, node.port),
                self._config_in_time(),
                mechanism=self._mechanism,
                node_id=node.id if node.id >= 0 else None,
                receive_buffer_bytes=self._receive_buffer_bytes,
                first_versions=self._first_versions,
                cluster_id=self.view.cluster_id,
                clock=self._clock,
                sleep=self._sleep,
                rng=self._rng,
            )
        except KafkaError as error:
            self._failed(state, error)
            raise
        state.opened_at = self._clock()
        return state.connection

    def _config_in_time(self) -> ClientConfig:
        left_s = self.left_s
        if left_s >= self.config.connect_timeout_s:
            return self.config
        return ClientConfig(**{**vars(self.config), "connect_timeout_s": left_s})

    def _node(self, node_id: int) -> Node:
        node = self.view.nodes.get(node_id)
        if node is None:
            raise NodeNotReadyError(
                f"node {node_id} is not in the client's metadata: the broker left the "
                "cluster, or has just joined it"
            )
        return node

    def _state(self, node: Node) -> _NodeState:
        address = Address(node.host, node.port)
        if (state := self._states.get(address)) is None:
            backoff = Backoff(
                self.config.reconnect_backoff_s, self.config.reconnect_backoff_max_s, self._rng
            )
            state = self._states[address] = _NodeState(backoff)
        return state

    def _usable(self, state: _NodeState) -> BlockingConnection | None:
        """Drop a connection that cannot be used, and start its backoff."""
        connection, max_idle_s = state.connection, self.config.connections_max_idle_s
        if connection is None:
            return None
        now = self._clock()
        is_idle = max_idle_s is not None and now - connection.last_used >= max_idle_s
        if is_idle and not connection.in_flight_count:
            self._drop(state)
        elif connection.is_usable():
            return connection
        elif connection.error is None:  # its session is over
            self._drop(state)
        else:
            state.connection = None
            if now - state.opened_at >= self.config.reconnect_backoff_max_s:
                state.backoff.reset()
            elif connection.is_lost:
                self._failed(state, connection.error)
        return None

    def _failed(self, state: _NodeState, error: KafkaError) -> None:
        delay_s = state.backoff.next_delay_s()
        # Refused credentials and untrusted certificates have the longest delay.
        if not error.retriable or isinstance(error, UnansweredCredentialsError):
            delay_s = max(delay_s, self.config.reconnect_backoff_max_s)
        state.next_attempt_at = self._clock() + delay_s

    def _drop(self, state: _NodeState) -> None:
        if state.connection is not None:
            state.connection.close()
            state.connection = None

    # --- Requests --------------------------------------------------------------------------
    def request(self, node_id: int, request: AnyRequest[R], *, timeout_s: float | None = None) -> R:
        timeout_s = self.config.request_timeout_s if timeout_s is None else timeout_s
        connection = self.connection(node_id)
        return connection.request(request, timeout_s=min(timeout_s, self.left_s))

    def request_any(self, request: AnyRequest[R], *, timeout_s: float | None = None) -> R:
        timeout_s = self.config.request_timeout_s if timeout_s is None else timeout_s
        failures: list[KafkaError] = []
        nodes = self._known_nodes() or self._bootstrap_nodes
        response = self._ask_in_turn(nodes, request, timeout_s, failures)
        if response is None:
            raise no_usable_broker(failures)
        return response

    def coordinator(self, group_id: str) -> int:
        """Add the group's coordinator to the view."""
        request = coordinator_request(group_id)
        node = self.retrying(lambda: coordinator_of(group_id, self.request_any(request)))
        self._take(self.view.with_coordinator(node))
        return node.id

    def _known_nodes(self) -> list[Node]:
        """Return the view's nodes: responding ones first, then connected ones, then by backoff."""
        nodes = list(self.view.nodes.values())
        self._rng.shuffle(nodes)
        now = self._clock()

        def doubts(node: Node) -> tuple[bool, bool, float]:
            state = self._state(node)
            is_unconnected = state.connection is None
            return state.is_doubtful, is_unconnected, max(now, state.next_attempt_at)

        return sorted(nodes, key=doubts)

    def _ask_in_turn(
        self,
        nodes: Sequence[Node],
        request: AnyRequest[R],
        timeout_s: float,
        failures: list[KafkaError],
    ) -> R | None:
        for index, node in enumerate(nodes):
            try:
                with self._share_of_time(len(nodes) - index):
                    connection = self.connection(node)
                    answer = connection.request(request, timeout_s=min(timeout_s, self.left_s))
            except ClientClosedError:
                raise
            except PASSING_ERRORS as error:
                self._state(node).is_doubtful = True
                failures.append(error)
            else:
                self._state(node).is_doubtful = False
                return answer
        return None

    def retrying(self, ask: Callable[[], T]) -> T:
        """Call until it succeeds, fails permanently, or ``request_timeout_s`` is over."""
        backoff = Backoff(self.config.retry_backoff_s, self.config.retry_backoff_max_s, self._rng)
        began_at = self._clock()
        give_up_at = min(began_at + self.config.request_timeout_s, self._deadline)
        level = logging.WARNING  # once, soon after a mistyped address
        while True:
            try:
                return ask()
            except ClientClosedError:
                raise
            except KafkaError as error:
                delay_s = backoff.next_delay_s()
                if self._is_refused and not self.view.nodes:
                    give_up_at = min(give_up_at, began_at + MAX_REFUSED_S)
                left_s = give_up_at - self._clock()
                if not error.retriable or delay_s >= left_s:
                    raise
                log.log(level, "%s (retrying for up to %.0f s)", error, left_s)
                level = logging.DEBUG
            self._sleep(delay_s)

    def close(self) -> None:
        self._is_closed = True
        for state in self._states.values():
            self._drop(state)
