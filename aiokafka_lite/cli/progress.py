"""Progress bars, where a person looks at the terminal and `rich` is there to draw them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def file_progress(title: str, size_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show on stderr how much of a file was read; yields what to call with the bytes so far.

    Shows nothing where stderr is no terminal or the extra `demo` is not installed.
    """
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield lambda done: None
        return
    # Only now: it takes a while to import.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    progress = Progress(
        SpinnerColumn(finished_text="✓"),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True, highlight=False),
    )
    with progress:
        task_id = progress.add_task(title, total=size_bytes or None)
        yield lambda done: progress.update(task_id, completed=done)
