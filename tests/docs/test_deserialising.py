"""The examples of docs/deserialising.md do what they say."""

from __future__ import annotations

import asyncio
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

PAGE = (Path(__file__).parents[2] / "docs" / "deserialising.md").read_text()
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.M))
EXAMPLES = {
    title: found.groups()
    for title, section in SECTIONS.items()
    if (found := re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", section, re.DOTALL))
}
VALUES = (
    (b'{"schema": 1, "amount": 1}', ()),
    (b"two", (("content-type", b"text/plain"),)),
    (b'{"schema": 1, "amount": 3}', ()),
    (b'{"schema": 2, "amount": 4}', ()),
)


async def fill(bootstrap_servers: str) -> None:
    kafka = KafkaHandle("embedded", bootstrap_servers)
    await kafka.create_topic("orders")
    rows = [(1, None, value, headers) for value, headers in VALUES]
    await kafka.produce_batch("orders", 0, records.build_batch(rows))


def test_every_example_has_its_output() -> None:
    assert len(EXAMPLES) == PAGE.count("```python") == 6


@pytest.fixture(scope="module")
def ended() -> Mapping[str, Ended]:
    """How the programs ended, of which each had a broker of its own."""
    with ExitStack() as stack:
        programs: dict[str, str] = {}
        for title, (code, _) in EXAMPLES.items():
            broker = stack.enter_context(BrokerThread())
            asyncio.run(fill(broker.bootstrap_servers))
            programs[title] = code.replace("127.0.0.1:9092", broker.bootstrap_servers)
        return run_all(programs)


@pytest.mark.parametrize("title", EXAMPLES)
def test_example_prints_what_the_page_says(title: str, ended: Mapping[str, Ended]) -> None:
    # A skip is told in the log, which goes to stderr by default.
    said = but_for_plain_python(ended[title].stderr)
    errors = [line for line in said.splitlines() if not line.startswith("record skipped")]
    assert errors == []
    assert ended[title].stdout == EXAMPLES[title][1]
