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
    marked = run(f"import pytest\npytestmark = pytest.mark.asyncio\n{SOUND}", mode="strict")
    marked.assert_outcomes(passed=3)
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


def test_each_failure_has_a_page_also_without_a_writable_cache(
    run: Run, pytester: pytest.Pytester
) -> None:
    source = """
    import pytest
    pytestmark = pytest.mark.kafka_sim(seeds=1, faults="none", faults_s=3)

    @pytest.mark.parametrize("name", ["a/b", "a_b", "a b", "c" * 300, "d" + "c" * 300])
    async def test_it(kafka, name):
        assert 0, f"wrong: {name}"
    """
    (pytester.mkdir("read-only") / "d").mkdir()
    (pytester.path / "read-only" / "d" / "kafka_sim").touch()  # a file is no folder
    for cache in (".pytest_cache", "read-only"):
        output = run(source, "-o", f"cache_dir={cache}").stdout.str()
        pages = re.findall(r"timeline:  (.*\.html)", output)
        assert len({*pages}) == output.count(" AssertionError: wrong: ") == 5
        assert all("<svg" in Path(page).read_text("utf-8") for page in pages)


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


def test_wrong_option_is_named(run: Run) -> None:
    wrong = {
        "faults='earthquake'": "takes other faults: there is no fault 'earthquake': use 'all', ",
        "faults=5": "takes names of faults, such as ['crash'], not 5",
        "seed=1": "has no option 'seed' (its options are seeds, nodes, faults",
        "seeds=0": "takes a whole number of at least 1 for 'seeds', not 0",
        "nodes=1.5": "takes a whole number of at least 1 for 'nodes', not 1.5",
        "faults_s=1": "takes a number of at least 3 for 'faults_s', not 1",
        "settle_s=float('inf')": "takes a number of at least 1 for 'settle_s', not inf",
        "3": "takes options by name only, but this test has 3",
    }
    tests = (
        f"@pytest.mark.kafka_sim({options})\nasync def test_{number}(kafka): ..."
        for number, options in enumerate(wrong)
    )
    result = run("\n".join(["import pytest", *tests]))
    result.assert_outcomes(failed=len(wrong))
    for text in wrong.values():
        assert f"\n@pytest.mark.kafka_sim {text}" in result.stdout.str()
    result = run(SOUND, "--kafka-sim-seeds=0", "-k", "sound")
    assert "takes a whole number of at least 1 for 'seeds', not 0" in result.stdout.str()


def test_each_option_is_that_of_the_closest_marker(run: Run) -> None:
    source = """
    import pytest
    pytestmark = pytest.mark.kafka_sim(nodes=1, seeds=7)

    @pytest.mark.kafka_sim(nodes=2, faults="none", faults_s=3)
    class TestNodes:
        @pytest.mark.kafka_sim(seeds=3)
        async def test_nodes(self, kafka):
            print("seed", kafka.seed)
            assert len(kafka.broker.nodes) == 2
    """
    result = run(source, "-s")
    result.assert_outcomes(passed=1)
    assert result.stdout.str().count("seed") == 3


def test_marked_test_that_would_not_be_simulated_fails(run: Run) -> None:
    source = """
    import functools
    import unittest
    import pytest
    from hypothesis import given, strategies

    pytestmark = pytest.mark.kafka_sim

    def decorated(test):
        @functools.wraps(test)
        def call(**arguments):
            return test(**arguments)
        return call

    def test_function(kafka): ...

    @decorated
    async def test_decorated(kafka): ...

    @given(number=strategies.integers())
    async def test_given(kafka, number): ...

    class TestCase(unittest.IsolatedAsyncioTestCase):
        async def test_method(self): ...

    @pytest.mark.skip
    def test_skipped(): ...

    @pytest.fixture
    def topic(kafka):
        kafka.create_topic("t")

    async def test_fixture(kafka, topic): ...
    """
    for mode in ("strict", "auto"):
        result = run(source, mode=mode)
        result.assert_outcomes(errors=5, skipped=1)
        assert result.stdout.str().count("\n@pytest.mark.kafka_sim runs only coroutine fun") == 4
        assert "\nfixtures cannot use kafka, because each seed has its own" in result.stdout.str()


def test_signal_ends_all_runs(run: Run) -> None:
    """Otherwise runs that shrink a schedule would go on after Ctrl-C, and after a time limit."""
    source = """
    import asyncio
    import signal
    import sys
    import pytest
    runs = []

    @pytest.fixture(autouse=True)
    def limit():
        def handle(number, frame):
            pytest.fail("too late")

        signal.signal(signal.SIGALRM, handle)
        # A program that a shell has started in the background ignores it.
        signal.signal(signal.SIGINT, signal.default_int_handler)

    @pytest.mark.kafka_sim(seeds=1, faults="none", faults_s=3)
    @pytest.mark.parametrize("name", ["SIGINT", "SIGALRM"])
    @pytest.mark.parametrize("run", [1, 2])
    async def test_it(kafka, name, run):
        runs.append(name)
        print(name, run, "runs for the time", runs.count(name), file=sys.stderr)
        if len(runs) == run:
            try:
                signal.raise_signal(getattr(signal, name))
            except BaseException:  # as a handler of an application
                await asyncio.sleep(10)
                print("went on", file=sys.stderr)
        assert not runs
    """
    for name, at in (("SIGINT", 1), ("SIGINT", 2), ("SIGALRM", 1), ("SIGALRM", 2)):
        result = run(source, "-s", "-k", f"{name} and {at}-")
        assert result.stderr.str().count("runs for the time") == at, (name, at)
        assert "went on" not in result.stderr.str()  # the run ends although the error was caught
        output = result.stdout.str()
        assert (result.ret is pytest.ExitCode.INTERRUPTED) == (name == "SIGINT")
        if name == "SIGALRM":
            text = "seed 1 was running" if at == 1 else "Further runs were interrupted: too late"
            assert text in output
            assert f"::test_it[{at}-SIGALRM]' --kafka-sim-replay=1" in output


def test_outcomes_that_are_no_failure_and_failures_without_a_traceback(run: Run) -> None:
    source = """
    import unittest
    import pytest
    pytestmark = pytest.mark.kafka_sim(seeds=2, faults="none", faults_s=3)
    runs = []

    async def test_xfail(kafka):
        runs.append(1)
        pytest.xfail("known")

    async def test_skip(kafka):
        runs.append(1)
        raise unittest.SkipTest("not here")

    async def test_runs(kafka):
        assert len(runs) == 2

    async def test_fail(kafka):
        pytest.fail("mine", pytrace=False)

    async def test_exit(kafka):
        raise SystemExit("mine, too")
    """
    result = run(source)
    result.assert_outcomes(xfailed=1, skipped=1, passed=1, failed=2)
    result.stdout.fnmatch_lines(["mine", "", "kafka_sim: seed 1 fails*", "replay: *"])
    result.stdout.fnmatch_lines(["*mine, too", "*", "*kafka_sim: seed 1 fails*", "*replay: *"])


def test_replay_is_a_command_for_the_folder_of_the_call(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = pytester.mkdir("folder")
    monkeypatch.chdir(folder)
    name = "test_replay_is_a_command_for_the_folder_of_the_call.py"
    source = """
    import pytest

    @pytest.mark.kafka_sim(seeds=1)
    class TestIt:
        async def test_it(self, kafka):
            assert not kafka
    """
    output = run(source, "..", "-p", "no:cacheprovider").stdout.str()
    assert f"replay:    pytest ../{name}::TestIt::test_it --kafka-sim-replay=1" in output


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
