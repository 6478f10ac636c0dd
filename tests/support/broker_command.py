"""The command that runs a broker: as a process, or here if it is to refuse its arguments."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from aiokafka_lite.cli.main import main


class Refusal(NamedTuple):
    code: int
    stdout: str
    stderr: str


def refused(*arguments: str, has_status: bool = False) -> Refusal:
    """Run the command in this process, with arguments that it refuses."""
    options = () if has_status else ("--no-status",)
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        try:
            code = main(["broker", *options, *arguments])
        except SystemExit as end:  # by argparse
            code = int(end.code or 0)
    return Refusal(code, stdout.getvalue(), stderr.getvalue())


@asynccontextmanager
async def running(
    *arguments: str, has_status: bool = False
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Run the command; yields the process and the first line it prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "aiokafka_lite", "broker",
        *(() if has_status else ("--no-status",)), *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield process, (await asyncio.wait_for(process.stdout.readline(), 30)).decode()
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def address_in(line: str) -> str:
    found = re.search(r"127\.0\.0\.1:\d+", line)
    assert found, line
    return found.group()
