"""The types that users' type checkers see, and whether the records that come are of them."""

from __future__ import annotations

import os
import re
import site
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

import pytest

import aiokafka_lite
from aiokafka_lite import AIOKafkaConsumer
from tests.support.cluster import KafkaHandle
from tests.typed import program, sending
from tests.typed.program import Order

FOLDER: Final = Path(__file__).parent
ROOT: Final = Path(aiokafka_lite.__file__).parents[1]
EXPECTED: Final = re.compile(r"  # type: ignore\[(.+)\]$")
REPORTED: Final = re.compile(r"mistakes\.py:(\d+): error: .*\[([a-z-]+)\]$")
# The package is checked elsewhere.
MYPY_INI: Final = """
[mypy]
strict = true
warn_unreachable = true
[mypy-aiokafka_lite.*]
follow_imports = silent
"""


def test_mypy_takes_the_program_and_the_pages_and_finds_the_mistakes(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    lines = (FOLDER / "mistakes.py").read_text(encoding="utf-8").splitlines()
    expected = {
        (number, code)
        for number, line in enumerate(lines, 1)
        for found in [EXPECTED.search(line)]
        if found
        for code in found[1].split(", ")
    }
    mistakes = tmp_path / "mistakes.py"
    mistakes.write_text("\n".join(EXPECTED.sub("", line) for line in lines), encoding="utf-8")
    page = (ROOT / "docs" / "deserialising.md").read_text(encoding="utf-8").partition("## Types")[2]
    shown = tmp_path / "shown.py"
    shown.write_text(page.partition("```python")[2].partition("```")[0], encoding="utf-8")
    config = tmp_path / "mypy.ini"
    config.write_text(MYPY_INI, encoding="utf-8")
    done = subprocess.run(
        [
            sys.executable, "-m", "mypy", f"--config-file={config}", f"--cache-dir={tmp_path}",
            "--show-error-codes", "--no-pretty", FOLDER / "program.py",
            FOLDER / "sending.py", shown, mistakes,
        ],
        cwd=ROOT, capture_output=True, text=True, encoding="utf-8",
    )  # fmt: skip
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    reported = [REPORTED.search(line) for line in errors]
    assert None not in reported, done.stdout + done.stderr
    assert {(int(each[1]), each[2]) for each in reported if each} == expected, done.stdout


@pytest.mark.slow  # mypy finds the same mistakes, above
def test_pyright_takes_the_program_and_finds_the_mistakes(tmp_path: Path) -> None:
    pytest.importorskip("pyright", reason="pyright is not installed")
    config = tmp_path / "pyrightconfig.json"
    # Only of an installed package pyright asks which names are public.
    venv.create(tmp_path / "venv")
    packages = next((tmp_path / "venv").glob("[Ll]ib/**/site-packages"))
    (packages / "found.pth").write_text("\n".join([str(ROOT), *site.getsitepackages()]))
    # A mistake that is not found is an ignore comment that is not needed.
    config.write_text(
        f"""{{
            "include": ["{os.path.relpath(FOLDER, tmp_path)}"],
            "venvPath": "{tmp_path.as_posix()}",
            "venv": "venv",
            "typeCheckingMode": "strict",
            "reportMissingTypeStubs": false,
            "reportUnnecessaryTypeIgnoreComment": "error"
        }}""",
        encoding="utf-8",
    )
    done = run_pyright("--project", str(config))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("0 errors"), done.stdout


def run_pyright(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it, or skip the test where there is no Node.js that it could run on."""
    command = [sys.executable, "-m", "pyright"]
    try:
        subprocess.run([*command, "--version"], check=True, capture_output=True, timeout=60)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"pyright cannot be run here, it needs Node.js: {error}")
    return subprocess.run([*command, *arguments], capture_output=True, text=True, encoding="utf-8")


async def test_the_records_that_come_are_of_the_types_that_were_promised(
    kafka: KafkaHandle,
) -> None:
    pytest.importorskip("pyarrow", reason="the program reads rows, too")
    topic, servers = await kafka.create_topic(), kafka.bootstrap_servers
    await kafka.produce(topic, 0, [(b"a", b'{"amount": 1}'), (b"b", b'{"amount": 2}')])
    await kafka.produce(topic, 0, [(b"a", None), (b"c", b"bad")])
    as_bytes = AIOKafkaConsumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest")
    assert await program.read_bytes(as_bytes) == b'{"amount": 1}'
    assert await program.read_json(servers, topic) == 3
    assert await program.Service(servers, topic).run(2) == {"A": 1, "B": 2}
    assert await program.read_compacted(servers, topic) == [1, 2, None]
    assert await program.read_by_objects(servers, topic) == [Order(1), Order(1), Order(1)]
    assert await program.read_bad(servers, topic) == [Order(1), Order(2), None, b"bad"]


@pytest.mark.real_if_long
async def test_the_writing_program_runs_as_it_is_typed(kafka: KafkaHandle) -> None:
    topic, servers = await kafka.create_topic(), kafka.bootstrap_servers
    assert await sending.Sender(servers).send(topic) == 0
    assert await sending.send_by_lambda(servers, topic) == 1
    assert await sending.send_by_key(servers, topic) == 2
    assert await sending.send_bytes(sending.bytes_producer(servers), topic) == 3
    assert await sending.handle_all(servers, topic) == [
        "the first one", {"a": 2}, {"a": 3}, {"a": 4}
    ]  # fmt: skip
    as_bytes = AIOKafkaConsumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest")
    assert len(await sending.read_batch(as_bytes)) == 4
