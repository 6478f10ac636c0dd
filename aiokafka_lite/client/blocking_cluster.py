"""A cluster for blocking callers: an asyncio `Cluster` on an event loop of its own.

The loop runs in the caller's thread while a call waits, so it needs no thread. Between calls,
responses wait in the kernel's buffers, and each call first processes what has arrived.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import selectors
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from aiokafka_lite._compat import override, timeout, timeout_at
from aiokafka_lite._forks import leave_to_parent, notify_of_forks
from aiokafka_lite._tasks import TaskScope, end_unfinished
from aiokafka_lite.client.arguments import authenticator
from aiokafka_lite.client.backoff import Backoff
from aiokafka_lite.client.cluster import LEAST_S, SLACK_S, Cluster
from aiokafka_lite.client.cluster_requests import is_refused
from aiokafka_lite.client.config import ClientConfig
from aiokafka_lite.client.connection import Connection
from aiokafka_lite.client.view import ClusterView, Node
from aiokafka_lite.client.wire import Exchange
from aiokafka_lite.errors import (
    ClientClosedError,
    IllegalStateError,
    KafkaConnectionError,
    KafkaError,
    RequestTimedOutError,
)
from aiokafka_lite.protocol.prepared import AnyRequest
from aiokafka_lite.protocol.schema import Request, Response
from aiokafka_lite.structs import TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.client.sasl import Mechanism

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Response)
T = TypeVar("T")

# How long connections to servers that were never reached are retried while they are refused.
MAX_REFUSED_S: Final = 10.0
# Iterations of the loop after which the end of a stream has reached the pool: the socket is
# readable, the transport closes, and its connection is lost.
TURNS: Final = 4


class _Loop(asyncio.SelectorEventLoop):
    """Not uvloop's, which sends nothing before it runs again."""

    _is_made = False

    def __init__(self, selector: selectors.BaseSelector) -> None:
        super().__init__(selector)
        self._is_made = True

    @override
    def __del__(self) -> None:
        if self._is_made:  # asyncio cannot close a loop without its sockets
            super().__del__()


