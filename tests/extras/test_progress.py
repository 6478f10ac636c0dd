"""What `run(progress=True)` shows in a terminal."""

from __future__ import annotations

import asyncio
import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite._compat import timeout
from aiokafka_lite.extras import progress
from aiokafka_lite.structs import ConsumerRecord
from tests.support.cluster import KafkaHandle, unique

ORIGINAL = progress.show
PATIENCE_S = 20.0


def member(kafka: KafkaHandle, topic: str) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        topic,
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=topic,
        auto_offset_reset="earliest",
    )


async def test_a_terminal_shows_records_rate_lag_failures_and_bars(
    kafka: KafkaHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = [await kafka.create_topic(unique("bars"), n) for n in (2, 9)]
    monkeypatch.setattr(progress, "REFRESH_S", 0.01)
    for topic, partitions in ((few, 2), (many, 9)):
        for partition in range(partitions):
            await kafka.produce(topic, partition, [(None, b"v")] * 50)
        shown = io.StringIO()
        console = Console(file=shown, force_terminal=True, width=200)

        async def handle(record: ConsumerRecord) -> None:
            await asyncio.sleep(0.01)
            print("of the handler")
            if record.offset == 7:
                raise ValueError

        async def show(consumer: AIOKafkaConsumer, console: Console = console) -> None:
            await ORIGINAL(consumer, console)

        with monkeypatch.context() as patch:
            patch.setattr(progress, "show", show)
            async with timeout(PATIENCE_S), member(kafka, topic) as consumer:
                summary = await consumer.run(
                    handle, until="end", progress=True, concurrency=10, retry=2,
                    dead_letter=swallow, breaker=None,
                )  # fmt: skip
        text = shown.getvalue()
        count = 50 * partitions
        assert (summary.finished, summary.dead) == (count - partitions, partitions)
        assert f"{count:,} done" in text
        assert f"0 left, {2 * partitions} failed calls, {partitions} dead letters" in text
        assert "a second" in text
        assert "of the handler" not in text  # the output is no terminal
        assert (f"{topic}/0" in text) is (topic == few)


async def test_the_last_picture_keeps_the_bars_of_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the end of `run`, they may be another member's."""
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=200)
    monkeypatch.setattr(progress, "REFRESH_S", 0.01)
    partitions = [{"topic": "t", "partition": 0, "position": 3, "lag": 4}]
    metrics: dict[str, Any] = {
        **{f"processing_{each}_total": 2 for each in ("finished", "dead", "dropped", "failed")},
        "lag": 4, "partitions": partitions,
    }  # fmt: skip
    consumer: Any = SimpleNamespace(metrics=lambda: metrics)
    showing = asyncio.create_task(ORIGINAL(consumer, console))
    await asyncio.sleep(0.05)
    shown.truncate(0)
    metrics |= {"partitions": [], "lag": 0}
    showing.cancel()
    await asyncio.wait([showing])
    assert "t/0" in shown.getvalue()
    assert "0 left" in shown.getvalue()


async def swallow(dead: object) -> None: ...


async def test_nothing_is_shown_outside_of_a_terminal(
    kafka: KafkaHandle, capfd: pytest.CaptureFixture[str]
) -> None:
    topic = await kafka.create_topic(unique("silent"), 1)
    await kafka.produce(topic, 0, [(None, b"v")])

    async def handle(record: ConsumerRecord) -> None: ...

    async with timeout(PATIENCE_S), member(kafka, topic) as consumer:
        await consumer.run(handle, until="end", progress=True)
    assert capfd.readouterr() == ("", "")
    async with member(kafka, topic) as consumer:
        with pytest.raises(TypeError, match="progress must be"):
            await consumer.run(handle, progress="yes")  # type: ignore[call-overload]
