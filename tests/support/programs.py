"""Programs that tests start: none runs on after its test, however the test ends."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any


@asynccontextmanager
async def started(*command: str, **options: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a program, and kill it if it still runs when the block ends."""
    process = await asyncio.create_subprocess_exec(*command, **options)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@contextmanager
def started_and_awaited(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a program and wait for its end, or kill it if the block fails. Its pipes are of text.

    `with subprocess.Popen(...)` waits after a failure too, and then the program may never end.
    """
    with subprocess.Popen(command, text=True, **options) as process:
        try:
            yield process
            process.wait()
        except BaseException:
            process.kill()
            raise
