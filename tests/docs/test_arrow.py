"""The examples of docs/arrow.md do what they say."""

from __future__ import annotations

import asyncio
import importlib.util
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from aiokafka_lite import records
from aiokafka_lite.broker.thread import BrokerThread
from tests.docs.programs import Ended, run_all
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


def missing_package(code: str) -> str | None:
    """Return a package that a program imports and that is not installed."""
    for package in PACKAGES:
        if f"import {package}" in code and importlib.util.find_spec(package) is None:
            return package
    return None


@pytest.fixture(scope="module")
def ended() -> Mapping[str, Ended]:
    """How the programs ended whose packages are installed; each had a broker of its own."""
    with ExitStack() as stack:
        programs: dict[str, str] = {}
        for title, (code, _) in EXAMPLES.items():
            if missing_package(code):
                continue
            broker = stack.enter_context(BrokerThread())
            asyncio.run(fill(broker.bootstrap_servers))
            programs[title] = code.replace("127.0.0.1:9092", broker.bootstrap_servers)
        return run_all(programs)


@pytest.mark.parametrize("title", EXAMPLES)
def test_example_prints_what_the_page_says(title: str, ended: Mapping[str, Ended]) -> None:
    code, output = EXAMPLES[title]
    if package := missing_package(code):
        pytest.skip(f"{package} is not installed: pip install {package}")
    assert but_for_plain_python(ended[title].stderr) == ""
    assert ended[title].stdout == output
