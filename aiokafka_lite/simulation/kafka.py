"""What a simulated test is given: the cluster, processes of the application, and the history."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from typing import Any, Final, Protocol, TypeAlias

from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.broker import Broker
from aiokafka_lite.errors import LeaderNotAvailableError
from aiokafka_lite.simulation import rules
from aiokafka_lite.simulation.cluster import SimulatedCluster
from aiokafka_lite.simulation.engine import Loop
from aiokafka_lite.simulation.history import (
    UNKNOWN_PARTITION,
    Event,
    Facts,
    History,
    Kind,
    Violation,
)
from aiokafka_lite.simulation.rules import Evidence, Rule
from aiokafka_lite.simulation.world import LOOK_EACH_S, Process, World
from aiokafka_lite.structs import TopicPartition

__all__ = ["IDEMPOTENT_RULES", "POLL_RULES", "RULES", "BrokenRuleError", "Kafka"]

# The host of the test's coroutine. It is never killed.
TEST_HOST: Final = "test"
RULES: Final = (
    rules.acknowledged_records_stay,
    rules.no_record_is_lost,
    rules.every_record_is_seen,
    rules.no_aborted_record_is_read,
    rules.values_are_those_of_the_log,
    rules.commits_cover_finished_records,
)
"""The rules that `Kafka.check` checks unless others are passed."""
POLL_RULES: Final = (rules.polls_are_monotonic, rules.polls_skip_nothing)
"""Rules for processes with `Kafka.listener` that handle a record before they read the next."""
IDEMPOTENT_RULES: Final = (
    rules.idempotent_records_are_written_once,
    rules.records_keep_their_order,
)
"""Rules for topics that only idempotent or transactional producers write."""
SHOWN: Final = 10
# Signals whose default action is none, and those that stop a process.
IGNORED: Final = ("SIGCHLD", "SIGCONT", "SIGURG", "SIGWINCH")
STOPPING: Final = ("SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU")
BY_SIGNAL: Final = "signal"

Main: TypeAlias = Callable[[], Coroutine[Any, Any, object]]


class BrokenRuleError(AssertionError):
    """The history of a run breaks rules.

    Attributes:
        violations: All of them.
    """

    def __init__(self, violations: list[Violation]) -> None:
        self.violations = violations
        lines = [f"{each.rule}: {each.text}" for each in violations[:SHOWN]]
        if len(violations) > SHOWN:
            lines.append(f"and {len(violations) - SHOWN} more")
        super().__init__("\n".join(lines))


class ReturnedRecord(Protocol):
    """A record of this package's consumer, or of aiokafka's."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def value(self) -> Any: ...


def is_kafka_error(error: BaseException) -> bool:
    """Whether an error is this package's KafkaError, or aiokafka's, or a group of only these."""
    if isinstance(inner := getattr(error, "exceptions", None), tuple):  # as of a TaskGroup
        return all(is_kafka_error(each) for each in inner)
    return any(base.__name__ == "KafkaError" for base in type(error).__mro__)


def _bytes(value: object) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes):
        raise TypeError(f"pass bytes or a string, which the history can compare, not {value!r}")
    return value


