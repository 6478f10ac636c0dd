"""Seeds, in processes of their own. `python -m tests.simulation` runs more.

They need simloop. SIMULATION_PYTHON may name a Python that has it, instead of that of the tests.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from tests.support.rounds import LONG

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("SIMULATION_PYTHON") or sys.executable
LENGTH_S = "10"
# How many seeds have how many virtual seconds: 2,000 in the short form. A seed of 5 has one fault,
# one of 10 up to two, one of 60 up to ten. One of 10 takes 65 ms of a free core, one of 5 two
# thirds of that, one of 60 four times as long.
SEED_COUNTS = {"5": 1_650, "10": 30_000 if LONG else 300, "60": 1_000 if LONG else 50}
SEEDS_OF_A_TEST = {"5": 550, "10": 500, "60": 50}
# Other tests share the cores.
TIMEOUT_S = 290
pytestmark = pytest.mark.timeout(TIMEOUT_S + 10)
DIGESTS = """
from tests.simulation import campaign, course, plan
campaign.prepare()
for seed in range(1, 9):
    print(course.run_plan(plan.draw(seed, 10.0)).digest)
"""


@cache
def missing() -> str:
    """Return what the simulation lacks; "" if nothing."""
    tried = subprocess.run(
        [PYTHON, "-c", "import simloop"], capture_output=True, text=True, check=False
    )
    if tried.returncode == 0:
        return ""
    last = tried.stderr.strip().rpartition("\n")[2]
    return (
        f"the simulation needs simloop (pip install simloop, with Python 3.11 also --no-deps "
        f"--ignore-requires-python), but {PYTHON}: {last}"
    )


@pytest.fixture(autouse=True)
def simloop() -> None:
    if missing():
        pytest.skip(missing())


def run(
    *arguments: str, timeout_s: float = TIMEOUT_S, **settings: str
) -> subprocess.CompletedProcess[str]:
    """Run a command, and at its end kill all processes that it has started."""
    with subprocess.Popen(
        [PYTHON, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0", **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # or the workers of a campaign outlive it
    ) as process:
        try:
            out, errors = process.communicate(timeout=timeout_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(arguments, process.returncode, out, errors)


def simulate(*arguments: str, length_s: str = LENGTH_S) -> subprocess.CompletedProcess[str]:
    return run("-m", "tests.simulation", "--length", length_s, *arguments)


def parts(count: int, of_a_test: int) -> list[str]:
    return [f"{first}-{first + of_a_test - 1}" for first in range(1, count, of_a_test)]


SEEDS = [
    (length_s, seeds)
    for length_s, count in SEED_COUNTS.items()
    for seeds in parts(count, SEEDS_OF_A_TEST[length_s])
]
# Of `run` with handlers that fail, hang and are delayed.
HANDLERS = [("30", seeds) for seeds in parts(1_000, 100)] if LONG else [("20", "1-40")]


@pytest.mark.parametrize(("length_s", "seeds"), SEEDS)
def test_seeds_break_no_rule(length_s: str, seeds: str) -> None:
    found = simulate("--seeds", seeds, "--jobs", "2", length_s=length_s)
    assert found.returncode == 0, found.stdout + found.stderr


def test_seeds_of_share_groups_break_no_rule() -> None:
    found = simulate("--way", "sharing", "--seeds", "1-20", "--jobs", "2", length_s="30")
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize(("length_s", "seeds"), HANDLERS)
def test_seeds_of_handlers_break_no_rule(length_s: str, seeds: str) -> None:
    found = simulate("--way", "handlers", "--seeds", seeds, "--jobs", "2", length_s=length_s)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("implementation", ["", "python"])
def test_runs_do_not_depend_on_hashes(implementation: str) -> None:
    digests = [
        run("-c", DIGESTS, PYTHONHASHSEED=hash_seed, AIOKAFKA_LITE_IMPL=implementation).stdout
        for hash_seed in ("0", "1")
    ]
    assert len(set(digests[0].split())) == 8
    assert digests[0] == digests[1]


@pytest.mark.parametrize("seed", ["1", "2"], ids=["one topic", "two topics"])
def test_replay_is_identical(seed: str) -> None:
    first, second = simulate("--replay", seed), simulate("--replay", seed)
    assert "faults stop" in first.stdout, first.stderr
    assert first.stdout == second.stdout


def test_timeline_is_written(tmp_path: Path) -> None:
    page = tmp_path / "timeline.html"
    simulate("--replay", "3", "--timeline", str(page))
    assert "<svg" in page.read_text("utf-8")


ENDLESS = """
from tests.simulation import campaign, course
campaign.prepare()
course.Course.look = lambda self: [None for _ in iter(int, 1)]
print(campaign.run_seed(3, 30.0, 0.5).rules)
"""


def test_seed_with_a_callback_that_does_not_return_is_a_hang() -> None:
    found = run("-c", ENDLESS, timeout_s=100)
    assert found.stdout == "('hang',)\n", found.stderr


WITH_WORKER = """
import os, sys, time
if os.fork() == 0:
    os.write(os.open(sys.argv[1], os.O_WRONLY), b"x")
time.sleep(600)
"""


def test_nothing_that_a_run_has_started_outlives_its_timeout(tmp_path: Path) -> None:
    path = tmp_path / "worker"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(subprocess.TimeoutExpired):
        run("-c", WITH_WORKER, str(path), timeout_s=3)
    assert os.read(reader, 1) == b"x"
    end = select.poll()  # of the last process that has the other end
    end.register(reader, select.POLLHUP)
    assert end.poll(10_000)
    os.close(reader)


@pytest.mark.parametrize("bug", ["commits one too far", "halving loses one half"])
def test_planted_bug_is_found(bug: str) -> None:
    run = simulate("--planted", bug, "--seeds", "1-3", "--jobs", "1", length_s="30")
    assert "1 of 1 found" in run.stdout, run.stdout + run.stderr
