"""Runs commands beside a test's event loop, which serves their broker."""

from __future__ import annotations

import asyncio
import io
import json
from typing import NamedTuple

import pytest

from aiokafka_lite.cli.main import main


class Ended(NamedTuple):
    """What became of a command."""

    code: int
    out: bytes
    errors: str

    @property
    def lines(self) -> list[str]:
        """What was printed, by lines."""
        return self.out.decode().splitlines()

    @property
    def objects(self) -> list[dict[str, object]]:
        """What was printed, an object a line."""
        return [json.loads(line) for line in self.lines]


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self) -> bool:
        return True


class Running:
    """Runs commands whose output is captured."""

    def __init__(self, captured: pytest.CaptureFixture[bytes]) -> None:
        self._captured = captured

    async def __call__(self, *arguments: object) -> Ended:
        """Run a command to its end, in a thread of its own."""

        def run() -> int:
            try:
                return main([str(each) for each in arguments])
            except SystemExit as end:  # argparse's
                return int(str(end.code))

        code = await asyncio.to_thread(run)
        out, errors = self._captured.readouterr()
        return Ended(code, out, errors.decode())


@pytest.fixture
def cli(capsysbinary: pytest.CaptureFixture[bytes]) -> Running:
    """What runs commands."""
    return Running(capsysbinary)
