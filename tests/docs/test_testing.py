"""The examples of docs/testing.md do what they say."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.cli.load import load_file
from aiokafka_lite.cli.main import build_parser
from aiokafka_lite.pytest_plugin import MarkerOptions
from tests.support.distributions import built, copied_checkout
from tests.support.fresh import Fresh

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "testing.md").read_text()
ALL_EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.M)
EXAMPLES = [code for code in ALL_EXAMPLES if "kafka_sim" not in code]
# They contain a mistake that the simulation finds.
SIMULATED = [code for code in ALL_EXAMPLES if "kafka_sim" in code]
COMMANDS = re.findall(r"^\$ (.*)$", PAGE, re.M)


def written_out(folder: Path) -> int:
    """Write what the page says into files, as somebody who pastes it; return how many tests."""
    (configuration,) = re.findall(r"^```toml\n(.*?)^```", PAGE, re.DOTALL | re.M)
    (folder / "pyproject.toml").write_text(configuration)
    for number, code in enumerate(EXAMPLES):
        (folder / f"test_{number}.py").write_text(code)
    return sum(len(re.findall(r"def test_", code)) for code in EXAMPLES)


def requirements() -> list[str]:
    """Return what the page says to install."""
    (command,) = (each for each in COMMANDS if each.startswith("pip install "))
    return shlex.split(command)[2:]


def assert_all_passed(done: subprocess.CompletedProcess[str], count: int) -> None:
    # Nothing skipped, and nothing warned of.
    assert re.search(rf"={{3,}} {count} passed in \S+ ={{3,}}$", done.stdout.strip()), done.stdout
    assert (done.returncode, done.stderr) == (0, "")


def test_every_example_passes_in_an_environment_with_what_the_page_installs(tmp_path: Path) -> None:
    fresh = Fresh(tmp_path / "environment")
    fresh.link(requirements())
    folder = tmp_path / "project"
    folder.mkdir()
    count = written_out(folder)
    assert count >= len(EXAMPLES) >= 10
    assert_all_passed(fresh.run("pytest", cwd=folder), count)


@pytest.mark.slow
def test_every_example_passes_with_a_wheel_in_an_empty_environment(tmp_path: Path) -> None:
    checkout = copied_checkout(tmp_path / "checkout")
    wheel = built(checkout, "bdist_wheel", AIOKAFKA_LITE_EXTENSIONS="none")
    fresh = Fresh(tmp_path / "environment", with_pip=True)
    ours = [each for each in requirements() if each.startswith("aiokafka-lite")]
    theirs = [each for each in requirements() if each not in ours]
    assert len(ours) == 1
    installed = [f"{wheel}{ours[0].removeprefix('aiokafka-lite')}", *theirs]
    quietly = ("-q", "--disable-pip-version-check")
    done = fresh.run("pip", "install", *quietly, *installed, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "project"
    folder.mkdir()
    count = written_out(folder)
    assert_all_passed(fresh.run("pytest", cwd=folder), count)


TOO_EARLY = re.compile(r"\n *await consumer.commit\(\)  # too early")
# The line after which each example may commit.
PROCESSED = ("                await bill(record.value)\n", " " * 20 + "await asyncio.sleep(0.2)\n")


@pytest.mark.parametrize("number", range(len(PROCESSED)), ids=["ours", "aiokafka"])
def test_simulation_finds_the_mistake_of_an_example(number: int, tmp_path: Path) -> None:
    pytest.importorskip("simloop", reason="simloop is not installed")
    code, processed = SIMULATED[number], PROCESSED[number]
    correct, count = TOO_EARLY.subn("", code)
    assert count == code.count(processed) == 1
    commit = " " * 12 + "await consumer.commit()\n"
    (tmp_path / "test_orders.py").write_text(code)
    (tmp_path / "test_correct.py").write_text(correct.replace(processed, processed + commit))
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto")
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly", "--kafka-sim-seeds=4"]
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "1 failed, 1 passed" in done.stdout
    assert "FAILED test_orders.py" in done.stdout
    assert re.search(r"(lost: .* was never handled|commit ahead: .* is not handled)", done.stdout)
    assert "--kafka-sim-replay=1" in done.stdout


def test_shown_failure_is_that_of_the_example() -> None:
    from aiokafka_lite.simulation import marker, trial

    options = trial.Options(faults=trial.fault_names("all"))
    (shown,) = re.findall(r"^E +([\d.]+ s  member killed .*)$", PAGE, re.M)
    assert shown in trial.draw(1, options).text()
    rows = PAGE.split("| option of `kafka_sim` |")[1].split("\n\n")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", rows, re.M)) == marker.NAMES


def test_table_of_the_simulation_names_methods_that_there_are() -> None:
    from aiokafka_lite.simulation.kafka import Kafka

    rows = PAGE.split("| call of `kafka` |")[1].split("\n\n")[0]
    names = re.findall(r"`(\w+)\(", rows)
    assert len(names) > 5
    assert [name for name in names if not hasattr(Kafka, name)] == []


def test_table_has_every_option_of_the_marker() -> None:
    section = PAGE.split("| option |")[1].split("```")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", section, re.M)) == MarkerOptions._fields


def test_table_names_methods_that_there_are() -> None:
    from aiokafka_lite.broker.thread import BrokerThread

    section = PAGE.split("| method |")[1].split("\n\n")[0]
    first_column = [line.split(" | ")[0] for line in section.splitlines()]
    names = re.findall(r"`(\w+)[(`]", " ".join(first_column))
    assert len(names) > 10
    assert [name for name in names if not hasattr(BrokerThread, name)] == []


def test_commands_are_understood() -> None:
    page = re.sub(r"\\\n\s*", "", PAGE)  # commands go on behind a backslash
    commands = re.findall(r"^\$ python -m aiokafka_lite (.*)$", page, re.M)
    assert len(commands) >= 3
    parser = build_parser("broker")
    for command in commands:
        parser.parse_args(shlex.split(command))


async def test_lines_can_be_loaded(tmp_path: Path) -> None:
    (lines,) = re.findall(r"^```json\n(.*?)^```", PAGE, re.DOTALL | re.M)
    file = tmp_path / "seed.jsonl"
    await asyncio.to_thread(file.write_text, lines)
    async with Broker() as broker:
        loaded = await load_file(broker, file)
        assert loaded.counts == {"orders": 2, "pictures": 1}
        assert broker.records("pictures")[0].value == b"\x89PNG\r\n\x1a\n"
