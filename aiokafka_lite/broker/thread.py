"""A broker on its own event loop and thread, with its rules and request log, for other threads."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from asyncio import _get_running_loop
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError
from types import TracebackType
from typing import Concatenate, Final, Generic, ParamSpec, Protocol, TypeVar

from aiokafka_lite._arguments import checks_arguments, plain
from aiokafka_lite._compat import Self
from aiokafka_lite.broker import config as settings
from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.direct import KINDS, WAIT_S, NewRecord
from aiokafka_lite.broker.faults.builder import FaultMethods
from aiokafka_lite.broker.faults.rules import (
    Action,
    AnyRule,
    ConnectionFault,
    ConnectionMatch,
    ConnectionRule,
    Match,
    Removable,
    Rule,
)
from aiokafka_lite.broker.network.request_log import RequestLog, SeenRequest
from aiokafka_lite.broker.server import Broker
from aiokafka_lite.errors import ForkedError
from aiokafka_lite.records import Codec
from aiokafka_lite.structs import RecordMetadata

__all__ = ["BrokerThread"]

T = TypeVar("T")
P = ParamSpec("P")
TargetT = TypeVar("TargetT")
TargetT_co = TypeVar("TargetT_co", covariant=True)
RuleT = TypeVar("RuleT", bound=AnyRule)


class Remote(Protocol[TargetT_co]):
    """Calls functions with its target, in the broker's thread. `path` is its name in errors."""

    path: str

    def call(self, function: Callable[[TargetT_co], T]) -> T: ...

    def wait(self, name: str, function: Callable[[TargetT_co], Coroutine[object, None, T]]) -> T:
        """Run a coroutine function. Raise RuntimeError if that would block an event loop."""


