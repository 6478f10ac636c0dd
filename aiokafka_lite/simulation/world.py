"""The processes of a run: applications on hosts, which are stopped, killed and started again."""

from __future__ import annotations

import abc
import asyncio
from typing import Final

from aiokafka_lite.simulation.cluster import SimulatedCluster
from aiokafka_lite.simulation.engine import Loop
from aiokafka_lite.simulation.history import History, Kind
from aiokafka_lite.structs import TopicPartition

# How often the course of a run looks at it.
LOOK_EACH_S: Final = 0.5
# A supervisor starts an application again that ended with an error.
RESTARTED_AFTER_S: Final = 1.0


class Process(abc.ABC):
    """An application in a process of its own: it ends when it is told, or killed.

    Args:
        name: Its host, which no other process has.
        slot: Processes of one slot run one after the other.
    """

    def __init__(self, loop: Loop, history: History, name: str, slot: int) -> None:
        self.name, self.slot = name, slot
        self._loop, self._history = loop, history
        self._is_stopping = False
        self.is_killed = self.is_stopped = False
        # Its application has ended with an error, and nobody has seen that yet.
        self.has_failed = False
        self.task = loop.start(name, self._live())

    @property
    def is_alive(self) -> bool:
        return not (self.is_killed or self._is_stopping or self.task.done())

    def kill(self, *, is_silent: bool) -> None:
        self._history.note(Kind.KILLED, self.name)
        self.is_killed = True
        self._loop.kill(self.name, is_silent=is_silent)

    async def stop(self) -> None:
        """End it as applications do, unless it was killed at the same time."""
        if self.is_killed:
            return
        self._is_stopping = True
        self._history.note(Kind.STOPPING, self.name)
        await self._end()
        await asyncio.wait([self.task])
        self.is_stopped = True
        self._history.note(Kind.STOPPED, self.name)

    async def _end(self) -> None:
        self.task.cancel()

    @abc.abstractmethod
    async def _live(self) -> None:
        """Run the application."""


class World(abc.ABC):
    """The hosts of a run: the cluster's and the clients'."""

    def __init__(self, loop: Loop, cluster: SimulatedCluster, history: History) -> None:
        self.loop, self.cluster, self.history = loop, cluster, history
        self._slots = self._lives = 0

    @property
    @abc.abstractmethod
    def processes(self) -> list[Process]:
        """All processes that have been started."""

    @abc.abstractmethod
    def hosts(self) -> list[str]:
        """Return the hosts of clients that are not killed."""

    @abc.abstractmethod
    def faulty_partitions(self) -> list[TopicPartition]:
        """Return the partitions whose leaders and logs may change."""

    @abc.abstractmethod
    def start(self, slot: int) -> None:
        """Start a process: a new one, or one after another has ended."""

    def alive(self) -> list[Process]:
        return [process for process in self.processes if process.is_alive]

    def new_slot(self) -> int:
        self._slots += 1
        return self._slots - 1

    def _new_name(self, prefix: str, slot: int) -> str:
        self._lives += 1
        return f"{prefix}{slot}.{self._lives - 1}"

    async def stop(self, process: Process) -> None:
        await process.stop()

    def look(self) -> None:
        """Note what has happened, and start failed applications again."""
        self.cluster.read_commits(self.history)
        for process in self.processes:
            if process.has_failed:
                process.has_failed = False
                self.loop.call_later(RESTARTED_AFTER_S, self.start, process.slot)
