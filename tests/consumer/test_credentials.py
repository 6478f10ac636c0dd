"""How often credentials are shown, to whom, and what a setting can make the process do."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.records import build_batch
from aiokafka_lite.structs import TopicPartition

TP = TopicPartition("t", 0)
# Attempts to one broker are a second apart; the timer that waits may be early by its resolution.
LEAST_PAUSE_S = 0.98
WATCHED_S = 2.3


def sasl_broker() -> Broker:
    return Broker(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanisms=["PLAIN"],
        users={"alice": "wonderland"},
        connection_failed_authentication_delay_ms=0,
    )


def consumer_of(broker: Broker) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        "t",
        bootstrap_servers=broker.bootstrap_servers,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_plain_username="alice",
        sasl_plain_password="wonderland",
        group_id="g",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        heartbeat_interval_ms=50,
        retry_backoff_ms=10,
    )


def said_by_connection(broker: Broker) -> Mapping[str, Sequence[str]]:
    said: dict[str, list[str]] = defaultdict(list)
    for seen in broker.requests:
        said[seen.peer].append(seen.api)
    return said


@pytest.mark.parametrize(
    "fault", ["refuse", "hang up", pytest.param("reset", marks=pytest.mark.slow)]
)
async def test_credentials_that_are_refused_later_are_shown_once_in_a_second(fault: str) -> None:
    async with sasl_broker() as broker:
        broker.create_topic("t")
        broker.partition(*TP).append(build_batch([(1_000, None, b"a", ())]))
        consumer = consumer_of(broker)
        await consumer.start()
        try:
            await asyncio.wait_for(consumer.getone(), 10)
            shown_before = sum(seen.api == "SaslAuthenticate" for seen in broker.requests)
            rule = broker.on("SaslAuthenticate")
            if fault == "refuse":
                rule.fail(58, times=None)
            else:
                rule.disconnect(times=None, reset=fault == "reset")
            broker.on("Fetch").disconnect()
            broker.on("Heartbeat").disconnect()
            reading = asyncio.ensure_future(_read_on(consumer))
            await asyncio.sleep(WATCHED_S)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            times = [s.arrived_at for s in broker.requests if s.api == "SaslAuthenticate"]
            times = times[shown_before:]
            pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
            assert times
            assert all(pause > LEAST_PAUSE_S for pause in pauses), pauses
        finally:
            await consumer.stop(timeout=0.2)
        # Nobody was shown them before it was asked how, and nobody twice.
        for said in said_by_connection(broker).values():
            assert list(said[:3]) == ["ApiVersions", "SaslHandshake", "SaslAuthenticate"]
            assert said.count("SaslAuthenticate") == 1


async def _read_on(consumer: AIOKafkaConsumer) -> None:
    """An application that takes no error for the end."""
    while True:
        try:
            await consumer.getone()
        except KafkaError:
            await asyncio.sleep(0.01)


# What is in the settings of others, as Java's, is a class to load or a file to read.
HOSTILE_SETTINGS = """
import io, pickle, sys

from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.records import build_batch
import aiokafka_lite.consumer.assignors, aiokafka_lite.consumer.buffer.deserialising, ssl

TEXTS = ("canary_module:Class", "canary_module.Class", "${file:/etc/passwd}", "${env:HOME}",
         "com.sun.security.auth.module.JndiLoginModule required user.provider.url=x;")
NAMES = ("security_protocol", "sasl_mechanism", "ssl_context", "sasl_oauth_token_provider",
         "partition_assignment_strategy", "key_deserializer", "value_deserializer",
         "auto_offset_reset", "on_bad_record", "sasl_jaas_config", "ssl_cafile", "max_poll_records")
seen = []


def hook(event, arguments):
    if event in ("open", "import", "exec", "compile", "pickle.find_class", "os.system",
                 "subprocess.Popen"):
        text = repr(arguments)
        if any(part in text for part in ("canary", "passwd", "HOME", "Jndi", "pickle.find")) or (
            event in ("pickle.find_class", "os.system", "subprocess.Popen")
        ):
            seen.append((event, text))


sys.addaudithook(hook)
import asyncio


async def main():
    refused = 0
    for name in NAMES:
        for text in TEXTS:
            for given in (text, [text]):
                arguments = {name: given}
                if name.startswith("sasl"):
                    arguments.setdefault("security_protocol", "SASL_PLAINTEXT")
                if name == "sasl_oauth_token_provider":
                    arguments["sasl_mechanism"] = "OAUTHBEARER"
                try:
                    AIOKafkaConsumer("t", group_id="g", **arguments)
                except (TypeError, ValueError):
                    refused += 1
    assert refused == len(NAMES) * len(TEXTS) * 2, refused
    bomb = b"cos\\nsystem\\n(S'exit 1'\\ntR."
    async with Broker() as broker:
        broker.create_topic("t")
        batch = build_batch([(1_000, bomb, bomb, (("h", bomb),))])
        broker.partition("t", 0).append(batch)
        consumer = AIOKafkaConsumer(
            "t", bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest"
        )
        async with consumer:
            record = await consumer.getone()
    assert record.value == record.key == record.headers[0][1] == bomb
    assert not seen, seen
    print("nothing was loaded")


asyncio.run(main())
"""


def test_no_setting_and_no_record_has_anything_imported_read_or_run() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HOSTILE_SETTINGS],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "nothing was loaded\n"), done.stderr
