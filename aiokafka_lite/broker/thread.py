"""A broker on its own event loop and thread, for callers without a loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import CancelledError
from types import TracebackType
from typing import Final, TypeVar

from aiokafka_lite._arguments import checks_arguments, plain
from aiokafka_lite._compat import Self
from aiokafka_lite.broker import config as settings
from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.configs.topic_config import ConfigValue
from aiokafka_lite.broker.direct import KINDS, WAIT_S, IsolationLevel
from aiokafka_lite.broker.faults.builder import FaultMethods, Leaders
from aiokafka_lite.broker.faults.connections import ConnectionFault, ConnectionMatch
from aiokafka_lite.broker.faults.rules import Action, Match
from aiokafka_lite.broker.faults.threaded import (
    ThreadConnectionRule,
    ThreadRequestLog,
    ThreadRule,
)
from aiokafka_lite.broker.server import Broker
from aiokafka_lite.broker.writing import NewRecord, Text
from aiokafka_lite.errors import ForkedError
from aiokafka_lite.records import Codec
from aiokafka_lite.structs import ConsumerRecord, RecordMetadata, TopicPartition

__all__ = ["BrokerThread"]

T = TypeVar("T")

NOT_STARTED: Final = "the broker was not started: use `with BrokerThread() as broker:`"


@checks_arguments({**KINDS, **settings.KINDS})
class BrokerThread(FaultMethods[ThreadRule, ThreadConnectionRule]):
    """Runs a `Broker` during a `with` block. The methods are for any thread but the broker's.

    Entering raises the errors of `Broker`, and methods raise those of `Broker`'s methods. The end
    of the block raises the first unexpected exception in the broker, if there was one.

    In a coroutine, `run` would block the event loop, and `wait_…` raise RuntimeError: use
    `asyncio.to_thread`. The other methods take well under a millisecond.
    """

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

    def wait(self, name: str, coro: Coroutine[object, None, T]) -> T:
        """Run a coroutine in the broker's thread and wait for it.

        Raises:
            RuntimeError: Called in a coroutine, whose event loop it would block.
        """
        if not _is_in_a_loop():
            return self._await(coro)
        coro.close()
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

    # Topics; `Broker` documents the errors

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        configs: Mapping[str, ConfigValue] | None = None,
        *,
        replication_factor: int | None = None,
    ) -> None:
        """Create a topic. See `Broker.create_topic`."""
        self.call(
            lambda broker: broker.create_topic(
                name, partitions, configs, replication_factor=replication_factor
            )
        )

    def add_partitions(self, name: str, total: int) -> None:
        """Add partitions to a topic until it has `total`. See `Broker.add_partitions`."""
        self.call(lambda broker: broker.add_partitions(name, total))

    def recreate_topic(self, name: str, partitions: int | None = None) -> None:
        """Delete a topic and create an empty one of the same name. See `Broker.recreate_topic`."""
        self.call(lambda broker: broker.recreate_topic(name, partitions))

    def delete_topic(self, name: str) -> None:
        """Delete a topic, its records and its committed offsets. See `Broker.delete_topic`."""
        self.call(lambda broker: broker.delete_topic(name))

    @property
    def topics(self) -> dict[str, int]:
        """The number of partitions of every topic, internal ones included."""
        return self.call(
            lambda broker: {name: topic.partition_count for name, topic in broker.topics.items()}
        )

    def end_offsets(self, topic: str) -> list[int]:
        """Return the end offset of each partition. See `Broker.end_offsets`."""
        return self.call(lambda broker: broker.end_offsets(topic))

    # Records and groups; `Broker` documents the errors

    def produce(
        self,
        topic: str,
        value: Text,
        *,
        key: Text = None,
        headers: Iterable[tuple[str, Text]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Write one record and return its offset. See `Broker.produce`."""
        record = NewRecord(value, key, headers, partition, timestamp_ms)
        (written,) = self.produce_all(topic, [record])
        return written

    def produce_all(
        self, topic: str, records: Iterable[NewRecord], *, codec: Codec | str = Codec.NONE
    ) -> list[RecordMetadata]:
        """Write records in large batches and return their offsets. See `Broker.produce_all`."""
        ready = [*records]  # the caller's iterator belongs to the caller's thread
        return self.call(lambda broker: broker.produce_all(topic, ready, codec=codec))

    def records(
        self,
        topic: str,
        partition: int | None = None,
        *,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> list[ConsumerRecord]:
        """Return all records of a topic or of one partition. See `Broker.records`."""
        return self.call(
            lambda broker: broker.records(topic, partition, isolation_level=isolation_level)
        )

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group. See `Broker.committed`."""
        return self.call(lambda broker: broker.committed(group))

    def wait_until(self, is_so: Callable[[Broker], bool], *, timeout_s: float = WAIT_S) -> None:
        """Wait until `is_so(broker)`, called in the broker's thread, returns True.

        Raises:
            TimeoutError: The timeout has passed.
        """
        broker = self.broker
        self.wait(
            "broker.wait_until", broker.wait_until(lambda: is_so(broker), timeout_s=timeout_s)
        )

    def wait_for_records(
        self, topic: str, count: int = 1, *, timeout_s: float = WAIT_S
    ) -> list[ConsumerRecord]:
        """Wait until a topic has `count` records. See `Broker.wait_for_records`."""
        coro = self.broker.wait_for_records(topic, count, timeout_s=timeout_s)
        return self.wait("broker.wait_for_records", coro)

    def wait_for_commits(
        self, group: str, topic: str, *, timeout_s: float = WAIT_S
    ) -> dict[TopicPartition, int]:
        """Wait until all records of a topic are committed. See `Broker.wait_for_commits`."""
        coro = self.broker.wait_for_commits(group, topic, timeout_s=timeout_s)
        return self.wait("broker.wait_for_commits", coro)

    def wait_for_members(self, group: str, count: int = 1, *, timeout_s: float = WAIT_S) -> None:
        """Wait until a group is stable with `count` members. See `Broker.wait_for_members`."""
        coro = self.broker.wait_for_members(group, count, timeout_s=timeout_s)
        self.wait("broker.wait_for_members", coro)

    # Nodes, leaders and replicas; `Broker` documents the errors

    def stop_node(self, node_id: int, *, clean: bool = True) -> None:
        """Stop a node. See `Broker.stop_node`."""
        self._await(self.broker.stop_node(node_id, clean=clean))

    def start_node(self, node_id: int) -> None:
        """Start a stopped node at its previous address. See `Broker.start_node`."""
        self._await(self.broker.start_node(node_id))

    def leader_of(self, tp: TopicPartition) -> int:
        """Return the id of a partition's leader, -1 if it has no leader."""
        return self.call(lambda broker: broker.leader_of(tp))

    def move_leader(self, tp: TopicPartition, node_id: int | None = None) -> int:
        """Move a partition's leadership to another node. See `Broker.move_leader`."""
        return self.call(lambda broker: broker.move_leader(tp, node_id))

    def coordinator_of(self, group_id: str) -> int:
        """Return the id of a group's coordinator, -1 if the group has no coordinator."""
        return self.call(lambda broker: broker.coordinator_of(group_id))

    def move_coordinator(self, group_id: str, node_id: int | None = None) -> int:
        """Move a group to another coordinator. See `Broker.move_coordinator`."""
        return self.call(lambda broker: broker.move_coordinator(group_id, node_id))

    def truncate(self, tp: TopicPartition, offset: int) -> int:
        """Truncate a partition's log. See `Broker.truncate`."""
        return self.call(lambda broker: broker.truncate(tp, offset))

    def expire_session(self, group_id: str, member_id: str) -> None:
        """Expire a member's session now. See `Broker.expire_session`."""
        self.call(lambda broker: broker.expire_session(group_id, member_id))

    def hold_replica(self, tp: TopicPartition, node_id: int) -> None:
        """Stop replicating to a follower. See `Broker.hold_replica`."""
        self.call(lambda broker: broker.hold_replica(tp, node_id))

    def release_replica(self, tp: TopicPartition, node_id: int) -> None:
        """Let a follower that `hold_replica` stopped catch up."""
        self.call(lambda broker: broker.release_replica(tp, node_id))

    # Faults (see faults/builder.py for `on` and `on_connect`), and the requests

    @property
    def requests(self) -> ThreadRequestLog:
        """The latest requests to the broker, and their responses."""
        return ThreadRequestLog(self)

    def clear_faults(self) -> None:
        """End all rules. The broker handles the requests that they hold."""
        self.call(lambda broker: broker.faults.clear())

    def put_rule(self, match: Match, action: Action, times: int | None) -> ThreadRule:
        """Add a rule after the existing ones."""
        rule = self.call(lambda broker: broker.put_rule(match, action, times))
        return ThreadRule(rule, self)

    def put_connection_rule(
        self, match: ConnectionMatch, fault: ConnectionFault, times: int | None, after_bytes: int
    ) -> ThreadConnectionRule:
        """Add a rule for connections after the existing ones."""
        rule = self.call(
            lambda broker: broker.put_connection_rule(match, fault, times, after_bytes)
        )
        return ThreadConnectionRule(rule, self)

    def leaders_now(self) -> Leaders:
        """Return the leader ids and leader epochs by (topic, partition)."""
        return self.call(lambda broker: broker.leaders_now())

    # Errors

    def raise_if_failed(self) -> None:
        """Raise the first unexpected exception in the broker, if there was one."""
        if self._broker is not None and self._broker.failure is not None:
            raise self._broker.failure


def _is_in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
