"""The examples of docs/arrow.md do what they say."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from aiokafka_lite import records
from aiokafka_lite.broker.thread import BrokerThread
from tests.support.cluster import KafkaHandle
from tests.support.extensions import but_for_plain_python

PAGE = Path(__file__).parents[2] / "docs" / "arrow.md"
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.DOTALL | re.M))
EXAMPLES = {
    title: found.groups()
    for title, section in SECTIONS.items()
    if (found := re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", section, re.DOTALL))
}
PACKAGES = ("pyarrow", "polars", "duckdb")
NEW_YEAR_MS = 1_767_225_600_000


async def fill(bootstrap_servers: str) -> None:
    kafka = KafkaHandle("embedded", bootstrap_servers)
    await kafka.create_topic("orders")
    rows = [
        (
            NEW_YEAR_MS + number,
            b"%d" % number,
            b'{"country": "%s", "amount": %d}' % ((b"NO", b"SE", b"FI")[number % 3], number),
            (),
        )
        for number in range(1_000)
    ]
    await kafka.produce_batch("orders", 0, records.build_batch(rows))


def test_every_example_has_its_output() -> None:
    assert list(EXAMPLES) == ["Reading", "Columns", "Polars", "DuckDB", "Parquet"]
    assert PAGE.read_text().count("```python") == len(EXAMPLES)


@pytest.mark.parametrize("title", EXAMPLES)
def test_example_prints_what_the_page_says(title: str, kafka_broker: BrokerThread) -> None:
    code, output = EXAMPLES[title]
    for package in PACKAGES:
        if f"import {package}" in code and importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install {package}")
    asyncio.run(fill(kafka_broker.bootstrap_servers))
    code = code.replace("127.0.0.1:9092", kafka_broker.bootstrap_servers)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert but_for_plain_python(done.stderr) == ""
    assert done.stdout == output
