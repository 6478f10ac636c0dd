"""The progress of `consumer.run(progress=True)`: lines and bars in a terminal, drawn by `rich`."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from aiokafka_lite import AIOKafkaConsumer

__all__ = ["show"]

log = logging.getLogger(__name__)

REFRESH_S: Final = 0.5
# The rate is that of this time.
RATE_S: Final = 5.0
# Above that, only the sum has a bar.
MOST_BARS: Final = 8


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
    loop = asyncio.get_running_loop()
    bars: dict[str, TaskID] = {}
    firsts: dict[str, int] = {}
    samples: list[tuple[float, int]] = []
    # The output of handlers stays in the file or pipe to which it is redirected.
    with Progress(
        *columns, console=console, auto_refresh=False, redirect_stdout=sys.stdout.isatty()
    ) as progress:
        total = progress.add_task("records", total=None, text="")
        try:
            while True:
                metrics = consumer.metrics()
                done = done_of(metrics)
                samples = [each for each in samples if each[0] > loop.time() - RATE_S]
                samples.append((loop.time(), done))
                lag = metrics["lag"]
                left = lag if isinstance(lag, int) else None
                whole = None if left is None else done + left
                text = text_of(metrics, samples)
                progress.update(total, completed=done, total=whole, text=text)
                rows = bars_of(metrics)
                for name in [each for each in bars if each not in rows]:
                    progress.remove_task(bars.pop(name))
                for name, (position, row_left) in rows.items():
                    if name not in bars:
                        bars[name] = progress.add_task(name, text="")
                    read = position - firsts.setdefault(name, position)
                    progress.update(
                        bars[name],
                        completed=read,
                        total=max(1, read + row_left),
                        text=f"{row_left:,} left",
                    )
                progress.refresh()
                await asyncio.sleep(REFRESH_S)
        finally:
            metrics = consumer.metrics()
            progress.update(total, completed=done_of(metrics), text=text_of(metrics, samples))
            progress.refresh()


def done_of(metrics: Mapping[str, object]) -> int:
    return sum(
        cast("int", metrics[f"processing_{name}_total"]) for name in ("finished", "dead", "dropped")
    )


def text_of(metrics: Mapping[str, object], samples: Sequence[tuple[float, int]]) -> str:
    """Describe the progress. `samples` are times and numbers of finished records."""
    (first_at, first), (last_at, last) = samples[0], samples[-1]
    rate = (last - first) / (last_at - first_at) if last_at > first_at else 0.0
    lag = metrics["lag"]
    parts = [f"{done_of(metrics):,} done", f"{rate:,.0f} a second"]
    if isinstance(lag, int):
        parts.append(f"{lag:,} left")
    for name, noun in (("failed", "failed calls"), ("dead", "dead letters")):
        if count := metrics[f"processing_{name}_total"]:
            parts.append(f"{count:,} {noun}")
    return ", ".join(parts)


def bars_of(metrics: Mapping[str, object]) -> dict[str, tuple[int, int]]:
    """Return the offset after the finished records, and the lag, of few partitions by name."""
    rows = cast("Sequence[Mapping[str, Any]]", metrics["partitions"])
    if len(rows) > MOST_BARS:
        return {}
    return {
        f"{row['topic']}/{row['partition']}": (row["position"], row["lag"])
        for row in rows
        if isinstance(row["position"], int) and isinstance(row["lag"], int)
    }
