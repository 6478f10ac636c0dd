"""What a query takes: wall time, and the CPU time of every process that has a part (Linux)."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.measure import cpu_seconds
from benchmarks.servers import TICKS_A_SECOND, listener_pid

_PROC: Final = Path("/proc")
_THIS_MACHINE: Final = ("127.0.0.1", "localhost", "[::1]", socket.gethostname())
_SETTLE_S: Final = 0.2


class ProcessTimes(NamedTuple):
    """CPU seconds of one process, as the kernel counts them in steps of 10 ms.

    Attributes:
        parent: The process that started it.
        own: Its own time, user and system.
        reaped: That of all its children that have ended, and of theirs.
    """

    parent: int
    own: float
    reaped: float


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """CPU seconds by who took them.

    Attributes:
        jvm: Spark's JVM, which is the driver, and the executor as well.
        python: This process, and every Python process that the JVM has started.
        broker: Kafka.
    """

    jvm: float
    python: float
    broker: float

    def since(self, earlier: CpuTimes) -> CpuTimes:
        """Return what was taken from then till now."""
        return CpuTimes(
            self.jvm - earlier.jvm, self.python - earlier.python, self.broker - earlier.broker
        )

    @property
    def spark(self) -> float:
        """All but the broker's."""
        return self.jvm + self.python


class Meter:
    """Measures a query from when it is made.

    Args:
        jvm_pid: Spark's JVM.
        bootstrap_servers: Whose CPU time is the broker's, if it is of this machine.
    """

    def __init__(self, jvm_pid: int, bootstrap_servers: str) -> None:
        self._jvm_pid: Final = jvm_pid
        host, _, port = bootstrap_servers.split(",")[0].rpartition(":")
        self._broker_pid: Final = listener_pid(int(port)) if host in _THIS_MACHINE else None
        self._driver_s: Final = cpu_seconds()
        self._processes: Final = read_processes()
        self._started_s: Final = time.perf_counter()

    def read(self) -> tuple[float, CpuTimes]:
        """Return the wall time in seconds, and the CPU times, since then.

        CPU time is looked at a moment later: workers collect garbage when they have answered.
        """
        wall_s = time.perf_counter() - self._started_s
        time.sleep(_SETTLE_S)
        processes = read_processes()
        pids = self._jvm_pid, self._broker_pid
        cpu = cpu_times(processes, *pids, cpu_seconds()).since(
            cpu_times(self._processes, *pids, self._driver_s)
        )
        orphaned_s = orphaned_seconds(self._processes, processes, self._jvm_pid)
        return wall_s, replace(cpu, python=cpu.python + orphaned_s)


def cpu_times(
    processes: Mapping[int, ProcessTimes], jvm_pid: int, broker_pid: int | None, driver_s: float
) -> CpuTimes:
    """Sort the CPU times of processes by who they belong to.

    The time of a Python worker that has ended is in its parent's `reaped`: that of the daemon which
    forked it, and once this has ended, too, that of the JVM. So nothing is counted twice.
    """
    jvm = processes[jvm_pid]
    workers = [processes[pid] for pid in descendants(processes, jvm_pid)]
    python_s = driver_s + jvm.reaped + sum(worker.own + worker.reaped for worker in workers)
    broker = processes.get(broker_pid) if broker_pid is not None else None
    return CpuTimes(jvm.own, python_s, 0.0 if broker is None else broker.own)


def orphaned_seconds(
    before: Mapping[int, ProcessTimes], after: Mapping[int, ProcessTimes], jvm_pid: int
) -> float:
    """Return the CPU time until `before` of workers whose daemon ended before them.

    Nobody of Spark's has waited for these, so their time is in no other's; what they took since
    then is not known.
    """
    present = set(descendants(after, jvm_pid))
    orphans = (
        before[pid]
        for pid in descendants(before, jvm_pid)
        if pid not in present and before[pid].parent != jvm_pid and before[pid].parent not in after
    )
    return sum(orphan.own + orphan.reaped for orphan in orphans)


def descendants(processes: Mapping[int, ProcessTimes], ancestor: int) -> Iterable[int]:
    """Yield the processes that a process has started, and what they have started in turn."""
    found = {ancestor}
    grown = True
    while grown:
        fresh = {pid for pid, times in processes.items() if times.parent in found} - found
        yield from fresh
        found |= fresh
        grown = bool(fresh)


def read_processes(proc: Path = _PROC) -> dict[int, ProcessTimes]:
    """Return all processes of this machine."""
    processes = {}
    for stat in proc.glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue  # it has ended
        fields = text.rpartition(")")[2].split()
        user, system, reaped_user, reaped_system = (
            int(ticks) / TICKS_A_SECOND for ticks in fields[11:15]
        )
        processes[int(stat.parent.name)] = ProcessTimes(
            int(fields[1]), user + system, reaped_user + reaped_system
        )
    return processes
