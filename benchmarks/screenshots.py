"""Write the screenshots of README: the consumer's web page and `aiokafka-lite lag --watch`.

    python -m benchmarks.screenshots     takes a minute; needs Chromium, extras demo and web

Both show a group of two members on an embedded broker with three nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import random
import re
import sys
import tempfile
from pathlib import Path
from typing import Final

from PIL import Image
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from aiokafka_lite import AIOKafkaConsumer, TopicPartition
from aiokafka_lite.broker import Broker
from aiokafka_lite.extras import web
from tests.support.browser import Browser, find_browser, running_browser

ASSETS: Final = Path(__file__).parents[1] / "docs" / "assets"
GROUP: Final = "billing"
TOPICS: Final = {"orders": 8, "refunds": 4}
WATCH_S: Final = 60.0


def write(broker: Broker, count: int) -> None:
    """Produce records, most of them orders."""
    for _ in range(count):
        topic = random.choices(list(TOPICS), [5, 1])[0]
        broker.produce(topic, b"x" * 400, partition=random.randrange(TOPICS[topic]))


async def keep_writing(broker: Broker) -> None:
    """Produce a few records at a time."""
    while True:
        write(broker, 5)
        await asyncio.sleep(0.02)


async def read(consumer: AIOKafkaConsumer) -> None:
    """Process records one by one."""
    async for _ in consumer:
        await asyncio.sleep(0.005)


def member(broker: Broker, name: str) -> AIOKafkaConsumer:
    """Return a member of the group."""
    return AIOKafkaConsumer(
        *TOPICS, bootstrap_servers=broker.bootstrap_servers, group_id=GROUP, client_id=name,
        auto_offset_reset="earliest", auto_commit_interval_ms=500,
    )  # fmt: skip


async def draw_page(consumer: AIOKafkaConsumer, path: Path, profile: Path) -> None:
    """Write the consumer's page as a PNG file."""
    program = find_browser() or sys.exit("no browser is installed (Debian: apt install chromium)")
    with running_browser(program, profile):
        async with web.serve(consumer) as url, Browser(profile) as browser:

            async def resize(height: float) -> None:
                await browser.call(
                    "Emulation.setDeviceMetricsOverride",
                    width=1_200, height=height, deviceScaleFactor=1, mobile=False,
                )  # fmt: skip

            await resize(900)
            await browser.call("Emulation.setScrollbarsHidden", hidden=True)
            await browser.goto(url)
            await browser.wait_for("document.querySelector('tbody td') !== null")
            await asyncio.sleep(WATCH_S)  # for the lines of the figures
            bottom = await browser.evaluate(
                "Math.ceil(document.querySelector('.card').getBoundingClientRect().bottom)"
            )
            assert isinstance(bottom, int | float)
            await resize(bottom + 24)
            await browser.screenshot(path)
    # The page has few colours.
    Image.open(path).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(path, optimize=True)


def read_until_closed(screen: int) -> str:
    """Return the whole output of a terminal's process."""
    output = b""
    with contextlib.suppress(OSError):  # Linux: the process has closed its side
        while part := os.read(screen, 4096):
            output += part
    os.close(screen)
    return output.decode()


async def draw_lag(broker: Broker, path: Path) -> None:
    """Write the screen of `aiokafka-lite lag --watch` as an SVG file with text."""
    command = ["lag", GROUP, "--watch"]
    screen, terminal = os.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "aiokafka_lite", *command, "-b", str(broker.bootstrap_servers),
        stdin=terminal, stdout=terminal, stderr=terminal,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "90", "LINES": "24"},
    )  # fmt: skip
    os.close(terminal)
    reading = asyncio.create_task(asyncio.to_thread(read_until_closed, screen))
    await asyncio.sleep(WATCH_S)
    process.terminate()
    await process.wait()
    # Each begins at the top left. The last may not be whole.
    frames = [part for part in (await reading).split("\x1b[H") if "lag" in part]
    text = Text.from_ansi(frames[-2].replace("\r", ""))
    text.rstrip()
    console = Console(record=True, width=90, file=io.StringIO())
    console.print(text, end="\n\n")
    title = f"aiokafka-lite {' '.join(command)}"
    svg = console.export_svg(title=title, unique_id="lag", theme=MONOKAI)
    # Rich's format loads a font from elsewhere.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    await asyncio.to_thread(path.write_text, svg)


async def main() -> None:
    """Write both files."""
    async with Broker(nodes=3) as broker:
        for topic, count in TOPICS.items():
            broker.create_topic(topic, count, replication_factor=3)
        write(broker, 6_000)
        async with member(broker, "worker-1") as first, member(broker, "worker-2") as second:
            watched = max(first, second, key=lambda each: len(orders(each)))
            watched.pause(orders(watched)[1])
            working = [keep_writing(broker), read(first), read(second)]
            tasks = [asyncio.create_task(each) for each in working]
            with tempfile.TemporaryDirectory() as profile:
                await asyncio.gather(
                    draw_lag(broker, ASSETS / "lag.svg"),
                    draw_page(watched, ASSETS / "page.png", Path(profile)),
                )
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


def orders(consumer: AIOKafkaConsumer) -> list[TopicPartition]:
    """Return the partitions of orders that a member has."""
    return sorted(tp for tp in consumer.assignment() if tp.topic == "orders")


if __name__ == "__main__":
    asyncio.run(main())
