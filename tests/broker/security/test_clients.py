"""Other people's clients over TLS, by each mechanism, and when their session ends."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import aiokafka
import aiokafka.abc
import confluent_kafka
import pytest

from aiokafka_lite.broker import Broker, BrokerConfig, Listener
from aiokafka_lite.broker.security.certificates import CertificateFiles
from aiokafka_lite.broker.thread import BrokerThread
from tests.support.java import JavaTools
from tests.support.java_runner import JavaRunner
from tests.support.programs import started

with warnings.catch_warnings():  # its import uses what Python has deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka as kafka_python
    from kafka.net.sasl.oauth import AbstractTokenProvider

OWN_WARNINGS = pytest.mark.filterwarnings("ignore::DeprecationWarning:kafka", "ignore:read_text")

USER, PASSWORD = "alice", "al,ice=sécret"
PASSWORD_MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
MECHANISMS = [*PASSWORD_MECHANISMS, "OAUTHBEARER"]
VALUES = [b"one", b"two", b"three"]


def config(**settings: object) -> BrokerConfig:
    merged = {
        "security_protocol": "SASL_SSL",
        "users": {USER: PASSWORD},
        "sasl_mechanisms": MECHANISMS,
        "oauth_allow_unsecured_tokens": True,
        **settings,
    }
    return BrokerConfig(**merged)  # type: ignore[arg-type] # checked by what it sets up


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    """A broker that asks for TLS and a password."""
    with BrokerThread(config()) as thread:
        yield thread
    thread.raise_if_failed()


@pytest.fixture
def files(broker: BrokerThread, tmp_path: Path) -> CertificateFiles:
    return broker.broker.certificates.write(str(tmp_path))


def token_of(broker: BrokerThread) -> str:
    return broker.call(lambda it: it.oauth_token(USER, lifetime_s=60))


def topic_for(broker: BrokerThread, client: str, mechanism: str) -> str:
    topic = f"{client}-{mechanism}"
    broker.create_topic(topic)
    return topic


# --- confluent-kafka (librdkafka) --------------------------------------------------------------
def confluent_config(
    broker: BrokerThread, files: CertificateFiles, mechanism: str, password: str = PASSWORD
) -> dict[str, object]:
    settings: dict[str, object] = {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": str(files.ca),
        "sasl.mechanisms": mechanism,
    }
    if mechanism != "OAUTHBEARER":
        return {**settings, "sasl.username": USER, "sasl.password": password}

    def token(_: str) -> tuple[str, float]:
        return token_of(broker), time.time() + 60

    return {**settings, "oauth_cb": token}


def confluent_round_trip(settings: dict[str, object], topic: str) -> list[bytes | None]:
    producer = confluent_kafka.Producer(settings)
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(60) == 0
    consumer = confluent_kafka.Consumer({**settings, "group.id": "unused"})
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        read: list[bytes | None] = []
        while len(read) < len(VALUES):
            batch = consumer.consume(len(VALUES), timeout=60)
            assert batch, "no records for a minute"
            read += [message.value() for message in batch]
        return read
    finally:
        consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka_writes_and_reads(
    broker: BrokerThread, files: CertificateFiles, mechanism: str
) -> None:
    topic = topic_for(broker, "confluent", mechanism)
    settings = confluent_config(broker, files, mechanism)
    assert confluent_round_trip(settings, topic) == VALUES


@pytest.mark.parametrize("mechanism", PASSWORD_MECHANISMS)
def test_confluent_kafka_with_a_wrong_password_is_told_so(
    broker: BrokerThread, files: CertificateFiles, mechanism: str
) -> None:
    told: list[confluent_kafka.KafkaError] = []
    settings = confluent_config(broker, files, mechanism, "wrong")
    consumer = confluent_kafka.Consumer(
        {**settings, "group.id": "unused", "error_cb": told.append, "log_level": 0}
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
        deadline = time.monotonic() + 60
        while not told and time.monotonic() < deadline:
            consumer.poll(0.1)
    finally:
        consumer.close()
    assert told[0].code() == confluent_kafka.KafkaError._AUTHENTICATION
    assert "uthentication failed" in told[0].str()


def test_confluent_kafka_authenticates_again_on_its_connections(tmp_path: Path) -> None:
    with BrokerThread(config(connections_max_reauth_ms=1_500)) as broker:
        broker.create_topic("t")
        files = broker.broker.certificates.write(tmp_path)
        producer = confluent_kafka.Producer(confluent_config(broker, files, "SCRAM-SHA-256"))
        failures: list[object] = []
        ends = time.monotonic() + 5
        count = 0
        while time.monotonic() < ends:
            producer.produce(
                "t", b"x", on_delivery=lambda error, _: failures.append(error) if error else None
            )
            producer.poll(0.05)
            count += 1
        assert producer.flush(60) == 0
        assert failures == []
        assert broker.end_offsets("t") == [count]
        handshakes = broker.call(lambda it: len(it.requests.of("SaslHandshake")))
        # The first of each connection (bootstrap, broker), then again before 1.5 s are over.
        assert handshakes >= 4
        broker.raise_if_failed()


# --- aiokafka ----------------------------------------------------------------------------------
class AiokafkaTokens(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc] # untyped
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def token(self) -> str:
        return self._broker.oauth_token(USER)


@pytest.mark.every_loop
@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_aiokafka_writes_and_reads(mechanism: str) -> None:
    async with Broker(config=config()) as broker:
        settings: dict[str, object] = {
            "bootstrap_servers": broker.bootstrap_servers,
            "security_protocol": "SASL_SSL",
            "ssl_context": broker.certificates.client_context(),
            "sasl_mechanism": mechanism,
        }
        if mechanism == "OAUTHBEARER":
            settings["sasl_oauth_token_provider"] = AiokafkaTokens(broker)
        else:
            settings |= {"sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
        async with aiokafka.AIOKafkaProducer(**settings) as producer:
            for value in VALUES:
                await producer.send_and_wait("t", value)
        consumer = aiokafka.AIOKafkaConsumer(
            "t", group_id="g", auto_offset_reset="earliest", **settings
        )
        async with consumer:
            assert [(await consumer.getone()).value for _ in VALUES] == VALUES
    assert broker.failure is None


# --- kafka-python ------------------------------------------------------------------------------
class KafkaPythonTokens(AbstractTokenProvider):  # type: ignore[misc] # untyped
    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    def token(self) -> str:
        return self._token()


@OWN_WARNINGS
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_writes_and_reads(
    broker: BrokerThread, files: CertificateFiles, mechanism: str
) -> None:
    topic = topic_for(broker, "kafka-python", mechanism)
    settings: dict[str, object] = {
        "bootstrap_servers": broker.bootstrap_servers,
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(files.ca),
        "sasl_mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        settings["sasl_oauth_token_provider"] = KafkaPythonTokens(lambda: token_of(broker))
    else:
        settings |= {"sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
    producer = kafka_python.KafkaProducer(**settings)
    for value in VALUES:
        producer.send(topic, value)
    producer.flush(60)
    producer.close()
    consumer = kafka_python.KafkaConsumer(consumer_timeout_ms=60_000, **settings)
    tp = kafka_python.TopicPartition(topic, 0)
    consumer.assign([tp])
    consumer.seek_to_beginning(tp)
    read = [record.value for _, record in zip(VALUES, consumer, strict=False)]
    consumer.close()
    assert read == VALUES


# --- Java --------------------------------------------------------------------------------------
LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}


def java_properties(mechanism: str, files: CertificateFiles) -> str:
    if mechanism == "OAUTHBEARER":
        options = f'unsecuredLoginStringClaim_sub="{USER}"'
    else:
        options = f'username="{USER}" password="{PASSWORD}"'
    return (
        "\n".join(
            [
                "security.protocol=SASL_SSL",
                "ssl.truststore.type=PEM",
                f"ssl.truststore.location={files.ca}",
                f"sasl.mechanism={mechanism}",
                f"sasl.jaas.config={LOGIN_MODULES[mechanism]} required {options};",
            ]
        )
        .encode("ascii", "backslashreplace")
        .decode()
        .replace("\\xe9", "\\u00e9")
    )


def java_reads(runner: JavaRunner, broker: BrokerThread, topic: str, properties: Path) -> list[str]:
    result = runner.run(
        "console-consumer",
        *("--bootstrap-server", broker.bootstrap_servers, "--topic", topic, "--partition", "0"),
        *("--offset", "earliest", "--max-messages", str(len(VALUES)), "--timeout-ms", "60000"),
        *("--command-config", str(properties)),
    )
    assert result.stdout, result.stderr
    return result.stdout.splitlines()


@pytest.mark.java
@pytest.mark.parametrize(
    "mechanism",
    [
        pytest.param("PLAIN", marks=pytest.mark.slow),
        pytest.param("SCRAM-SHA-256", marks=pytest.mark.slow),
        "SCRAM-SHA-512",
        "OAUTHBEARER",
    ],
)
def test_java_reads(
    java_runner: JavaRunner,
    broker: BrokerThread,
    files: CertificateFiles,
    tmp_path: Path,
    mechanism: str,
) -> None:
    topic = topic_for(broker, "java", mechanism)
    for value in VALUES:
        broker.produce(topic, value)
    properties = tmp_path / "client.properties"
    properties.write_text(java_properties(mechanism, files))
    read = java_reads(java_runner, broker, topic, properties)
    assert read == [value.decode() for value in VALUES]


@pytest.mark.java
def test_java_shows_its_certificate(java_runner: JavaRunner, tmp_path: Path) -> None:
    settings = BrokerConfig(security_protocol="SSL", ssl_client_auth="required")
    with BrokerThread(settings) as broker:
        broker.create_topic("t")
        for value in VALUES:
            broker.produce("t", value)
        files = broker.broker.certificates.write(tmp_path, "java")
        properties = tmp_path / "client.properties"
        properties.write_text(
            "security.protocol=SSL\nssl.truststore.type=PEM\nssl.keystore.type=PEM\n"
            f"ssl.truststore.location={files.ca}\nssl.keystore.location={files.client}\n"
        )
        read = java_reads(java_runner, broker, "t", properties)
        assert read == [value.decode() for value in VALUES]
        broker.raise_if_failed()


@pytest.mark.java
@pytest.mark.slow
async def test_java_authenticates_again_on_its_connections(
    java_tools: JavaTools, tmp_path: Path
) -> None:
    with BrokerThread(config(connections_max_reauth_ms=1_500)) as broker:
        broker.create_topic("t")
        files = broker.broker.certificates.write(tmp_path)
        properties = tmp_path / "client.properties"
        properties.write_text(java_properties("SCRAM-SHA-512", files))
        written = await java_tools.run(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", "t", "--num-records", "500", "--record-size", "10", "--throughput", "100"),
            *("--bootstrap-server", broker.bootstrap_servers),
            *("--command-config", str(properties)),
        )
        assert written.returncode == 0, written.stdout + written.stderr
        assert broker.end_offsets("t") == [500]
        # A producer has two connections, so the third is a second time.
        assert broker.call(lambda it: len(it.requests.of("SaslHandshake"))) >= 3
        broker.raise_if_failed()


@pytest.mark.java
@pytest.mark.slow
async def test_java_admin_tool_adds_a_user_who_may_then_connect(
    java_tools: JavaTools, tmp_path: Path
) -> None:
    listeners = [Listener("PLAINTEXT"), Listener("SASL_PLAINTEXT")]
    with BrokerThread(BrokerConfig(listeners=listeners)) as broker:
        broker.create_topic("t")
        added = await java_tools.run(
            "kafka.admin.ConfigCommand",
            *("--bootstrap-server", broker.bootstrap_servers, "--alter", "--entity-type", "users"),
            *("--entity-name", "carol", "--add-config", "SCRAM-SHA-512=[password=carols]"),
        )
        assert "Completed updating" in added.stdout, added.stdout + added.stderr
        settings: dict[str, object] = {
            "bootstrap.servers": broker.call(lambda it: it.bootstrap_servers_of("SASL_PLAINTEXT")),
            "security.protocol": "sasl_plaintext",
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": "carol",
            "sasl.password": "carols",
        }
        assert confluent_round_trip(settings, "t") == VALUES
        broker.raise_if_failed()


# --- kcat --------------------------------------------------------------------------------------
async def test_kcat_reads(broker: BrokerThread, files: CertificateFiles) -> None:
    kcat = shutil.which("kcat")
    if kcat is None:
        pytest.skip("kcat is not installed (Debian: apt-get install kcat)")
    # Not SCRAM: kcat's librdkafka may be one before 2.6.1, which says the client's nonce twice;
    # Kafka refuses that as we do.
    topic = topic_for(broker, "kcat", "PLAIN")
    for value in VALUES:
        broker.produce(topic, value)
    settings = confluent_config(broker, files, "PLAIN")
    settings["metadata.broker.list"] = settings.pop("bootstrap.servers")
    options = [part for name, value in settings.items() for part in ("-X", f"{name}={value}")]
    async with started(
        *(kcat, "-C", "-t", topic, "-o", "beginning", "-e", "-q", *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        stdout, stderr = await asyncio.wait_for(process.communicate(), 60)
    assert stdout.splitlines() == VALUES, stderr
