from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.support.programs import started, started_and_awaited

TESTS = Path(__file__).parent
FOREVER = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]


async def test_a_program_ends_with_the_test_that_fails() -> None:
    with pytest.raises(ZeroDivisionError):
        async with started(*FOREVER) as program:
            raise ZeroDivisionError
    assert program.returncode is not None


def test_a_program_that_is_waited_for_ends_with_the_test_that_fails() -> None:
    with pytest.raises(ZeroDivisionError), started_and_awaited(FOREVER) as program:
        raise ZeroDivisionError
    assert program.returncode is not None


def test_tests_start_programs_by_the_helpers_that_end_them() -> None:
    starts = re.compile(r"(create_subprocess_\w+|Popen)\(")
    found = [
        file.relative_to(TESTS).as_posix()
        for file in TESTS.rglob("test_*.py")
        if starts.search(file.read_text(encoding="utf-8"))
    ]
    # Two kill what the program has started, too. A simulated test may start none.
    others = [
        "demos/parquet/test_killed.py",
        "simulation/test_simulation.py",
        "simulation/test_trial.py",
    ]
    assert sorted(found) == others, "use tests/support/programs.py"