class Application(Process):
    """A process that runs a coroutine function of the test."""

    def __init__(self, loop: Loop, history: History, name: str, slot: int, main: Main) -> None:
        self._main = main
        self.error: BaseException | None = None
        self._is_suspended = False
        # Signals for when it continues, in order.
        self._pending: dict[signal.Signals, None] = {}
        super().__init__(loop, history, name, slot)

    def receive(self, sig: signal.Signals) -> None:
        self._history.note(Kind.SIGNALLED, self.name, note=sig.name)
        if sig.name == "SIGCONT":
            self._resume()
        if self._is_suspended and sig.name != "SIGKILL":
            self._pending[sig] = None
        else:
            self._act_on(sig)

    def _act_on(self, sig: signal.Signals) -> None:
        if self._loop.handles_signal(self.name, sig):
            self._loop.send_signal(self.name, sig, self.task.cancel)
        elif sig is signal.SIGINT:  # as asyncio.run
            self.task.cancel()
        elif sig.name in STOPPING:
            self._is_suspended = True
            self._loop.freeze(self.name, by=BY_SIGNAL)
        elif sig.name not in IGNORED:
            self.kill(is_silent=False)

    def _resume(self) -> None:
        self._is_suspended = False
        self._loop.thaw(self.name, by=BY_SIGNAL)
        pending, self._pending = self._pending, {}
        for sig in pending:
            if sig.name not in STOPPING and not self.is_killed:
                self._act_on(sig)

    async def _end(self) -> None:
        self._resume()
        if self.is_killed:
            return
        if self._loop.handles_signal(self.name, signal.SIGTERM):
            self.receive(signal.SIGTERM)
        else:
            self.task.cancel()

    async def _live(self) -> None:
        self._history.note(Kind.JOINED, self.name)
        try:
            await self._main()
        except asyncio.CancelledError:
            if not self._is_stopping:
                raise
        except SystemExit as error:
            self._history.note(Kind.RAISED, self.name, note=f"SystemExit: {error}")
            self.error = error if error.code else None
        except KeyboardInterrupt:
            self._history.note(Kind.RAISED, self.name, note="KeyboardInterrupt")
        except BaseException as error:  # noqa: BLE001 — the course raises it
            text = f"{type(error).__name__}: {error}"
            self._history.note(Kind.RAISED, self.name, note=text)
            if is_kafka_error(error):
                self.has_failed = not self._is_stopping
            else:
                self.error = error
        finally:
            # As asyncio.run.
            await self._loop.end_tasks(self.name)
            await self._loop.shutdown_asyncgens()
            await self._loop.shutdown_default_executor()


class Applications(World):
    """The processes of a test."""

    def __init__(self, loop: Loop, nodes: int) -> None:
        history = History(lambda: loop.now)
        super().__init__(loop, SimulatedCluster(loop, nodes), history)
        self.mains: dict[int, Main] = {}
        self.running: list[Application] = []

    @property
    def processes(self) -> list[Process]:
        return [*self.running]

    def hosts(self) -> list[str]:
        return [TEST_HOST, *(each.name for each in self.running if not each.is_killed)]

    def faulty_partitions(self) -> list[TopicPartition]:
        topics = [name for name in self.cluster.broker.topics if not name.startswith("__")]
        return self.cluster.partitions_of(*topics)

    def start(self, slot: int) -> None:
        if slot not in self.mains:  # one more of those that run
            self.mains[slot] = self.mains[slot % len(self.mains)]
        name = self._new_name("p", slot)
        main = self.mains[slot]
        self.running.append(Application(self.loop, self.history, name, slot, main))


