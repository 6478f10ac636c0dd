"""FastStream, unchanged, with our consumer in the place of aiokafka's."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from aiokafka_lite import as_aiokafka
from aiokafka_lite.structs import TopicPartition
from tests.support.cluster import KafkaHandle
from tests.support.programs import started
from tests.support.reading import reading
from tests.support.rows import rows

faststream = pytest.importorskip("faststream")
PROGRAM = Path(__file__).with_name("faststream_program.py")
DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.real_if_long
async def test_faststream_consumes_acks_and_nacks(kafka: KafkaHandle) -> None:
    topics = [await kafka.create_topic() for _ in range(3)]
    async with started(
        sys.executable, str(PROGRAM), kafka.bootstrap_servers, *topics,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as program:  # fmt: skip
        output, errors = await program.communicate()
    assert program.returncode == 0, errors.decode()
    found = json.loads(output.splitlines()[-1])  # FastStream logs to the same place
    # The one that was refused came again, and what was behind it.
    assert found["handled"] == [0, 1, 2, 3, 3, 4]
    assert found["batched"] == list(range(6))
    assert found["by_hand"] == 42
    assert found["consumer"] == "aiokafka_lite.as_aiokafka.consumer.consumer"
    assert b"Traceback" not in output + errors
    async with reading(kafka, group_id=f"{topics[0]}-group") as consumer:
        assert await consumer.committed(TopicPartition(topics[0], 0)) == 5


def test_the_docs_say_what_each_policy_of_acknowledging_is_here() -> None:
    page = (DOCS / "processing.md").read_text("utf-8")
    rows = re.findall(r"^\| `AckPolicy\.(\w+)` \|", page, re.M)
    assert rows == [policy.name for policy in faststream.AckPolicy]


def run_python(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_who_imports_aiokafka_gets_one_package() -> None:
    code = """
from aiokafka_lite import as_aiokafka
as_aiokafka.install()
as_aiokafka.install()
import aiokafka, aiokafka.admin, aiokafka.errors, aiokafka.producer.producer, aiokafka_lite
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor as Sticky
from aiokafka_lite.errors import KafkaError
assert as_aiokafka.is_installed()
ours_alone = {
    "Batch", "CooperativeStickyPartitionAssignor", "AIOKafkaConsumer", "AIOKafkaShareConsumer",
    "confluent_settings",
}
assert issubclass(aiokafka.AIOKafkaConsumer, aiokafka_lite.AIOKafkaConsumer)
assert aiokafka.AIOKafkaConsumer is aiokafka.consumer.consumer.AIOKafkaConsumer
for name in set(aiokafka_lite.__all__) - ours_alone:
    assert name == "__version__" or getattr(aiokafka, name) is getattr(aiokafka_lite, name), name
assert aiokafka.errors is aiokafka_lite.errors and aiokafka.structs is aiokafka_lite.structs
assert aiokafka.client.KafkaError is KafkaError
assert aiokafka.client.StaleMetadata is aiokafka_lite.errors.StaleMetadata
assert aiokafka.AIOKafkaProducer is aiokafka_lite.AIOKafkaProducer
print(aiokafka.AIOKafkaProducer.__module__, Sticky.__module__)
"""
    assert run_python(code).split() == [
        "aiokafka_lite.producing.producer",
        "aiokafka_lite.consumer.assignors.sticky",
    ]


@pytest.mark.real_if_long
async def test_offsets_of_our_consumer_go_into_a_transaction_of_our_producer(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 3))
    code = """
from aiokafka_lite import as_aiokafka
as_aiokafka.install()
import asyncio, sys
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError
async def main(servers, topic):
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=servers, group_id=topic,
        auto_offset_reset="earliest", enable_auto_commit=False)
    producer = AIOKafkaProducer(bootstrap_servers=servers, transactional_id=topic)
    async with consumer, producer:
        (tp, batch), = (await consumer.getmany(timeout_ms=10_000, max_records=2)).items()
        async with producer.transaction():
            await producer.send_and_wait(topic, b"out")
            await producer.send_offsets_to_transaction({tp: batch[-1].offset + 1}, topic)
        print(await consumer.committed(tp))
    lost = AIOKafkaProducer(bootstrap_servers="127.0.0.1:1")
    try: await lost.start()
    except KafkaError as error: print(type(error).__module__)
    finally: await lost.stop()
asyncio.run(main(*sys.argv[1:]))
"""
    output = await asyncio.to_thread(run_python, code, kafka.bootstrap_servers, topic)
    assert output.split()[0] == "2", output
    assert "aiokafka_lite.errors" in output.split(), output


def test_installed_too_late_it_says_so() -> None:
    import aiokafka

    assert not as_aiokafka.is_installed()
    with pytest.raises(RuntimeError, match="already been imported"):
        as_aiokafka.install()
    assert aiokafka.AIOKafkaConsumer.__module__ == "aiokafka.consumer.consumer"


def test_without_aiokafka_it_says_what_to_install_and_leaves_nothing() -> None:
    code = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name == "aiokafka":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hidden())
from aiokafka_lite import as_aiokafka
try: as_aiokafka.install()
except ImportError as error: print(error)
assert not as_aiokafka.is_installed()
assert not [name for name in sys.modules if name.startswith("aiokafka.")]
"""
    assert "pip install aiokafka-lite[aiokafka]" in run_python(code)