class OwnLoop:
    """An event loop for blocking code. Threads without a running loop use it, one at a time."""

    def __init__(self) -> None:
        try:
            self._selector = selectors.DefaultSelector()
            try:
                self._loop = _Loop(self._selector)
            except BaseException:
                self._selector.close()
                raise
        except OSError as error:
            raise KafkaConnectionError(f"cannot create an event loop: {error}") from error
        self._is_running = threading.Lock()
        self._loop.set_exception_handler(self._note)
        # The error of a callback or a background task. It may be a signal handler's.
        self.failure: BaseException | None = None
        # Whether callbacks may be lost. Written by the thread that runs the loop.
        self.is_broken = False
        notify_of_forks(self, has_descriptor=True)

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if context.keys().isdisjoint(("handle", "protocol")):
            loop.default_exception_handler(context)
        else:
            self.fail(context["exception"])

    def fail(self, error: BaseException) -> None:
        """End the call that waits: the error may have cost it a callback."""
        self.failure = error
        self.is_broken = True
        self._loop.stop()

    def run(self, coroutine: Coroutine[object, None, T]) -> T:
        """Run a coroutine to its end. If the loop `is_broken` then, use only `discard`."""
        if _runs_loop():
            coroutine.close()
            raise IllegalStateError(
                "a blocking call cannot be made in a thread whose event loop runs, such as in a "
                "notebook: make it in another thread, with asyncio.to_thread"
            )
        with self._is_running:
            if self.is_broken or self._loop.is_closed():  # by another thread
                coroutine.close()
                raise KafkaConnectionError("the event loop of this client was closed")
            task = self._loop.create_task(coroutine)
            try:
                return self._loop.run_until_complete(task)
            except BaseException as error:
                is_of_call = isinstance(error, (KafkaError, asyncio.CancelledError))
                self.is_broken |= not (task.done() and is_of_call)
                if not task.done():
                    # The loop may have lost a callback that the task waits for.
                    task.cancel()
                    self._turn()
                    end_unfinished(task)
                if self.failure is not None:
                    raise self.failure from None
                raise

    def _turn(self) -> None:
        for _ in range(TURNS):
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()

    def discard(self, last: Callable[[], object]) -> None:
        """Make a last call on the loop, and close it without waiting for its tasks."""
        with self._is_running:
            try:
                if not self._loop.is_closed() and not _runs_loop():  # closed by another thread
                    self._loop.call_soon(last)
                    self._turn()
            finally:
                self.close()

    def post(self, call: Callable[[], object]) -> None:
        """Make a call on the loop, now or when it runs next. Any thread may use it at any time."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call)

    def close(self) -> None:
        self._loop.set_exception_handler(None)  # which refers to this
        self._loop.close()

    def note_fork(self) -> None:
        if not self._loop.is_closed():
            # Closing it, as garbage collection does, would change the epoll instance of both.
            leave_to_parent(self._selector.fileno(), self._loop)


class _Opened(NamedTuple):
    """A loop, with the cluster that lives on it."""

    own: OwnLoop
    cluster: Cluster

    def end(self) -> None:
        """Close them without waiting, because callbacks of the loop may be lost."""
        try:
            self.own.discard(self.cluster.abort)
        finally:
            self.cluster.scope.drop_all()


class BlockingCluster:
    """It never creates topics. A forked child connects again."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        mechanism: Mechanism | None = None,
        receive_buffer_bytes: int | None = None,
    ) -> None:
        self.config = ClientConfig(
            **{
                **vars(config),
                "allow_auto_create_topics": False,
                "receive_buffer_bytes": receive_buffer_bytes,
            }
        )
        self._mechanism = mechanism
        self._rng = random.Random()
        # Replaced only with the lock. Threads that call at once open one.
        self._opened: _Opened | None = None
        self._opening = threading.Lock()
        # The latest one, for its view.
        self._cluster: Cluster | None = None
        # The call that runs, as the loop sees it.
        self._call: asyncio.Task[object] | None = None
        self._deadline: float | None = None
        # Of the servers that the latest request for metadata tried.
        self._failures: list[KafkaError] = []
        self._is_closed = False
        self._is_hanging_up = False
        notify_of_forks(self)

    def run(
        self,
        ask: Callable[[Cluster], Coroutine[object, None, T]],
        *,
        catches_up: bool = True,
        limit_s: float = math.inf,
    ) -> T:
        """Run a coroutine of the cluster, with the time that is left."""
        opened = self._open()
        cluster = opened.cluster

        async def in_time() -> T:
            if not catches_up:
                return await ask(cluster)
            await _turn()
            left_s = min(self.left_s, limit_s)
            ends_at = None if left_s == math.inf else time.monotonic() + left_s + SLACK_S
            try:
                async with timeout_at(ends_at):
                    return await ask(cluster)
            except asyncio.TimeoutError as error:
                raise RequestTimedOutError(_out_of_time(cluster)) from error

        async def call() -> T:
            self._call = asyncio.current_task()
            try:
                return await in_time()
            finally:
                self._call = None

        cluster.pool.give_up_at = self._deadline
        try:
            return self._run_on(opened, call())
        except asyncio.CancelledError:
            raise ClientClosedError("the call was ended, because the client is closed") from None
        except Exception as error:
            failure = cluster.scope.failure
            if failure is not None and error.__cause__ is not failure:
                raise KafkaConnectionError(
                    f"the client failed, and connects again at the next call: {failure!r}"
                ) from failure
            raise
        finally:
            if self._mechanism is not None and cluster.pool.is_renewing:
                # Between calls, the time of renewals would run out.
                self._finish(opened, self._until_renewed(cluster))

    async def _until_renewed(self, cluster: Cluster) -> None:
        with suppress(asyncio.TimeoutError):
            async with timeout(min(self.config.connect_timeout_s, self.left_s)):
                await cluster.pool.until_renewed()

    def _finish(self, opened: _Opened, coroutine: Coroutine[object, None, None]) -> None:
        """Run the rest of a call, if possible. Its errors do not replace the result."""
        if opened.own.is_broken or self._opened is not opened:
            coroutine.close()
            return
        try:
            self._run_on(opened, coroutine)
        except Exception as error:
            if not isinstance(error, KafkaError) and error is not opened.cluster.scope.failure:
                raise  # a signal handler's

    def _run_on(self, opened: _Opened, coroutine: Coroutine[object, None, T]) -> T:
        try:
            return opened.own.run(coroutine)
        finally:
            if opened.own.is_broken:
                self._discard(opened)

    def _open(self) -> _Opened:
        """Return the loop and the cluster. New ones begin with the view of those before."""
        opened = self._opened
        if opened is not None and opened.own.is_broken and not _runs_loop():
            self._discard(opened)  # before the thread that has broken it
        with self._opening:
            if self._opened is None and not self._is_closed:
                own = OwnLoop()
                try:
                    self._cluster = own.run(self._make_cluster(own))
                except BaseException:
                    own.close()
                    raise
                self._opened = _Opened(own, self._cluster)
            opened = self._opened
        if opened is None or self._is_closed:
            raise ClientClosedError("the client is closed")
        return opened

    async def _make_cluster(self, own: OwnLoop) -> Cluster:
        return Cluster(
            self.config,
            scope=TaskScope("blocking client", on_failure=own.fail),
            rng=self._rng,
            authenticate=authenticator(self._mechanism, self.config),
            level=logging.DEBUG,  # callers get the errors
            view=self.view,
        )

    def _discard(self, opened: _Opened) -> None:
        """Close a loop and all connections without waiting, unless another thread has done so."""
        with self._opening:
            if self._opened is not opened:
                return
            self._opened = None
        opened.end()

    def note_fork(self) -> None:
        self._opening = threading.Lock()  # another thread of the parent may hold it
        if self._opened is not None:
            leave_to_parent(-1, self._opened.cluster)
            self._opened = None

    # --- Time ------------------------------------------------------------------------------
    def limit(self, seconds: float) -> None:
        """Limit the total time of all later calls. By default, each request has its own timeout."""
        self._deadline = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        if self._deadline is None:
            return math.inf
        return max(LEAST_S, self._deadline - time.monotonic())

    def timeout_s(self, timeout_s: float | None = None) -> float:
        most_s = self.config.request_timeout_s if timeout_s is None else timeout_s
        return min(most_s, self.left_s)

    # --- Metadata --------------------------------------------------------------------------
    @property
    def view(self) -> ClusterView:
        return ClusterView() if self._cluster is None else self._cluster.view

    def refresh(self, topics: Collection[str] | None) -> ClusterView:
        """Fetch metadata and return the new view of these topics, or of all for None.

        Temporary errors are retried for ``request_timeout_s``, or for ``MAX_REFUSED_S`` while every
        bootstrap server refuses connections and no broker was ever reached.
        """
        return self.retrying(lambda: self.look(topics))

    def look(self, topics: Collection[str] | None) -> ClusterView:
        """As `refresh`, without retries."""
        names = None if topics is None else frozenset(topics)
        self._failures = []
        return self.run(lambda cluster: cluster.look(names, self._failures))

    def apply_leader_hint(
        self, tp: TopicPartition, leader: int, leader_epoch: int, endpoints: Iterable[Node] = ()
    ) -> bool:
        """Update the leader from an error response (KIP-951). Return False if it is not newer."""
        return bool(self._known().apply_leader_hints({tp: (leader, leader_epoch)}, endpoints))

    def _known(self) -> Cluster:
        if self._cluster is None:
            raise IllegalStateError("no metadata was requested before")
        return self._cluster

    # --- Requests --------------------------------------------------------------------------
    def connection(self, node: int | Node) -> Connection:
        """Return an open connection, after the node's backoff. `receive` waits for responses."""
        return self.run(lambda cluster: cluster.pool.connect(_node_id(cluster, node)))

    def receive(self, exchange: Exchange[R]) -> R:
        """Wait for the response to a request, and return it decoded."""
        if exchange.is_done:
            return exchange.result()

        async def wait(cluster: Cluster) -> R:
            return await exchange

        return self.run(wait, catches_up=False)

    def request(
        self, node: int | Node, request: AnyRequest[R], *, timeout_s: float | None = None
    ) -> R:
        """A given timeout includes the time to connect."""

        async def ask(cluster: Cluster) -> R:
            node_id = _node_id(cluster, node)
            await cluster.pool.connect(node_id)  # takes a part of the limit
            own_s = self.timeout_s(timeout_s)
            return await cluster.request(node_id, request, timeout_s=own_s)

        return self.run(ask, limit_s=math.inf if timeout_s is None else timeout_s)

    def request_any(self, request: Request[R], *, timeout_s: float | None = None) -> R:
        """Ask one node after another. Their times are shares of the limit, and of the timeout."""
        own_s = self.timeout_s(timeout_s)
        limit_s = min(self.left_s, math.inf if timeout_s is None else timeout_s)
        give_up_at = time.monotonic() + limit_s
        return self.run(
            lambda cluster: cluster.request_any(request, timeout_s=own_s, give_up_at=give_up_at),
            limit_s=limit_s,
        )

    def coordinator(self, group_id: str) -> int:
        """Add the group's coordinator to the view. Temporary errors are retried."""
        own_s = self.timeout_s()
        return self.run(
            lambda cluster: cluster.find_coordinator(group_id, timeout_s=own_s), limit_s=own_s
        )

    def retrying(self, ask: Callable[[], T]) -> T:
        """Call until it succeeds, fails permanently, or ``request_timeout_s`` is over."""
        backoff = Backoff(self.config.retry_backoff_s, self.config.retry_backoff_max_s, self._rng)
        began_at = time.monotonic()
        give_up_at = began_at + min(self.config.request_timeout_s, self.left_s)
        level = logging.WARNING  # once, soon after a mistyped address
        while True:
            try:
                return ask()
            except ClientClosedError:
                raise
            except KafkaError as error:
                delay_s = backoff.next_delay_s()
                if not self.view.nodes and self._failures and all(map(is_refused, self._failures)):
                    give_up_at = min(give_up_at, began_at + MAX_REFUSED_S)
                left_s = give_up_at - time.monotonic()
                if not error.retriable or delay_s >= left_s:
                    raise
                log.log(level, "%s (retrying for up to %.0f s)", error, left_s)
                level = logging.DEBUG
            time.sleep(delay_s)

    # --- The end ---------------------------------------------------------------------------
    def hang_up(self) -> None:
        """Close all connections, and fail what waits for them. Any thread may call it."""
        if (opened := self._opened) is not None:
            self._is_hanging_up = True
            opened.own.post(opened.cluster.pool.disconnect)

    def abort(self) -> None:
        """Fail the call that waits, and all later ones. Any thread may call it."""
        self._is_closed = True
        if (opened := self._opened) is None:
            return

        def end() -> None:
            opened.cluster.abort()
            if (call := self._call) is not None:
                # Requests fail first, with their own errors.
                call.get_loop().call_soon(call.cancel)

        opened.own.post(end)

    def settle(self) -> None:
        """Finish what `hang_up` has begun, if no call has done so since."""
        if self._is_hanging_up and (opened := self._opened) is not None:
            self._is_hanging_up = False
            self._finish(opened, _turn())

    def close(self) -> None:
        self._is_closed = True
        with self._opening:
            opened, self._opened = self._opened, None
        if opened is None:
            return
        try:
            with suppress(KafkaConnectionError):  # another call has broken the loop
                opened.own.run(_closed(opened.cluster))
        finally:
            opened.end()


def _runs_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _closed(cluster: Cluster) -> None:
    await cluster.close()
    await cluster.scope.close()


async def _turn() -> None:
    """Process what has happened while the loop stood still."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


def _out_of_time(cluster: Cluster) -> str:
    errors = filter(None, map(cluster.pool.last_error, cluster.pool.node_ids()))
    reasons = "; ".join(dict.fromkeys(map(str, errors)))
    return "the time limit of the call is over" + (f" ({reasons})" if reasons else "")


def _node_id(cluster: Cluster, node: int | Node) -> int:
    return node if isinstance(node, int) else cluster.add_node(node)
