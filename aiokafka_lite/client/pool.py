"""Opens and keeps connections to the nodes of a cluster, per node and lane.

Each node has one backoff, which is reset only after a connection has lived for the longest delay,
so that a node that closes connections at once is protected, too. The queries have the names of
Kafka's NetworkClient.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import Final, TypeAlias, cast

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.backoff import Backoff
from aiokafka_lite.client.cluster_requests import PASSING_ERRORS
from aiokafka_lite.client.config import Address, ClientConfig
from aiokafka_lite.client.connection import Authenticate, Connection
from aiokafka_lite.client.lanes import Lane, NodeState, Slot
from aiokafka_lite.client.versions import FirstVersions
from aiokafka_lite.client.view import Node
from aiokafka_lite.client.wire import UnansweredCredentialsError, WireState, own_copy
from aiokafka_lite.errors import (
    ClientClosedError,
    KafkaConnectionError,
    KafkaError,
    NodeNotReadyError,
    ThrottlingQuotaExceededError,
)
from aiokafka_lite.protocol.schema import Request, Response

log = logging.getLogger(__name__)

STAGGER_S: Final = 0.25
_Attempt: TypeAlias = "asyncio.Task[KafkaError | None]"


class Pool:
    """The connections of one client, for one event loop. Only the pool writes its fields."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        scope: TaskScope,
        rng: random.Random,
        authenticate: Authenticate | None = None,
        level: int = logging.WARNING,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._config = config
        # Of the lines about nodes that become unreachable and reachable.
        self._level = level
        self._scope = scope
        self._guard = scope.guard
        self._rng = rng
        self._authenticate = authenticate
        self._nodes: dict[int, NodeState] = {}
        self._attempts: dict[asyncio.Task[KafkaError | None], None] = {}
        # Nodes that were unreachable when metadata left them out.
        self._left_unreachable: dict[int, NodeState] = {}
        # By address, reconnected nodes that are not logged yet, with the loop time of their loss.
        self._back: dict[tuple[str, int], tuple[str, float]] = {}
        # Connections without a slot whose transport is still open.
        self._leaving: dict[Connection, None] = {}
        self._idle_timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        # Addresses that refused the credentials, and the loop time of the next attempt.
        self._refused_until: dict[tuple[str, int], float] = {}
        # The only attempts that may send credentials to these addresses.
        self._probes: dict[tuple[str, int], _Attempt] = {}
        # Loop time by which attempts to connect end.
        self.give_up_at: float | None = None
        self._turns = Turns()
        self._first_versions = FirstVersions(self._loop.time)
        # Written by the cluster.
        self.cluster_id: str | None = None
        # Is called when a node becomes unreachable, and reachable (without an error), with its id,
        # its address, the error and the seconds of the outage.
        self.on_reachability: Callable[[int, str, KafkaError | None, float], None] | None = None
        # Opened connections, and those of them that replaced lost ones.
        self.opened_count = self.reconnect_count = 0
        # Nodes with overdue responses, by the owner that waits for them.
        self._suspects: dict[object, frozenset[int]] = {}

    # --- What it is asked ------------------------------------------------------------------
    def is_ready(self, node_id: int, lane: Lane = Lane.GENERAL) -> bool:
        return self.ready_connection(node_id, lane) is not None

    def ready(self, node_id: int, lane: Lane = Lane.GENERAL) -> bool:
        """As is_ready, but start connecting if there is no connection and backoff allows."""
        if self.is_ready(node_id, lane):
            return True
        state = self._nodes.get(node_id)
        if (
            state is not None
            and not self._is_closed
            and self._usable(state, state.slots[lane]) is None
            and self._backoff_s(state) == 0
            and self._scope.failure is None
        ):
            self._start_connecting(state, state.slots[lane])
        return False

    def connection_delay(self, node_id: int, lane: Lane = Lane.GENERAL) -> float:
        state = self._nodes.get(node_id)
        if state is None:
            return 0.0
        connection = self._usable(state, state.slots[lane])
        if connection is not None:
            return self._mute_s(connection.muted_until, lane)
        return max(self._backoff_s(state), self._mute_s(state.slots[lane].muted_until, lane))

    def throttle_s(self, node_id: int) -> float:
        state = self._nodes.get(node_id)
        delays = [] if state is None else map(self._slot_mute_s, state.slots.values())
        return max(delays, default=0.0)

    def _slot_mute_s(self, slot: Slot) -> float:
        until = slot.muted_until if slot.connection is None else slot.connection.muted_until
        return self._mute_s(until, slot.lane)

    def last_error(self, node_id: int) -> KafkaError | None:
        state = self._nodes.get(node_id)
        return None if state is None else state.last_error

    def why_not_ready(self, node_id: int, lane: Lane) -> KafkaError | None:
        """Return the error for which ``connect`` waits, or that of the latest attempt."""
        state = self._nodes.get(node_id)
        if state is None or self.is_ready(node_id, lane):
            return None
        slot = state.slots[lane]
        if (mute_s := self._slot_mute_s(slot)) > 0:
            return ThrottlingQuotaExceededError(
                f"{state} throttles this client for another {mute_s:.1f} s, because the client "
                "exceeded a quota"
            )
        if state.last_error is not None:
            return state.last_error
        return KafkaConnectionError(f"the connection to {state} is still being opened")

    def lost_at(self, node_id: int) -> float | None:
        state = self._nodes.get(node_id)
        if state is None or state.last_error is None:
            return None
        slots = state.slots.values()
        is_open = any(slot.connection and slot.connection.error is None for slot in slots)
        return None if is_open else state.lost_at

    def is_connecting(self, node_id: int, lane: Lane = Lane.GENERAL) -> bool:
        state = self._nodes.get(node_id)
        return state is not None and state.slots[lane].connecting is not None

    def in_flight_request_count(self, node_id: int) -> int:
        state = self._nodes.get(node_id)
        return 0 if state is None else state.in_flight_count

    def least_loaded_node(self, *, exclude: frozenset[int] = frozenset()) -> int | None:
        """Return a node, not in backoff, for a request that any node can answer: see `_load`."""
        candidates = [
            (self._load(state), node_id)
            for node_id, state in self._nodes.items()
            if node_id not in exclude and self.connection_delay(node_id) == 0
        ]
        if not candidates:
            return None
        lowest = min(load for load, _ in candidates)
        return self._rng.choice([node_id for load, node_id in candidates if load == lowest])

    def _load(self, state: NodeState) -> tuple[bool, bool, int]:
        is_connected = state.slots[Lane.GENERAL].connection is not None
        is_doubtful = state.last_error is not None or state.node.id in self.suspects
        return (is_doubtful, not is_connected, state.in_flight_count)

    def suspect(self, owner: object, node_ids: frozenset[int]) -> None:
        """Replace the nodes whose responses are overdue for an owner."""
        if node_ids:
            self._suspects[owner] = node_ids
        else:
            self._suspects.pop(owner, None)

    @property
    def suspects(self) -> frozenset[int]:
        return frozenset(node_id for ids in self._suspects.values() for node_id in ids)

    def node_ids(self) -> list[int]:
        return list(self._nodes)

    def describe(self, node_id: int) -> str:
        state = self._nodes.get(node_id)
        return f"node {node_id}" if state is None else str(state)

    def usable(self, node_id: int, lane: Lane = Lane.GENERAL) -> Connection | None:
        state = self._nodes.get(node_id)
        return None if state is None else self._usable(state, state.slots[lane])

    def ready_connection(self, node_id: int, lane: Lane = Lane.GENERAL) -> Connection | None:
        state = self._nodes.get(node_id)
        if state is None:
            return None
        # Called before every Fetch: the usual case makes no further calls.
        connection = state.slots[lane].connection
        if connection is None:
            return None
        wire = connection.wire
        if wire.error is not None:
            return self._usable(state, state.slots[lane])
        if wire.state is WireState.RENEWING:
            return None
        if wire.muted_until and self._mute_s(wire.muted_until, lane) > 0:
            return None
        return connection

    # --- Requests --------------------------------------------------------------------------
    def send_nowait(
        self, node_id: int, request: Request[Response], lane: Lane = Lane.FETCH
    ) -> bool:
        """Send a request without a wait, and ignore the response. Return whether it was sent."""
        for each in (lane, Lane.GENERAL):
            connection = self.usable(node_id, each)
            if (
                connection is not None
                and connection.wire.state is not WireState.RENEWING
                and connection.muted_until <= self._loop.time()
                and (each is Lane.GENERAL or connection.in_flight_count == 0)
            ):
                connection.send(request, timeout_s=self._config.request_timeout_s)
                return True
        return False

    async def connect(self, node_id: int, lane: Lane = Lane.GENERAL) -> Connection:
        """Return an open connection, after backoff, one attempt to connect, and throttle."""
        while True:
            state = self._known(node_id)
            slot = state.slots[lane]
            connection = self._usable(state, slot)
            if connection is None:
                await self._attempt(state, slot)
            elif connection.wire.state is WireState.RENEWING:
                await connection.until_renewed()
            elif mute_s := self._mute_s(connection.muted_until, lane):
                await asyncio.sleep(mute_s)
            else:
                return connection

    @property
    def is_renewing(self) -> bool:
        connected = (connection for _, connection in self._connected_slots())
        return any(connection.wire.state is WireState.RENEWING for connection in connected)

    async def until_renewed(self) -> None:
        """Wait until no session is being renewed."""
        while self.is_renewing:
            for _, connection in tuple(self._connected_slots()):
                await connection.until_renewed()

    def _known(self, node_id: int) -> NodeState:
        if self._is_closed:
            raise ClientClosedError("the client is closed")
        state = self._nodes.get(node_id)
        if state is None:
            left = self._left_unreachable.get(node_id)
            if left is None:
                why = "the broker left the cluster, or has just joined it"
            else:
                why = str(left.last_error)
            raise NodeNotReadyError(f"node {node_id} is not in the client's metadata: {why}")
        return state

    async def _attempt(self, state: NodeState, slot: Slot) -> None:
        attempt = self._start_connecting(state, slot)
        await asyncio.wait([attempt])  # our cancellation must not cancel the attempt
        if attempt.cancelled():
            why = f"the attempt to connect to {state} was cancelled"
            if self._is_closed:
                raise ClientClosedError(f"{why}, because the client is closed")
            raise KafkaConnectionError(
                f"{why}, because the node left the cluster or has a new address"
            )
        if (error := attempt.result()) is not None:
            raise own_copy(error)

    # --- Connecting ------------------------------------------------------------------------
    async def connect_one(
        self, node_ids: Iterable[int], failures: list[KafkaError]
    ) -> frozenset[int]:
        """Connect to nodes in this order until one is connected. Return those that failed.

        Each attempt starts a little after the one before, or at once if that failed (as RFC 8305).
        A node that another caller has connected is not connected again. Cancellation leaves the
        attempts running.
        """
        waiting = list(node_ids)
        attempts: dict[_Attempt, int] = {}
        failed: set[int] = set()
        while waiting or attempts:
            if waiting:
                node_id = waiting.pop(0)
                if self.usable(node_id) is not None:
                    return frozenset(failed)
                try:
                    attempts[self.attempt(node_id)] = node_id
                except NodeNotReadyError as left:  # while others were tried
                    failures.append(left)
                    failed.add(node_id)
                    continue
            done, _ = await asyncio.wait(
                attempts,
                timeout=STAGGER_S if waiting else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for attempt in done:
                node_id = attempts.pop(attempt)
                if attempt.cancelled():
                    continue
                if (error := attempt.result()) is None:
                    return frozenset(failed)
                if not isinstance(error, PASSING_ERRORS):
                    raise own_copy(error)
                failures.append(error)
                failed.add(node_id)
        return frozenset(failed)

    def attempt(self, node_id: int) -> asyncio.Task[KafkaError | None]:
        """Return the attempt to connect a node's GENERAL lane. Only the pool may cancel it."""
        state = self._known(node_id)
        return self._start_connecting(state, state.slots[Lane.GENERAL])

    def _start_connecting(self, state: NodeState, slot: Slot) -> asyncio.Task[KafkaError | None]:
        if slot.connecting is None:
            try:
                slot.connecting = self._scope.spawn(
                    self._connect(state, slot), name=f"connect {slot.lane.name} {state}"
                )
            except RuntimeError as error:
                raise ClientClosedError("the client is closed") from error
            self._attempts[slot.connecting] = None
            slot.connecting.add_done_callback(lambda done: self._attempts.pop(done, None))
        return slot.connecting

    async def _connect(self, state: NodeState, slot: Slot) -> KafkaError | None:
        turn = self._turns.ticket() if state.node.id < 0 else nullcontext
        try:
            if delay_s := self._backoff_s(state):
                await asyncio.sleep(delay_s)
            if self._authenticate is not None and (error := await self._probed(state)):
                return error
            connection = await Connection.open(
                Address(state.node.host, state.node.port),  # perhaps a host that no user named
                self._config,
                authenticate=self._authenticate,
                turn=turn,
                deadline=self.give_up_at,
                node_id=state.node.id if state.node.id >= 0 else None,
                # With credentials, each connection first negotiates its versions.
                known_versions=lambda: None if self._authenticate else state.api_versions,
                first_versions=self._first_versions,
                cluster_id=self.cluster_id,
                on_bug=lambda error: self._scope.fail(error, name="a connection's callback"),
            )
        except KafkaError as error:
            self._failed(state, error)
            return error
        finally:
            slot.connecting = None
            if self._probes.get(state.node.address) is asyncio.current_task():
                del self._probes[state.node.address]
        slot.connection = connection
        self._refused_until.pop(state.node.address, None)
        self.opened_count += 1
        self.reconnect_count += slot.opened_at > 0.0
        slot.opened_at = self._loop.time()
        if mute_s := self._mute_s(slot.muted_until, slot.lane):
            connection.wire.throttle(mute_s)
        connection.closed.add_done_callback(
            self._guard(lambda: self._usable(state, slot), name="noticing a lost connection")
        )
        if state.last_error is not None:
            self._reached_again(state)
            if state.node.id >= 0:  # a bootstrap server is not a known node yet
                self._log_reconnected()
        self._arm_idle_timer()
        self._plan_renewal(connection)
        return None

    def _plan_renewal(self, connection: Connection) -> None:
        """Renew a SASL session before it ends, on its connection (KIP-368), and so on."""
        if (authenticate := self._authenticate) is None or not connection.wire.session_lifetime_s:
            return

        async def renew() -> None:
            await connection.renew(authenticate, self._config.connect_timeout_s)
            if connection.error is None:
                self._plan_renewal(connection)

        def renew_soon() -> None:
            if connection.error is None and self._scope.failure is None:
                self._scope.spawn(renew(), name=f"renew session with {connection.peer}")

        at = connection.wire.renewal_at(self._rng)
        timer = self._loop.call_at(at, self._guard(renew_soon, name="renewing a session"))
        connection.closed.add_done_callback(lambda _: timer.cancel())

    async def _probed(self, state: NodeState) -> KafkaError | None:
        """After a failure, let one attempt at a time send credentials: wrong ones lock accounts."""
        address = state.node.address
        if (probe := self._probes.get(address)) is None:
            if state.last_error is not None or address in self._refused_until:
                self._probes[address] = cast(_Attempt, asyncio.current_task())
            return None
        await asyncio.wait([probe])
        return None if probe.cancelled() else probe.result()

    def try_lost(self) -> None:
        """Start connecting to lost nodes without requests. Refused credentials exclude a node."""
        for node_id, state in tuple(self._nodes.items()):
            if self.lost_at(node_id) is not None and state.node.address not in self._refused_until:
                self.ready(node_id)

    # --- Connections that fail -------------------------------------------------------------
    def _failed(self, state: NodeState, error: KafkaError) -> None:
        is_news = state.last_error is None and self._nodes.get(state.node.id) is state
        state.last_error = error
        if is_news:
            log.log(self._level, "%s is not reachable: %s", state, error)
            state.lost_at = self._loop.time()
            self._report_reachability(state)
        delay_s = state.backoff.next_delay_s()
        # Refused credentials and untrusted certificates have the longest delay.
        if not error.retriable or isinstance(error, UnansweredCredentialsError):
            delay_s = max(delay_s, self._config.reconnect_backoff_max_s)
            now = self._loop.time()
            still = {at: until for at, until in self._refused_until.items() if until > now}
            self._refused_until = {**still, state.node.address: now + delay_s}
        state.next_attempt_at = max(state.next_attempt_at, self._loop.time() + delay_s)

    def _reached_again(self, state: NodeState) -> None:
        state.last_error = None
        address = state.node.address
        _, lost_at = self._back.get(address, ("", state.lost_at))
        self._back[address] = str(state), min(lost_at, state.lost_at)
        self._report_reachability(state)

    def _log_reconnected(self) -> None:
        """When no node is missing any more, log which were, at the level of their loss."""
        if not self._back or any(self.lost_at(node_id) is not None for node_id in self._nodes):
            return
        names, lost_at = zip(*self._back.values(), strict=True)
        down_s = self._loop.time() - min(lost_at)
        what = "brokers are reachable again: connected to %s after %.1f s"
        log.log(self._level, what, ", ".join(names), down_s)
        self._back.clear()

    def _report_reachability(self, state: NodeState) -> None:
        if self.on_reachability is not None:
            node = state.node
            down_s = self._loop.time() - state.lost_at
            address = str(Address(node.host, node.port))
            self.on_reachability(node.id, address, state.last_error, down_s)

    def _usable(self, state: NodeState, slot: Slot) -> Connection | None:
        """Return the lane's open connection. A lost one starts the backoff here."""
        connection = slot.connection
        if connection is None or connection.error is None:
            return connection
        slot.connection = None
        slot.muted_until = connection.muted_until
        if self._loop.time() - slot.opened_at >= self._config.reconnect_backoff_max_s:
            state.backoff.reset()
        self._failed(state, connection.error)
        return None

    def _backoff_s(self, state: NodeState) -> float:
        next_attempt_at = state.next_attempt_at
        if self._refused_until:
            refused_until = self._refused_until.get(state.node.address, 0.0)
            next_attempt_at = max(next_attempt_at, refused_until)
        return max(0.0, next_attempt_at - self._loop.time())

    def _mute_s(self, muted_until: float, lane: Lane) -> float:
        if muted_until == 0.0 or not lane.waits_for_throttled:
            return 0.0
        return max(0.0, muted_until - self._loop.time())

    # --- Which nodes there are -------------------------------------------------------------
    def update_nodes(self, nodes: Mapping[int, Node]) -> None:
        """Follow the metadata. A node takes over the connection of its bootstrap server."""
        leaving: dict[tuple[str, int], NodeState] = {}
        for node_id, state in list(self._nodes.items()):
            node = nodes.get(node_id)
            if node is None or node.address != state.node.address:
                del self._nodes[node_id]
                if state.last_error is not None and node_id >= 0:
                    self._left_unreachable[node_id] = state
                connection = state.slots[Lane.GENERAL].connection
                if node_id < 0 and connection is not None and connection.error is None:
                    leaving[state.node.address] = state
                else:
                    self._retire(state)
        for node_id, node in nodes.items():
            if node_id in self._nodes:
                continue
            known = leaving.pop(node.address, None)
            if known is None:
                config = self._config
                delays = config.reconnect_backoff_s, config.reconnect_backoff_max_s
                known = NodeState(node, Backoff(*delays, self._rng))
            else:
                known.name_node(node)
            self._nodes[node_id] = known
            self._restore(known)
        for state in leaving.values():
            self._retire(state)
        self._log_reconnected()

    def _restore(self, state: NodeState) -> None:
        before = self._left_unreachable.pop(state.node.id, None)
        if before is None:
            return
        state.last_error, state.lost_at = before.last_error, before.lost_at
        if state.slots[Lane.GENERAL].connection is not None:
            self._reached_again(state)

    def give_up(self, node_id: int, lane: Lane, error: KafkaError) -> None:
        """Fail the requests on a lane of a hanging node, and on its retired connections."""
        hanging = [connection for connection in self._leaving if connection.wire.node_id == node_id]
        state = self._nodes.get(node_id)
        if state is not None and (connection := state.slots[lane].connection) is not None:
            hanging.append(connection)
        for each in hanging:
            each.give_up(error)

    def renegotiate_versions(self, node_id: int) -> None:
        """Let a node's next connections request its versions, after the node's backoff.

        All its connections are retired, because new ones use the versions of an open one.
        """
        state = self._nodes.get(node_id)
        if state is None:
            return
        for slot in state.slots.values():
            if slot.connection is not None:
                slot.muted_until = slot.connection.muted_until
                self._let_go(slot, slot.connection)
        delay_s = state.backoff.next_delay_s()
        state.next_attempt_at = max(state.next_attempt_at, self._loop.time() + delay_s)

    def _retire(self, state: NodeState) -> None:
        for slot in state.slots.values():
            if slot.connection is not None:
                self._let_go(slot, slot.connection)
            if slot.connecting is not None:
                self._scope.cancel(slot.connecting)

    def _let_go(self, slot: Slot, connection: Connection) -> None:
        """Close a connection once its responses have arrived. The slot is free at once."""
        slot.connection = None
        self._leaving[connection] = None
        connection.ended.add_done_callback(lambda _: self._leaving.pop(connection, None))
        connection.retire()

    # --- Idle connections ------------------------------------------------------------------
    def _arm_idle_timer(self, when: float | None = None) -> None:
        max_idle_s = self._config.connections_max_idle_s
        if max_idle_s is not None and self._idle_timer is None:
            when = self._loop.time() + max_idle_s if when is None else when
            close = partial(self._close_idle, max_idle_s)
            close_guarded = self._guard(close, name="closing idle connections")
            self._idle_timer = self._loop.call_at(when, close_guarded)

    def _close_idle(self, max_idle_s: float) -> None:
        """Close idle connections. The timer then fires when the one with the oldest use is due."""
        self._idle_timer = None
        now, next_due = self._loop.time(), math.inf
        for slot, connection in tuple(self._connected_slots()):
            due = max_idle_s + (now if connection.in_flight_count else connection.last_used)
            if due <= now:
                self._let_go(slot, connection)
            else:
                next_due = min(next_due, due)
        if next_due < math.inf:
            self._arm_idle_timer(next_due)

    # --- Closing ---------------------------------------------------------------------------
    def _connected_slots(self) -> Iterator[tuple[Slot, Connection]]:
        for state in self._nodes.values():
            for slot in state.slots.values():
                if slot.connection is not None:
                    yield slot, slot.connection

    def disconnect(self) -> None:
        """Close every connection, and fail its requests. New ones are opened without a backoff."""
        for attempt in self._attempts:
            self._scope.cancel(attempt)
        for slot, connection in tuple(self._connected_slots()):
            self._let_go(slot, connection)
        for connection in tuple(self._leaving):
            connection.close()

    def abort(self) -> None:
        self._is_closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        self.disconnect()
        self._nodes.clear()

    def hang_up(self) -> None:
        """End every connection of a closed loop, which cannot close them itself."""
        connected = [connection for _, connection in self._connected_slots()]
        for connection in (*self._leaving, *connected):
            connection.hang_up()

    async def close(self) -> None:
        self.abort()
        if self._attempts:
            await asyncio.wait(self._attempts)
        for connection in tuple(self._leaving):
            await connection.wait_closed()


class Turns:
    """Lets one bootstrap server at a time receive credentials, because wrong ones lock accounts."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._refusal: KafkaError | None = None
        self._refusal_count = 0

    def ticket(self) -> Callable[[], AbstractAsyncContextManager[None]]:
        """Return a context for sending credentials. It raises if others are refused before."""
        return partial(self._turn, self._refusal_count)

    @asynccontextmanager
    async def _turn(self, seen_count: int) -> AsyncIterator[None]:
        async with self._lock:
            if self._refusal is not None and self._refusal_count != seen_count:
                raise own_copy(self._refusal)
            try:
                yield
            except KafkaError as error:
                if not error.retriable:
                    self._refusal = error
                    self._refusal_count += 1
                raise
