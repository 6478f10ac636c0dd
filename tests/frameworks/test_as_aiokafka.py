"""Programs that import aiokafka, unchanged, once with its own consumer and once with ours."""

from __future__ import annotations

import asyncio
import inspect
import json
import subprocess
import sys
from pathlib import Path

import aiokafka
import pytest
from aiokafka.coordinator import protocol as theirs

from aiokafka_lite.as_aiokafka.consumer import AIOKafkaConsumer
from aiokafka_lite.coordinator import protocol as ours
from tests.support.cluster import KafkaHandle, unique

PROGRAM = Path(__file__).with_name("orders_program.py")
INSTALL = "from aiokafka_lite import as_aiokafka; as_aiokafka.install()"
RUN = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
INNER_PARTS = (
    "codec", "conn", "consumer.fetcher", "consumer.group_coordinator",
    "consumer.subscription_state", "record.util",
)  # fmt: skip


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


async def test_a_program_with_producer_and_consumer_does_the_same_with_ours(
    kafka: KafkaHandle,
) -> None:
    async def run(first: str) -> subprocess.CompletedProcess[str]:
        names = [unique(each) for each in ("orders", "invoices", "group")]
        code = f"{first}\n{RUN}"
        return await asyncio.to_thread(
            run_python, code, str(PROGRAM), kafka.bootstrap_servers, *names
        )

    with_theirs, with_ours = await asyncio.gather(run(""), run(INSTALL))
    assert "consumer of aiokafka.consumer" in with_theirs.stderr
    assert "consumer of aiokafka_lite.as_aiokafka.consumer" in with_ours.stderr
    found = json.loads(with_ours.stdout)
    assert found == json.loads(with_theirs.stdout)
    assert found["committed"] == {"0": 20, "1": 20}
    assert sorted(amount for _, _, amount in found["seen"]) == list(range(40))


def test_inner_parts_of_aiokafka_are_found_under_their_names() -> None:
    code = f"""
import importlib, json
found = {{}}
for name in {INNER_PARTS}:
    module = importlib.import_module(f"aiokafka.{{name}}")
    found[name] = [module.__name__, module.__file__, sorted(vars(module))]
print(json.dumps(found))
"""
    with_ours = json.loads(run_python(f"{INSTALL}\n{code}").stdout)
    assert with_ours == json.loads(run_python(code).stdout)
    # As attributes as well, and to be patched.
    code = """
import aiokafka
from unittest import mock
print(aiokafka.consumer.fetcher.Fetcher.__module__)
with mock.patch("aiokafka.consumer.group_coordinator.GroupCoordinator", autospec=True) as patched:
    assert aiokafka.consumer.group_coordinator.GroupCoordinator is patched
with mock.patch("aiokafka.consumer.subscription_state.SubscriptionState.pause"): pass
with mock.patch("aiokafka.AIOKafkaConsumer", autospec=True) as patched:
    patched.return_value.getone.return_value = 1
"""
    assert run_python(f"{INSTALL}\n{code}").stdout == "aiokafka.consumer.fetcher\n"


@pytest.mark.real_if_long
async def test_inner_parts_of_aiokafka_read_in_a_group(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    await kafka.produce(topic, 1, [(b"k", b"v")])
    code = """
import asyncio, sys
from aiokafka.client import AIOKafkaClient
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import SubscriptionState
async def main(servers, topic):
    client, state = AIOKafkaClient(bootstrap_servers=servers), SubscriptionState()
    await client.bootstrap()
    await client.set_topics([topic])
    state.subscribe({topic})
    coordinator = GroupCoordinator(client, state, group_id=topic)
    fetcher = Fetcher(client, state, auto_offset_reset="earliest")
    record = await fetcher.next_record([])
    print(len(state.assigned_partitions()), record.value, type(record).__module__)
    for part in fetcher, coordinator, client: await part.close()
asyncio.run(asyncio.wait_for(main(*sys.argv[1:]), 60))
"""
    done = await asyncio.to_thread(run_python, f"{INSTALL}\n{code}", kafka.bootstrap_servers, topic)
    assert done.stdout == "2 b'v' aiokafka_lite.structs\n"


@pytest.mark.real_if_long
async def test_a_consumer_of_aiokafkas_name_joins_as_aiokafkas_does(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    code = """
import asyncio, sys
import aiokafka_lite
from aiokafka import AIOKafkaConsumer
async def main(servers, topic):
    async def joined(kind, **settings):
        async with kind(topic, bootstrap_servers=servers, group_id=topic, **settings) as consumer:
            return consumer.metrics()["group_protocol"]
    print(await joined(AIOKafkaConsumer))
    print(await joined(AIOKafkaConsumer, group_protocol="auto"))
    print(await joined(aiokafka_lite.AIOKafkaConsumer))
    consumer = AIOKafkaConsumer(topic)
    print(consumer._config)
    consumer._closed = True
asyncio.run(asyncio.wait_for(main(*sys.argv[1:]), 60))
"""
    done = await asyncio.to_thread(run_python, f"{INSTALL}\n{code}", kafka.bootstrap_servers, topic)
    *protocols, config = done.stdout.splitlines()
    assert protocols == ["classic", "consumer", "consumer"]
    assert config == f"AiokafkasConfig('{topic}')"  # nothing that differs from its defaults


def test_arguments_of_a_consumer_of_aiokafkas_name_have_its_defaults() -> None:
    expected = inspect.signature(aiokafka.AIOKafkaConsumer).parameters
    found = inspect.signature(AIOKafkaConsumer).parameters
    for name in expected.keys() - {"client_id", "partition_assignment_strategy"}:
        assert found[name].default == expected[name].default, name
    ((theirs,), (ours,)) = (
        each["partition_assignment_strategy"].default for each in (expected, found)
    )
    assert theirs.name == ours.name
    assert found["group_protocol"].default == "classic"


@pytest.mark.parametrize("user_data", [b"", b"mine"])
def test_what_members_exchange_is_encoded_and_decoded_as_aiokafka_does(user_data: bytes) -> None:
    said = ours.ConsumerProtocolMemberMetadata(0, ["a", "b"], user_data)
    as_theirs = theirs.ConsumerProtocolMemberMetadata(0, ["a", "b"], user_data)
    assert said.encode() == as_theirs.encode()
    assert ours.ConsumerProtocolMemberMetadata.decode(as_theirs.encode()) == said
    given = ours.ConsumerProtocolMemberAssignment(0, [("a", [0, 2]), ("b", [])], user_data)
    as_theirs = theirs.ConsumerProtocolMemberAssignment(0, [("a", [0, 2]), ("b", [])], user_data)
    assert given.encode() == as_theirs.encode()
    assert ours.ConsumerProtocolMemberAssignment.decode(as_theirs.encode()) == given
