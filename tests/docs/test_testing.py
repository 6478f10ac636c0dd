"""The examples of docs/testing.md do what they say."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from pathlib import Path

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.cli.load import load_file
from aiokafka_lite.cli.main import build_parser
from aiokafka_lite.pytest_plugin import KafkaOptions

pytest_plugins = ["pytester"]

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.M)
CONFIGURATION = """\
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
filterwarnings =
    error
    ignore:(open|read)_text is deprecated:DeprecationWarning
"""


def test_every_example_passes_as_a_test(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    if sys.version_info < (3, 11):  # before unittest's enterContext
        examples = [each for each in EXAMPLES if "enterContext" not in each]
    else:
        examples = EXAMPLES
    pytester.makeini(CONFIGURATION)
    pytester.makepyfile(**{f"test_{number}": code for number, code in enumerate(examples)})
    tests = sum(len(re.findall(r"def test_", code)) for code in examples)
    assert tests >= len(examples) > 5
    pytester.runpytest_subprocess("-p", "no:randomly").assert_outcomes(passed=tests)


def test_table_has_every_option_of_the_marker() -> None:
    section = PAGE.split("| option |")[1].split("```")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", section, re.M)) == KafkaOptions._fields


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
    parser, _ = build_parser()
    for command in commands:
        parser.parse_args(shlex.split(command))


async def test_lines_can_be_loaded(tmp_path: Path) -> None:
    (lines,) = re.findall(r"^```json\n(.*?)^```", PAGE, re.DOTALL | re.M)
    file = tmp_path / "seed.jsonl"
    await asyncio.to_thread(file.write_text, lines)
    async with Broker() as broker:
        loaded = await load_file(broker, file, lambda _: None)
        assert loaded.counts == {"orders": 2, "pictures": 1}
        assert broker.records("pictures")[0].value == b"\x89PNG\r\n\x1a\n"