class Kafka:
    """A simulated cluster, its clients' hosts, and the history of one run.

    Attributes:
        seed: Decides the run.
        bootstrap_servers: The addresses of all nodes.
        broker: The embedded broker, for direct access.
        history: What has happened.
    """

    def __init__(self, seed: int, applications: Applications) -> None:
        self.seed = seed
        self._applications = applications
        self._loop, self._cluster = applications.loop, applications.cluster
        self.history = applications.history
        self.broker: Broker = self._cluster.broker
        self.bootstrap_servers = self._cluster.bootstrap_servers
        self.has_faults = True
        self.waits_for = ""
        self._producers: list[Any] = []

    # Applications

    def start(self, main: Main, *, processes: int = 1) -> None:
        """Run a coroutine function in processes, each on a host of its own.

        Faults kill, stop and block these processes, and start others. A process that raises a
        KafkaError starts again after a second. Another error fails the test.
        """
        for _ in range(processes):
            slot = self._applications.new_slot()
            self._applications.mains[slot] = main
            self._applications.start(slot)

    def send_signal(self, sig: int, *, process: int | None = None) -> None:
        """Send a signal to processes.

        A handler of `signal.signal` or `loop.add_signal_handler` runs next. If it raises
        SystemExit, the process ends with a cancellation. Without a handler, the process does as a
        real one: it ends at once, or at SIGINT with a cancellation, and does not start again. It
        stops until SIGCONT, at SIGSTOP and SIGTSTP. Signals such as SIGCHLD have no effect.

        Args:
            process: Its number, in the order of `start` from 0. None: all.

        Raises:
            ValueError: No process of this number was started.
        """
        running = self._applications.running
        if process is not None and all(each.slot != process for each in running):
            raise ValueError(f"there is no process {process}")
        for each in running:
            if each.is_alive and process in (None, each.slot):
                each.receive(signal.Signals(sig))

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        configs: Mapping[str, str | float | bool] | None = None,
    ) -> None:
        """Create a topic. By default, the broker sets timestamps, because aiokafka's are real."""
        stamps = {"message.timestamp.type": "LogAppendTime"}
        self.broker.create_topic(name, partitions, {**stamps, **(configs or {})})

    # The history

    async def write(
        self,
        topic: str,
        value: bytes | str,
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
    ) -> None:
        """Write a record into the log, without a producer, when its partition has a leader."""
        noted = _bytes(value)
        while True:
            try:
                place = self.broker.produce(topic, value, key=key, partition=partition)
                break
            except LeaderNotAvailableError:
                await asyncio.sleep(LOOK_EACH_S)
        tp = TopicPartition(topic, place.partition)
        self._note(Kind.SENT, tp, value=noted)
        self._note(Kind.ACKED, tp, place.offset, noted)

    async def send(self, producer: Any, topic: str, value: Any, **arguments: Any) -> Any:
        """Call `producer.send`, wait for its result, and note the record and its outcome."""
        try:
            place = await (await self._send(producer, topic, value, arguments))
        except Exception as error:
            self._note_values(Kind.REFUSED, [(topic, _bytes(value))], type(error).__name__)
            raise
        tp = TopicPartition(place.topic, place.partition)
        self._note(Kind.ACKED, tp, place.offset, _bytes(value))
        return place

    async def _send(
        self, producer: Any, topic: str, value: Any, arguments: Mapping[str, Any]
    ) -> Awaitable[Any]:
        """Call `producer.send`, and note the record in the order in which the producer has it."""
        noted = _bytes(value)
        future: Awaitable[Any] = await producer.send(topic, value, **arguments)
        if all(each is not producer for each in self._producers):
            self._producers.append(producer)
        number = next(n for n, each in enumerate(self._producers) if each is producer)
        self._note_values(Kind.SENT, [(topic, noted)], f"producer {number}")
        return future

    def _note_values(self, kind: Kind, values: list[tuple[str, bytes]], note: str) -> None:
        for topic, value in values:
            self._note(kind, TopicPartition(topic, UNKNOWN_PARTITION), value=value, note=note)

    @contextlib.asynccontextmanager
    async def transaction(self, producer: Any) -> AsyncIterator[Callable[..., Awaitable[None]]]:
        """Begin a transaction, and commit it; or abort it after an error.

        If it also commits offsets, use `handling` in the block: around it, the record would be
        processed after the commit.

        Yields:
            A coroutine function `send(topic, value, **arguments)`.
        """
        values: list[tuple[str, bytes]] = []

        async def send(topic: str, value: Any, **arguments: Any) -> None:
            await self._send(producer, topic, value, arguments)
            values.append((topic, _bytes(value)))

        await producer.begin_transaction()
        try:
            yield send
        except BaseException as error:
            try:
                await producer.abort_transaction()
            except Exception as other:  # noqa: BLE001 — such as aiokafka's, of a fenced producer
                error.add_note(f"not aborted: {other!r}")  # type: ignore[attr-defined]
            else:
                self._note_values(Kind.REFUSED, values, "aborted")
            raise
        await producer.commit_transaction()
        self._note_values(Kind.ACKED, values, "committed")

    @contextlib.contextmanager
    def handling(self, record: ReturnedRecord) -> Iterator[None]:
        """Note that a record was returned, and after the block that it was processed."""
        tp = TopicPartition(record.topic, record.partition)
        value = record.value
        size = getattr(record, "serialized_value_size", None)
        if not isinstance(value, bytes) or size not in (None, len(value)):  # deserialized
            value = self._cluster.value_at(tp, record.offset)
        place = tp, record.offset, value
        self._note(Kind.RETURNED, *place)
        try:
            yield
        except (Exception, asyncio.CancelledError) as error:
            is_cancelled = isinstance(error, asyncio.CancelledError)
            kind = Kind.CANCELLED if is_cancelled else Kind.RAISED
            self._note(kind, *place, note=repr(error))
            raise
        self._note(Kind.HANDLED, *place)

    def listener(self, inner: Any = None) -> Any:
        """Return a rebalance listener for either client, which notes assignments.

        Args:
            inner: A listener that is called afterwards.
        """
        bases = {ConsumerRebalanceListener: None}
        if (theirs := sys.modules.get("aiokafka.abc")) is not None:
            bases[theirs.ConsumerRebalanceListener] = None
        kinds = (("assigned", Kind.ASSIGNED), ("revoked", Kind.REVOKED), ("lost", Kind.LOST))
        methods = {f"on_partitions_{name}": self._noting(name, kind, inner) for name, kind in kinds}
        return type("NotingListener", tuple(bases), methods)()

    def _noting(self, name: str, kind: Kind, inner: Any) -> Callable[..., Awaitable[None]]:
        async def note(listener: Any, partitions: Any) -> None:
            tps = [TopicPartition(*tp) for tp in partitions]
            self.history.note_partitions(kind, self._loop.net.here, tps)
            method = getattr(inner, f"on_partitions_{name}", None)
            if method is not None and inspect.isawaitable(result := method(partitions)):
                await result

        return note

    def _note(
        self,
        kind: Kind,
        tp: TopicPartition | None = None,
        offset: int = -1,
        value: bytes = b"",
        note: str = "",
    ) -> None:
        self.history.note(kind, self._loop.net.here, tp, offset, value, note)

    # The end

    async def settle(self, topic: str, *, group: str) -> None:
        """Wait for the end of the faults, and then until a group has committed all of a topic.

        The test fails if that takes longer than `settle_s` after the end of the faults.
        """
        self.waits_for = "the end of the faults"
        while self.has_faults or (lag := self._lag(topic, group)):
            if not self.has_faults:
                self.waits_for = lag
            await asyncio.sleep(LOOK_EACH_S)
        self.waits_for = ""
        self._note(Kind.SETTLED, note=f"{group}, {topic}")

    def _lag(self, topic: str, group: str) -> str:
        if not self._cluster.partitions_of(topic):
            return f"the topic {topic!r}, which nobody has created"
        facts = self._facts(topic, group)
        for tp, end in facts.ends().items():
            if facts.committed.get(tp, 0) < end:
                at = facts.committed.get(tp)
                return f"{group!r}, which has committed {at} of {end} of {tp.topic}/{tp.partition}"
        return ""

    def _facts(self, topic: str, group: str | None) -> Facts:
        facts = Facts(committed={} if group is None else self.broker.committed(group))
        self._cluster.add_logs(facts, self._cluster.partitions_of(topic))
        return facts

    def evidence(self, topic: str, *, group: str | None = None) -> Evidence:
        """Return the history and the log of a topic, for rules.

        Raises:
            ValueError: There is no such topic, the group has committed no offset of it, or the
                test has written a value twice.
        """
        self._cluster.read_commits(self.history)
        own = History()
        own.events = sorted(
            (event for event in self.history.events if event.tp is None or event.tp.topic == topic),
            key=lambda event: event.at_s,
        )
        written = [each.value for each in own.of(Kind.ACKED) if each.who == TEST_HOST]
        if len(written) != len({*written}):
            value = next(each for each in written if written.count(each) > 1)
            raise ValueError(
                f"the test has written {value!r} more than once to {topic!r}: write values that "
                "differ, because the rules identify records by their values"
            )
        facts = self._facts(topic, group)
        if not facts.logs:
            raise ValueError(f"there is no topic {topic!r} to check")
        has_commits = group is None or any(each.who == group for each in own.of(Kind.COMMITTED))
        if not has_commits and any(facts.logs.values()):
            raise ValueError(f"the group {group!r} has committed no offset of {topic!r}")
        return Evidence(own, facts, group)

    def check(
        self, topic: str, *, group: str | None = None, rules: tuple[Rule, ...] = RULES
    ) -> None:
        """Check the history of a topic against rules.

        Args:
            topic: Whose records.
            group: Whose commits. None: those of all groups.
            rules: `POLL_RULES` and `IDEMPOTENT_RULES` have conditions, so they are not the default.

        Raises:
            BrokenRuleError: The history breaks one.
            ValueError: As `evidence`.
        """
        __tracebackhide__ = True
        evidence = self.evidence(topic, group=group)
        if violations := [each for rule in rules for each in rule(evidence)]:
            raise BrokenRuleError(violations)

    def close(self) -> None:
        """Release the run, which the traceback of an error would keep."""
        vars(self).clear()

    def text(self) -> str:
        """Return the events of the run, one a line."""
        events: list[Event] = sorted(self.history.events, key=lambda event: event.at_s)
        return "\n".join(event.text() for event in events)
