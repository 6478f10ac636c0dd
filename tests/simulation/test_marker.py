"""The marker kafka_sim, as users see it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import aiokafka_lite

pytest.importorskip("simloop", reason="simloop is not installed")
pytest_plugins = ["pytester"]

MODE = "asyncio_mode = {}\nasyncio_default_fixture_loop_scope = function"
IDLE = ("-p", "no:randomly", "-p", "no:hypothesispytest", "-W", "error", "--strict-markers")
Run = Callable[..., pytest.RunResult]

SOUND = """
import asyncio
import pytest

@pytest.fixture
def topic():
    return "t"

@pytest.mark.kafka_sim(seeds=3, faults_s=5.0)
class TestSound:
    @pytest.mark.parametrize("number", [1, 2])
    async def test_sound(self, kafka, topic, number):
        await kafka.write(topic, b"v")
        await asyncio.sleep(3_600 if number == 3 else 1)
        assert kafka.broker.topics[topic].partition_count == 1
        print("seed", kafka.seed)

async def test_of_another_plugin(): ...
"""
FAILING = """
import asyncio
import pytest

async def main():
    await asyncio.sleep(0)

@pytest.mark.kafka_sim(seeds=20, faults=["member killed", "reset"], faults_s=20.0)
async def test_failing(kafka):
    kafka.start(lambda: asyncio.sleep(60))
    await asyncio.sleep(20)
    assert not [each for each in kafka.history.events if each.kind.name == "KILLED"]
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run pytest on a file, in a process of its own."""
    monkeypatch.setenv("PYTHONPATH", str(Path(aiokafka_lite.__file__).parents[1]))
    monkeypatch.setenv("PYTEST_ADDOPTS", "")
    for name in ("PYTHONHASHSEED", "CI", "BUILD_NUMBER"):  # the last two: pytest repeats errors
        monkeypatch.delenv(name, raising=False)

    def run_file(source: str, *arguments: str, mode: str = "strict") -> pytest.RunResult:
        pytester.makepyfile(source)
        pytester.makeini("[pytest]\n" + (MODE.format(mode) if mode else ""))
        return pytester.runpytest_subprocess(*IDLE, *arguments, timeout=100)

    return run_file


def test_seeds_pass_whatever_the_mode_of_pytest_asyncio(run: Run) -> None:
    result = run(SOUND, "-s", mode="auto")
    result.assert_outcomes(passed=3)
    assert result.stdout.str().count("seed 3") == 2
    only = run(SOUND, "-k", "sound", "-p", "no:asyncio", mode="")
    only.assert_outcomes(passed=2)


def test_seeds_pass_with_xdist(run: Run) -> None:
    run(SOUND, "-n", "2", mode="auto").assert_outcomes(passed=3)


def test_failure_says_how_to_replay_it(run: Run) -> None:
    output = run(FAILING).stdout.str()
    (seed,) = re.findall(r"kafka_sim: seed (\d+) fails", output)
    assert f"--kafka-sim-replay={seed}" in output
    assert re.search(r"schedule:  1 of \d+ faults are enough\nE\s+[\d.]+ s  member killed", output)
    (page,) = re.findall(r"timeline:  (.*\.html)", output)
    text = Path(page).read_text("utf-8")
    assert "<svg" in text
    assert "member killed" in text
    assert "\nkafka = <" in output
    assert "trial.py" not in output

    replayed = run(FAILING, f"--kafka-sim-replay={seed}")
    replayed.assert_outcomes(failed=1)
    assert f"kafka_sim: seed {seed} fails" in replayed.stdout.str()
    run(FAILING, f"--kafka-sim-seeds={int(seed) - 1 or 1}").assert_outcomes(
        passed=int(seed) > 1, failed=int(seed) == 1
    )


def test_run_that_its_seed_does_not_decide_is_told(run: Run) -> None:
    output = run(
        """
        import pytest
        runs = []

        @pytest.mark.kafka_sim(seeds=1)
        async def test_failing(kafka):
            runs.append(1)
            assert len(runs) > 1
        """
    ).stdout.str()
    assert "does not fail. The test depends on something" in output


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("faults='earthquake'", "there is no fault 'earthquake': use 'all', 'none', crash"),
        ("seed=1", "has no option 'seed' (its options are seeds, nodes, faults"),
        ("seeds=0", "takes a number of at least 1 for 'seeds', not 0"),
        ("faults_s=1", "takes a number of at least 3 for 'faults_s', not 1"),
        ("3", "takes options by name only, but this test has 3"),
    ],
)
def test_wrong_option_is_named(run: Run, options: str, text: str) -> None:
    source = f"import pytest\n@pytest.mark.kafka_sim({options})\nasync def test(kafka): ..."
    assert f"Failed: @pytest.mark.kafka_sim {text}" in run(source).stdout.str() or (
        text in run(source).stdout.str()
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            'sys.modules["simloop"] = None',
            "need the package simloop, and Python 3.12 or newer: pip in",
        ),
        ('simloop.__version__ = "0.3.0"', "need simloop 0.2.2, not 0.3.0"),
    ],
)
def test_missing_simloop_is_named(run: Run, change: str, text: str) -> None:
    source = f"""
    import sys
    import pytest
    import simloop
    {change}

    @pytest.mark.kafka_sim
    async def test(kafka): ...
    """
    assert f"@pytest.mark.kafka_sim: simulated tests {text}" in run(source).stdout.str()


def test_fixture_needs_the_marker(run: Run) -> None:
    output = run("def test(kafka): ...").stdout.str()
    assert "the fixture kafka needs @pytest.mark.kafka_sim" in output
    output = run("import pytest\n@pytest.mark.kafka_sim\nasync def test(): ...").stdout.str()
    assert "a test with @pytest.mark.kafka_sim has an argument kafka" in output