def called(
    method: Callable[Concatenate[TargetT, P], T],
) -> Callable[Concatenate[Remote[TargetT], P], T]:
    """Return the method of a `Remote` that calls this method of its target."""

    @functools.wraps(method)
    def call(self: Remote[TargetT], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.call(lambda target: method(target, *args, **kwargs))

    return call


def waited(
    method: Callable[Concatenate[TargetT, P], Coroutine[object, None, T]],
) -> Callable[Concatenate[Remote[TargetT], P], T]:
    """Return the method of a `Remote` that waits for this coroutine method of its target."""

    @functools.wraps(method)
    def wait(self: Remote[TargetT], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.wait(
            f"{self.path}.{method.__name__}", lambda target: method(target, *args, **kwargs)
        )

    return wait


class BrokersObject(Generic[TargetT]):
    """An object of the broker. `Remote` for it."""

    def __init__(self, target: TargetT, thread: Remote[object]) -> None:
        self._target = target
        self._thread = thread

    def call(self, function: Callable[[TargetT], T]) -> T:
        return self._thread.call(lambda broker: function(self._target))

    def wait(self, name: str, function: Callable[[TargetT], Coroutine[object, None, T]]) -> T:
        return self._thread.wait(name, lambda broker: function(self._target))


class _ThreadsRule(BrokersObject[RuleT], Removable):
    path = "rule"

    def __repr__(self) -> str:
        return repr(self._target)

    @property
    def hits(self) -> int:
        """The number of requests or connections that the rule has applied to."""
        return self._target.hits

    @property
    def is_over(self) -> bool:
        """Whether the rule has ended."""
        return self._target.is_over

    def remove(self) -> None:
        """End the rule. The broker handles the requests that it holds. Idempotent."""
        self.call(lambda rule: rule.remove())


class ThreadRule(_ThreadsRule[Rule]):
    release = called(Rule.release)
    reached = waited(Rule.reached)


class ThreadConnectionRule(_ThreadsRule[ConnectionRule]):
    """A `ConnectionRule` for threads other than the broker's."""


class ThreadRequestLog(BrokersObject[RequestLog]):
    path = "broker.requests"

    def __len__(self) -> int:
        return self.call(len)

    def __iter__(self) -> Iterator[SeenRequest]:
        return iter(self.call(list))

    @property
    def total(self) -> int:
        """The number of all requests so far."""
        return self.call(lambda requests: requests.total)

    of = called(RequestLog.of)
    wait_for = waited(RequestLog.wait_for)
    clear = called(RequestLog.clear)


NOT_STARTED: Final = "the broker was not started: use `with BrokerThread() as broker:`"


def _without_result(method: Callable[P, object]) -> Callable[P, None]:
    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        method(*args, **kwargs)

    return call


@checks_arguments({**KINDS, **settings.KINDS})
class BrokerThread(FaultMethods[ThreadRule, ThreadConnectionRule]):
    """Runs a `Broker` during a `with` block. The methods are for any thread but the broker's.

    Entering raises the errors of `Broker`, and methods raise those of `Broker`'s methods. The end
    of the block raises the first unexpected exception in the broker, if there was one.

    In a coroutine, `run` would block the event loop, and `wait_…` raise RuntimeError: use
    `asyncio.to_thread`. The other methods take well under a millisecond.
    """

    path = "broker"

    def __init__(self, config: BrokerConfig | None = None) -> None:
        self._config = config or BrokerConfig()
        self._broker: Broker | None = None
        # Cancels the calls of other threads that wait for the broker's.
        self._cancels: dict[Callable[[], bool], None] = {}
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        # Created on entering.
        self._loop: asyncio.AbstractEventLoop

    @property
    def broker(self) -> Broker:
        """The broker, which belongs to another thread: change it in `call` or `run` only.

        Raises:
            RuntimeError: The broker was not started.
        """
        if self._broker is None:
            raise RuntimeError(NOT_STARTED)
        return self._broker

    @property
    def bootstrap_servers(self) -> str:
        """The brokers' addresses for clients, "host:port"."""
        return self.broker.bootstrap_servers

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise RuntimeError("a BrokerThread can be started only once: create another one")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._run, args=(self._loop,), name="kafka-broker", daemon=True
        )
        self._thread.start()
        try:
            self._broker = self._await(self._start())
        except BaseException:
            self._end(self._thread)
            self._thread = None
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._thread is not None and not self._thread.is_alive() and not self._ending.is_set():
            return  # in a forked child: the broker runs in the parent process
        thread = self._check_caller()
        self._ending.set()
        for cancel in tuple(self._cancels):  # the results that other threads wait for
            cancel()
        try:
            asyncio.run_coroutine_threadsafe(self.broker.stop(), self._loop).result()
        finally:
            self._end(thread)
        if error is None:
            self.raise_if_failed()

    async def _start(self) -> Broker:
        broker = Broker(config=self._config)
        await broker.start()
        return broker

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            loop.close()

    def _end(self, thread: threading.Thread) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        thread.join()

    def _check_caller(self) -> threading.Thread:
        """Return the broker's thread, for which the caller may wait.

        Raises:
            RuntimeError: It is the caller's thread, or does not run.
            ForkedError: It runs in the parent process.
        """
        thread = self._thread
        if thread is None:
            raise RuntimeError(NOT_STARTED)
        if self._ending.is_set():
            raise RuntimeError("the broker was stopped")
        if thread is threading.current_thread():
            raise RuntimeError(
                "a BrokerThread cannot be used in its own thread, which would wait for itself: in "
                "functions that the broker calls, use the `Broker` of call(), run() or wait_until()"
            )
        if not thread.is_alive():
            raise ForkedError(
                "the broker runs in the process from which this process was forked: use only its "
                "bootstrap_servers here"
            )
        return thread

    def _await(self, coro: Coroutine[object, None, T]) -> T:
        try:
            self._check_caller()
        except BaseException:
            coro.close()
            raise
        future = asyncio.run_coroutine_threadsafe(coro, self._loop)
        self._cancels[future.cancel] = None
        if self._ending.is_set():  # it was set after the test above
            future.cancel()
        try:
            return future.result()
        except CancelledError:
            raise RuntimeError("the broker was stopped during the call") from None
        except BaseException:
            future.cancel()  # the caller may have been interrupted
            raise
        finally:
            del self._cancels[future.cancel]

    def wait(self, name: str, function: Callable[[Broker], Coroutine[object, None, T]]) -> T:
        """Run a coroutine function with the broker, and wait for it.

        Raises:
            RuntimeError: Called in a coroutine, whose event loop it would block.
        """
        if _get_running_loop() is None:
            return self._await(function(self.broker))
        self._check_caller()
        raise RuntimeError(
            f"{name}() would block this event loop. Call it in a thread: "
            f"await asyncio.to_thread({name}, ...)"
        )

    def call(self, function: Callable[[Broker], T]) -> T:
        """Call a function with the broker, in the broker's thread, and return its result.

        Raises:
            TypeError: It is a coroutine function: use `run`.
        """

        async def called() -> T:
            rule = "call() takes a plain function: use run() for a coroutine function"
            return plain(rule, function(self.broker))

        return self._await(called())

    def run(self, function: Callable[[Broker], Coroutine[object, None, T]]) -> T:
        """Run a coroutine function with the broker, in its event loop, and return its result.

        Raises:
            RuntimeError: The broker was stopped during the call.
            TypeError: It is a plain function: use `call`.
        """

        async def ran() -> T:
            coro = function(self.broker)
            if not inspect.isawaitable(coro):
                raise TypeError("run() takes a coroutine function: use call() for a plain function")
            return await coro

        return self._await(ran())

    # The methods of `Broker`, which documents them

    add_partitions = called(Broker.add_partitions)
    committed = called(Broker.committed)
    coordinator_of = called(Broker.coordinator_of)
    delete_topic = called(Broker.delete_topic)
    end_offsets = called(Broker.end_offsets)
    expire_session = called(Broker.expire_session)
    hold_replica = called(Broker.hold_replica)
    leader_of = called(Broker.leader_of)
    leaders_now = called(Broker.leaders_now)
    move_coordinator = called(Broker.move_coordinator)
    move_leader = called(Broker.move_leader)
    produce = called(Broker.produce)
    records = called(Broker.records)
    release_replica = called(Broker.release_replica)
    truncate = called(Broker.truncate)
    wait_for_commits = waited(Broker.wait_for_commits)
    wait_for_members = waited(Broker.wait_for_members)
    wait_for_records = waited(Broker.wait_for_records)
    # Without the topic, which belongs to the broker's thread.
    create_topic = called(_without_result(Broker.create_topic))
    recreate_topic = called(_without_result(Broker.recreate_topic))

    def produce_all(
        self, topic: str, records: Iterable[NewRecord], *, codec: Codec | str = Codec.NONE
    ) -> list[RecordMetadata]:
        """Write records in large batches and return their offsets. See `Broker.produce_all`."""
        ready = [*records]  # the caller's iterator belongs to the caller's thread
        return self.call(lambda broker: broker.produce_all(topic, ready, codec=codec))

    @property
    def topics(self) -> dict[str, int]:
        """The number of partitions of every topic, internal ones included."""
        return self.call(
            lambda broker: {name: topic.partition_count for name, topic in broker.topics.items()}
        )

    def wait_until(self, is_so: Callable[[Broker], bool], *, timeout_s: float = WAIT_S) -> None:
        """Wait until `is_so(broker)`, called in the broker's thread, returns True.

        Raises:
            TimeoutError: The timeout has passed.
        """
        self.wait(
            "broker.wait_until",
            lambda broker: broker.wait_until(lambda: is_so(broker), timeout_s=timeout_s),
        )

    def stop_node(self, node_id: int, *, clean: bool = True) -> None:
        """Stop a node. See `Broker.stop_node`."""
        self.run(lambda broker: broker.stop_node(node_id, clean=clean))

    def start_node(self, node_id: int) -> None:
        """Start a stopped node at its previous address. See `Broker.start_node`."""
        self.run(lambda broker: broker.start_node(node_id))

    # Faults (see faults/builder.py for `on` and `on_connect`), and the requests

    @property
    def requests(self) -> ThreadRequestLog:
        """The latest requests to the broker, and their responses."""
        return ThreadRequestLog(self.broker.requests, self)

    def clear_faults(self) -> None:
        """End all rules. The broker handles the requests that they hold."""
        self.call(lambda broker: broker.faults.clear())

    def put_rule(self, match: Match, action: Action, times: int | None) -> ThreadRule:
        """Add a rule after the existing ones."""
        rule = self.call(lambda broker: broker.put_rule(match, action, times))
        return ThreadRule(rule, self)

    def put_connection_rule(
        self, match: ConnectionMatch, fault: ConnectionFault, times: int | None
    ) -> ThreadConnectionRule:
        """Add a rule for connections after the existing ones."""
        rule = self.call(lambda broker: broker.put_connection_rule(match, fault, times))
        return ThreadConnectionRule(rule, self)

    # Errors

    def raise_if_failed(self) -> None:
        """Raise the first unexpected exception in the broker, if there was one."""
        if self._broker is not None and self._broker.failure is not None:
            raise self._broker.failure
