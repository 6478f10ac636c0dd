"""Reports each failure of a long run when it happens: a run that is killed loses none of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import pytest

from tests.support.durations import ROOT

FILE: Final = ROOT / "out" / "failures.txt"


class FailuresAtOnce:
    """Appends each failure to a file, which begins empty."""

    def __init__(self, file: Path = FILE) -> None:
        self._file = file
        file.parent.mkdir(exist_ok=True)
        file.write_text("", encoding="utf-8")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.failed:
            return
        sections = "".join(f"\n-- {name}\n{content}" for name, content in report.sections)
        with self._file.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(
                f"== {time.strftime('%H:%M:%S')} {report.nodeid} ({report.when})\n"
                f"{report.longreprtext}{sections}\n\n"
            )
