"""The examples of docs/migrating.md do what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.structs import TopicPartition

PAGE = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.M)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example_runs(number: int) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", EXAMPLES[number]], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


async def test_calls_beyond_aiokafkas_are_as_shown() -> None:
    names: dict[str, object] = {}
    (example,) = (each for each in EXAMPLES if "def beyond" in each)
    exec(example, names)  # noqa: S102 -- the page's own example
    beyond = names["beyond"]
    assert callable(beyond)
    async with Broker() as broker:
        broker.create_topic("t", 2)
        consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap_servers, group_id="g")
        consumer.assign([TopicPartition("t", 0), TopicPartition("t", 1)])
        await consumer.start()
        assert await beyond(consumer, *sorted(consumer.assignment())) == {}
