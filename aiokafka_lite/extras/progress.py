"""The progress of `consumer.run(progress=True)`: lines and bars in a terminal, drawn by `rich`."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from aiokafka_lite import AIOKafkaConsumer

__all__ = ["show"]

log = logging.getLogger(__name__)

REFRESH_S: Final = 0.5
# The rate is that of this time.
RATE_S: Final = 5.0
# Above that, only the sum has a bar.
MOST_BARS: Final = 8
# What is done, what is left, if it is known, and a text.
Row: TypeAlias = "tuple[int, int | None, str]"


async def show(consumer: AIOKafkaConsumer[Any, Any], console: Console | None = None) -> None:
    """Show a consumer's progress until cancelled.

    Has no effect if the standard error is no terminal, or `rich` is not installed.
    """
    if console is None:
        if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
            return
        from rich.console import Console

        console = Console(stderr=True)
    try:
        await _show(consumer, console)
    except Exception:  # a run goes on without it
        log.warning("the progress is no longer shown, because of an error", exc_info=True)


async def _show(consumer: AIOKafkaConsumer[Any, Any], console: Console) -> None:
    from rich.progress import BarColumn, Progress, TextColumn

    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}")
    # The output of handlers stays in the file or pipe to which it is redirected.
    with Progress(
        *columns, console=console, auto_refresh=False, redirect_stdout=sys.stdout.isatty()
    ) as progress:
        bars = _Bars(progress)
        try:
            while True:
                bars.draw(consumer.metrics())
                await asyncio.sleep(REFRESH_S)
        finally:  # the partitions may be gone
            bars.update({"records": bars.total(consumer.metrics())})


class _Bars:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}
        # The positions of partitions when they were first shown.
        self._firsts: dict[str, int] = {}
        # Times and numbers of finished records.
        self._samples: list[tuple[float, int]] = []

    def draw(self, metrics: Mapping[str, Any]) -> None:
        rows = {"records": self.total(metrics)}
        if len(partitions := metrics["partitions"]) <= MOST_BARS:
            rows |= self._partitions(partitions)
        for name in [each for each in self._tasks if each not in rows]:
            self._progress.remove_task(self._tasks.pop(name))
        self.update(rows)

    def update(self, rows: Mapping[str, Row]) -> None:
        for name, (done, left, text) in rows.items():
            if name not in self._tasks:
                self._tasks[name] = self._progress.add_task(name, text="")
            total = None if left is None else max(1, done + left)
            self._progress.update(self._tasks[name], completed=done, total=total, text=text)
        self._progress.refresh()

    def total(self, metrics: Mapping[str, Any]) -> Row:
        done = sum(metrics[f"processing_{each}_total"] for each in ("finished", "dead", "dropped"))
        now = asyncio.get_running_loop().time()
        self._samples = [each for each in self._samples if each[0] > now - RATE_S] + [(now, done)]
        first_at, first = self._samples[0]
        rate = (done - first) / (now - first_at) if now > first_at else 0.0
        parts = [f"{done:,} done", f"{rate:,.0f} a second"]
        if (lag := metrics["lag"]) is not None:
            parts.append(f"{lag:,} left")
        for name, noun in (("failed", "failed calls"), ("dead", "dead letters")):
            if count := metrics[f"processing_{name}_total"]:
                parts.append(f"{count:,} {noun}")
        return done, lag, ", ".join(parts)

    def _partitions(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Row]]:
        for row in rows:
            if row["position"] is not None and row["lag"] is not None:
                name = f"{row['topic']}/{row['partition']}"
                read = row["position"] - self._firsts.setdefault(name, row["position"])
                yield name, (read, row["lag"], f"{row['lag']:,} left")
