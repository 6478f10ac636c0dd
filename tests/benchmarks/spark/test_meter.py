from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.measure import cpu_seconds
from benchmarks.spark.meter import (
    CpuTimes,
    Meter,
    ProcessTimes,
    cpu_times,
    descendants,
    orphaned_seconds,
    read_processes,
)
from tests.support.programs import started_and_awaited

PROCESSES = {
    1: ProcessTimes(0, 50, 500),
    10: ProcessTimes(1, 7, 1000),  # this one, the driver
    20: ProcessTimes(10, 100, 3),  # the JVM, which has reaped a planner
    30: ProcessTimes(20, 1, 4),  # the daemon, which has reaped a worker
    31: ProcessTimes(30, 10, 0),
    32: ProcessTimes(30, 20, 0),
    40: ProcessTimes(1, 9, 2),  # the broker
    41: ProcessTimes(1, 77, 0),
}


def test_time_is_that_of_jvm_of_its_python_processes_and_of_the_broker() -> None:
    times = cpu_times(PROCESSES, jvm_pid=20, broker_pid=40, driver_s=7)
    assert times == CpuTimes(jvm=100, python=7 + 3 + (1 + 4) + 10 + 20, broker=9)
    assert times.spark == 145


def test_nothing_is_lost_nor_counted_twice_when_a_worker_ends() -> None:
    before = cpu_times(PROCESSES, 20, 40, 7)
    after = dict(PROCESSES)
    worker = after.pop(32)
    after[30] = ProcessTimes(20, 1, 4 + worker.own + worker.reaped)
    assert cpu_times(after, 20, 40, 7) == before
    daemon, other = after.pop(30), after.pop(31)
    after[20] = ProcessTimes(10, 100, 3 + daemon.own + daemon.reaped + other.own)
    assert cpu_times(after, 20, 40, 7) == before


def test_workers_that_end_with_their_daemon_are_not_taken_off() -> None:
    after = dict(PROCESSES)
    daemon = after.pop(30)
    lost = after.pop(31).own + after.pop(32).own
    after[20] = ProcessTimes(10, 100, 3 + daemon.own + daemon.reaped)
    taken = cpu_times(after, 20, 40, 7).since(cpu_times(PROCESSES, 20, 40, 7))
    assert taken.python == -lost
    assert orphaned_seconds(PROCESSES, after, jvm_pid=20) == lost
    reaped = {pid: times for pid, times in PROCESSES.items() if pid != 32}
    assert orphaned_seconds(PROCESSES, reaped, jvm_pid=20) == 0


def test_broker_of_another_machine_takes_no_time_here() -> None:
    assert cpu_times(PROCESSES, 20, None, 0).broker == 0


def test_descendants_are_those_of_all_generations_and_no_others() -> None:
    assert sorted(descendants(PROCESSES, 20)) == [30, 31, 32]
    assert sorted(descendants(PROCESSES, 10)) == [20, 30, 31, 32]


def test_difference_is_taken_for_each() -> None:
    assert CpuTimes(5, 3, 2).since(CpuTimes(1, 1, 1)) == CpuTimes(4, 2, 1)


def test_stat_is_read_whatever_a_process_is_called(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    fields = ["S", "3", *["0"] * 9, "100", "50", "20", "30", *["0"] * 30]
    (tmp_path / "7" / "stat").write_text(f"7 (a ) b) {' '.join(fields)}\n")
    (tmp_path / "8").mkdir()  # has ended meanwhile
    tick = 1 / os.sysconf("SC_CLK_TCK")
    (pid, times), *others = read_processes(tmp_path).items()
    assert (pid, times.parent, others) == (7, 3, [])
    assert (times.own, times.reaped) == pytest.approx((150 * tick, 50 * tick))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_meter_sees_what_children_of_children_take() -> None:
    burn = "import time; end = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
    run = f"subprocess.run([sys.executable, '-c', {burn!r}])"
    program = f"import subprocess, sys\ninput()\n{run}\ninput()"
    command = [sys.executable, "-c", program]
    with started_and_awaited(command, stdin=subprocess.PIPE) as process:
        meter = Meter(process.pid, "127.0.0.1:1")
        own_s = cpu_seconds()
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        while not any(each.reaped for each in [read_processes()[process.pid]]):
            pass
        wall_s, cpu = meter.read()
        driver_s = cpu_seconds() - own_s
        process.communicate("\n")
    assert wall_s > 0.19
    # What the driver takes, to look at all processes, is part of it, and varies.
    assert 0.19 < cpu.python < 0.6 + driver_s
    assert cpu.broker == 0
