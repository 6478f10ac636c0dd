"""confluent_settings: what becomes of each of librdkafka's settings."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import confluent_kafka
import pytest
from cryptography.hazmat.primitives import serialization

from aiokafka_lite import (
    AIOKafkaProducer,
    CooperativeStickyPartitionAssignor,
    confluent_settings,
)
from aiokafka_lite.broker import Broker
from aiokafka_lite.client.sasl import OAuthBearer
from aiokafka_lite.confluent import (
    SETTINGS,
    UNNEEDED,
    HashPartitioner,
    Refused,
    Translated,
)
from aiokafka_lite.consumer.assignors import RangePartitionAssignor
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.errors import AuthenticationFailedError, KafkaConfigurationError
from aiokafka_lite.producing.config import ProducerConfig
from tests.support.certificates import Authority
from tests.support.conversing import Conversation
from tests.support.for_each import for_each
from tests.support.librdkafka import librdkafka_settings

# confluent-kafka's own, which librdkafka does not know.
OF_PYTHON = {
    "default.topic.config", "logger", "oauth_cb", "on_commit", "on_delivery",
    "key.serializer", "value.serializer", "key.deserializer", "value.deserializer",
}  # fmt: skip
OF_THIS_VERSION = 0x02_10_00_FF  # 2.16.0
CLIENTS = {"C": "consumer", "P": "producer"}
CONFIGS: dict[str, type] = {"consumer": ConsumerConfig, "producer": ProducerConfig}
SASL = {"security.protocol": "SASL_PLAINTEXT", "bootstrap.servers": "127.0.0.1:1"}


def refusal(conf: Mapping[str, object], kind: Literal["consumer", "producer"] = "consumer") -> str:
    with pytest.raises(KafkaConfigurationError) as caught:
        confluent_settings(conf, kind)
    return str(caught.value)


# --- Servers and empty texts -------------------------------------------------------------------
@pytest.mark.parametrize(
    ("servers", "protocol", "plain"),
    [
        ("PLAINTEXT://h:1", None, "h:1"),
        ("plaintext://h:1 , h:2", "plaintext", "h:1,h:2"),
        ("SASL_PLAINTEXT://127.0.0.1:1,127.0.0.1:2", "SASL_PLAINTEXT", "127.0.0.1:1,127.0.0.1:2"),
    ],
)
def test_servers_may_have_the_prefix_of_the_protocol(
    servers: str, protocol: str | None, plain: str
) -> None:
    conf = {"bootstrap.servers": servers, "security.protocol": protocol, "sasl.mechanism": "PLAIN"}
    assert confluent_settings(conf)["bootstrap_servers"] == plain


@pytest.mark.parametrize(
    ("servers", "reason"),
    [
        ("SSL://h:1", "SSL:// in 'SSL://h:1' does not match security.protocol=plaintext"),
        ("h:1,http://h:2", "http:// in 'http://h:2' does not match"),
        (["h:1", "h:2"], "the value must be a str, 'host:port,host:port', not ['h:1', 'h:2']"),
        (9092, "the value must be a str, 'host:port,host:port', not 9092"),
    ],
)
def test_servers_that_librdkafka_cannot_use_are_refused(servers: object, reason: str) -> None:
    assert f"- bootstrap.servers: {reason}" in refusal({"bootstrap.servers": servers})


@for_each(
    [
        (None, "conf must be a dict of settings by name, not a NoneType"),
        ([("sasl.password", "secret")], "conf must be a dict of settings by name, not a list"),
        ({5: "x"}, "the name of a setting in conf must be a str, not 5"),
        (
            {"default.topic.config": "acks=all"},
            "default.topic.config must be a dict of settings by name, not a str",
        ),
        (
            {"default.topic.config": {5: "x"}},
            "the name of a setting in default.topic.config must be a str, not 5",
        ),
    ]
)
def test_a_configuration_of_a_wrong_type_is_refused_without_its_value(
    conf: Any, reason: str
) -> None:
    with pytest.raises(TypeError) as caught:
        confluent_settings(conf)
    assert str(caught.value) == reason


def test_an_empty_text_is_the_default_as_in_librdkafka() -> None:
    names = ("bootstrap.servers", "client.id", "client.rack", "group.instance.id")
    assert confluent_settings(dict.fromkeys(names, "")) == confluent_settings({})
    assert "transactional_id" not in confluent_settings({"transactional.id": ""}, "producer")
    assert confluent_settings({"client.id": " x"})["client_id"] == "x"
    assert "cannot" in refusal({"auto.offset.reset": ""})
    with pytest.raises(confluent_kafka.KafkaException, match="empty value"):
        confluent_kafka.Consumer({"group.id": "g", "auto.offset.reset": ""})


# --- The table ---------------------------------------------------------------------------------
def test_every_setting_of_librdkafka_is_in_the_table_and_no_other() -> None:
    theirs = librdkafka_settings().keys()
    ours = SETTINGS.keys() | UNNEEDED
    assert theirs - ours == set()
    assert not SETTINGS.keys() & UNNEEDED
    if confluent_kafka.libversion()[1] >= OF_THIS_VERSION:  # an older one has fewer
        assert ours - theirs == OF_PYTHON


def test_a_setting_is_for_the_clients_that_librdkafka_has_it_for() -> None:
    theirs = librdkafka_settings()
    wrong = [
        name
        for name, setting in SETTINGS.items()
        if name in theirs
        and theirs[name].client in CLIENTS
        and setting.client != CLIENTS[theirs[name].client]
    ]
    assert wrong == []


def test_every_setting_without_an_equal_has_a_reason() -> None:
    reasons = [each.note for each in SETTINGS.values() if isinstance(each, Refused)]
    assert len(reasons) > 50
    assert all(len(reason) > 10 for reason in reasons)


@pytest.mark.parametrize("kind", ["consumer", "producer"])
def test_librdkafkas_own_defaults_can_be_used(kind: Literal["consumer", "producer"]) -> None:
    conf = {
        name: setting.default
        for name, setting in librdkafka_settings().items()
        if setting.default and isinstance(SETTINGS.get(name), Translated)
    }
    arguments = confluent_settings(conf, kind)
    CONFIGS[kind](**arguments)
    expected = {
        setting.argument
        for name, setting in SETTINGS.items()
        if isinstance(setting, Translated) and setting.client in (kind, "both") and name in conf
    }
    assert expected - arguments.keys() == {"sasl_mechanism"}  # unused without SASL


# --- Values ------------------------------------------------------------------------------------
@for_each(
    [
        ("auto.offset.reset", "smallest", "auto_offset_reset", "earliest"),
        ("auto.offset.reset", "beginning", "auto_offset_reset", "earliest"),
        ("auto.offset.reset", "end", "auto_offset_reset", "latest"),
        ("auto.offset.reset", "error", "auto_offset_reset", "none"),
        ("enable.auto.commit", "False", "enable_auto_commit", False),
        ("enable.auto.commit", True, "enable_auto_commit", True),
        ("enable.auto.commit", "1", "enable_auto_commit", True),
        ("enable.auto.offset.store", False, "ack_mode", "explicit"),
        ("session.timeout.ms", "6000", "session_timeout_ms", 6000),
        ("session.timeout.ms", None, "session_timeout_ms", 45_000),
        ("isolation.level", "READ_UNCOMMITTED", "isolation_level", "read_uncommitted"),
        ("queued.max.messages.kbytes", 10, "max_buffered_bytes", 10_240),
        ("fetch.message.max.bytes", 7, "max_partition_fetch_bytes", 7),
        (
            "partition.assignment.strategy",
            "cooperative-sticky, range",
            "partition_assignment_strategy",
            (CooperativeStickyPartitionAssignor, RangePartitionAssignor),
        ),
    ]
)
def test_values_of_a_consumer_are_converted(
    name: str, given: object, argument: str, value: object
) -> None:
    arguments = confluent_settings({name: given})
    assert arguments[argument] == value
    assert type(arguments[argument]) is type(value)
    ConsumerConfig(**arguments)


@for_each(
    [
        ("acks", -1, "acks", "all"),
        ("request.required.acks", "1", "acks", 1),
        ("linger.ms", "0.6", "linger_ms", 1),
        ("queue.buffering.max.ms", 7, "linger_ms", 7),
        ("queue.buffering.max.kbytes", "64", "buffer_memory", 65_536),
        ("compression.codec", "none", "compression_type", None),
        ("compression.type", "lz4", "compression_type", "lz4"),
        ("message.timeout.ms", 0, "delivery_timeout_ms", 2**31 - 1),
        ("partitioner", "murmur2_random", "partitioner", None),
        ("enable.idempotence", "true", "enable_idempotence", True),
        ("transactional.id", "t", "transactional_id", "t"),
    ]
)
def test_values_of_a_producer_are_converted(
    name: str, given: object, argument: str, value: object
) -> None:
    arguments = confluent_settings({name: given}, kind="producer")
    assert arguments[argument] == value
    ProducerConfig(**arguments)


def test_a_short_time_for_a_record_lowers_that_of_a_request() -> None:
    arguments = confluent_settings({"delivery.timeout.ms": 9_000, "linger.ms": 10}, "producer")
    assert arguments["request_timeout_ms"] == 8_990
    assert ProducerConfig(**arguments).delivery_timeout_s == 9


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({"compression.type": "gzip", "compression.codec": "snappy"}, "compression.codec = snappy"),
        ({"compression.codec": "snappy", "compression.type": "gzip"}, "compression.codec = gzip"),
        ({"linger.ms": 5, "queue.buffering.max.ms": 7}, "queue.buffering.max.ms = 7"),
        (
            {"delivery.timeout.ms": 7, "default.topic.config": {"message.timeout.ms": 50}},
            "message.timeout.ms = 50",
        ),
        (
            {"default.topic.config": {"message.timeout.ms": 50}, "message.timeout.ms": 7},
            "message.timeout.ms = 50",
        ),
    ],
)
def test_the_value_that_librdkafka_sets_last_is_used(
    conf: dict[str, Any], expected: str, capfd: pytest.CaptureFixture[str]
) -> None:
    confluent_kafka.Producer({**conf, "debug": "conf"})
    assert expected in capfd.readouterr().err
    name, _, value = expected.partition(" = ")
    argument = SETTINGS[name].argument  # type: ignore[union-attr]
    assert str(confluent_settings(conf, "producer")[argument]) == value


def test_metadata_is_refreshed_at_its_interval_and_not_at_the_age_of_cached_metadata() -> None:
    conf = {"topic.metadata.refresh.interval.ms": 5, "metadata.max.age.ms": 7}
    assert confluent_settings(conf)["metadata_max_age_ms"] == 5


def test_one_configuration_serves_both_clients() -> None:
    conf = {"group.id": "g", "acks": "all", "enable.partition.eof": True, "dr_cb": print}
    assert "group_id" not in confluent_settings(
        {**conf, "enable.partition.eof": True, "dr_cb": None}, "producer"
    )
    arguments = confluent_settings({**conf, "enable.partition.eof": False})
    assert arguments["group_id"] == "g"
    assert "acks" not in arguments


# --- Refusals ----------------------------------------------------------------------------------
def test_one_error_names_every_setting_that_has_no_equal() -> None:
    text = refusal(
        {
            "group.id": "g",
            "error_cb": print,
            "plugin.library.paths": "x",
            "enable.partition.eof": "true",
            "session.timeuot.ms": 1,
            "fetch.min.bytes": "many",
            "partition.assignment.strategy": "range,sticky",
        }
    )
    first, *lines = text.splitlines()
    assert first.endswith("settings of confluent-kafka cannot be used with AIOKafkaConsumer:")
    assert sorted(lines) == [
        "- enable.partition.eof: compare position with highwater",
        "- error_cb: read consumer.events() or consumer.health()",
        "- fetch.min.bytes: the value must be a number, not 'many'",
        "- partition.assignment.strategy: every assignor must be one of range, roundrobin, "
        "cooperative-sticky, not sticky",
        "- plugin.library.paths: librdkafka's plugins cannot be loaded",
        "- session.timeuot.ms: librdkafka has no such setting; did you mean session.timeout.ms?",
    ]


@for_each(
    [
        ("enable.auto.commit", "yes", "the value must be true or false"),
        ("auto.offset.reset", "first", "the value must be one of smallest, earliest"),
        ("auto.commit.interval.ms", 0, "set enable.auto.commit to false"),
        (
            "topic.metadata.refresh.interval.ms",
            -1,
            "periodic refreshes of metadata cannot be disabled",
        ),
        ("fetch.min.bytes", "inf", "the value must be a number"),
        ("security.protocol", "tls", "the value must be one of plaintext, ssl"),
        ("group.id", "", "leave it out for a consumer without a group"),
        ("group.id", None, "leave it out for a consumer without a group"),
    ]
)
def test_a_wrong_value_is_refused_with_the_reason(name: str, value: object, reason: str) -> None:
    assert f"- {name}: " in (text := refusal({name: value}))
    assert reason in text


def test_an_interval_of_zero_is_ignored_without_auto_commit() -> None:
    conf = {"auto.commit.interval.ms": 0, "enable.auto.commit": "false"}
    assert "auto_commit_interval_ms" not in confluent_settings(conf)


def test_a_delivery_that_ends_before_the_record_is_sent_is_refused() -> None:
    conf: dict[str, Any] = {"message.timeout.ms": 50, "linger.ms": 50}
    with pytest.raises(KafkaConfigurationError, match=r"must be greater than linger\.ms"):
        confluent_settings(conf, "producer")
    with pytest.raises(confluent_kafka.KafkaException, match=r"must be greater than `linger\.ms`"):
        confluent_kafka.Producer(conf)


def test_another_kind_of_client_is_refused() -> None:
    with pytest.raises(ValueError, match="kind must be"):
        confluent_settings({}, "admin")  # type: ignore[arg-type]


# --- Security ----------------------------------------------------------------------------------
def test_passwords_are_taken_and_never_shown() -> None:
    conf = {**SASL, "sasl.mechanisms": "scram-sha-256", "sasl.username": "u", "sasl.password": "p7"}
    arguments = confluent_settings(conf)
    config = ConsumerConfig(**arguments)
    assert (config.sasl_mechanism, config.sasl_plain_username) == ("SCRAM-SHA-256", "u")
    assert config.sasl_plain_password == "p7"
    assert "p7" not in refusal({**conf, "error_cb": print, "sasl.pass": "p7"})


@pytest.mark.parametrize("more", [{}, {"sasl.mechanism": "GSSAPI"}])
def test_kerberos_which_is_librdkafkas_default_is_refused(more: dict[str, str]) -> None:
    assert "- sasl.mechanism: Kerberos (GSSAPI) is not supported" in refusal({**SASL, **more})


def test_settings_of_a_protocol_that_is_not_used_are_ignored() -> None:
    conf = {"sasl.mechanism": "GSSAPI", "https.ca.pem": "x", "ssl.ca.location": "x"}
    assert confluent_settings(conf) == confluent_settings({})


async def test_tokens_are_those_of_the_callback() -> None:
    def plain(config: str) -> tuple[str, float]:
        return f"token of {config}", 1.0

    async def with_extensions(config: str) -> tuple[str, float, str, dict[str, str]]:
        return "token", 1.0, "principal", {"team": "a"}

    found = []
    for callback in (plain, with_extensions):
        conf = {
            **SASL,
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": callback,
            "sasl.oauthbearer.config": "this",
        }
        config = ConsumerConfig(**confluent_settings(conf))
        assert config.sasl_oauth_token_provider is not None
        token = await config.sasl_oauth_token_provider.token()
        found.append((token, config.sasl_oauth_token_provider.extensions()))
    assert found == [("token of this", {}), ("token", {"team": "a"})]


def test_a_callback_for_tokens_that_is_no_function_is_refused() -> None:
    conf = {**SASL, "sasl.mechanism": "OAUTHBEARER", "oauth_cb": "mod.function"}
    assert "- oauth_cb: the value must be a function, not 'mod.function'" in refusal(conf)


async def test_a_token_of_a_callback_that_is_no_text_is_an_error() -> None:
    callback = lambda config: (b"token", 1.0)  # noqa: E731
    conf = {**SASL, "sasl.mechanism": "OAUTHBEARER", "oauth_cb": callback}
    provider = confluent_settings(conf)["sasl_oauth_token_provider"]
    with pytest.raises(AuthenticationFailedError, match="an object of type bytes"):
        await Conversation(OAuthBearer(provider)).first()


def test_certificates_become_a_context(tmp_path: Path) -> None:
    ca = Authority()
    file = tmp_path / "ca.pem"
    file.write_text(ca.pem)
    own = ca.issue().write(tmp_path / "own.pem")
    loaded = []
    for where in ({"ssl.ca.location": file}, {"ssl.ca.pem": ca.pem}):
        conf = {
            "security.protocol": "ssl",
            **where,
            "ssl.certificate.location": own,
            "ssl.key.location": own,
            "ssl.cipher.suites": "ECDHE+AESGCM",
        }
        context = ConsumerConfig(**confluent_settings(conf)).ssl_context
        assert context is not None
        assert context.check_hostname
        loaded.append(len(context.get_ca_certs()))
        ciphers = [each["name"] for each in context.get_ciphers()]
        assert not [name for name in ciphers if "CHACHA" in name and not name.startswith("TLS_")]
    assert loaded == [1, 1]


def test_a_list_of_revoked_certificates_is_checked(tmp_path: Path) -> None:
    ca = Authority()
    paths = [tmp_path / "ca.pem", tmp_path / "crl.pem"]
    for path, text in zip(paths, (ca.pem, ca.revocations()), strict=True):
        path.write_text(text)
    conf = {
        "security.protocol": "ssl",
        "ssl.ca.location": paths[0],
        "ssl.crl.location": paths[1],
    }
    context = confluent_settings(conf)["ssl_context"]
    assert context.verify_flags & ssl.VERIFY_CRL_CHECK_LEAF


def test_a_key_without_its_certificate_is_refused(tmp_path: Path) -> None:
    own = Authority().issue().write(tmp_path / "own.pem")
    conf = {"security.protocol": "ssl", "ssl.key.location": own}
    with pytest.raises(KafkaConfigurationError, match=r"needs ssl\.certificate\.location"):
        confluent_settings(conf)


def test_an_encrypted_key_without_a_password_is_an_error_and_no_prompt(tmp_path: Path) -> None:
    own = Authority().issue().write(tmp_path / "own.pem")
    key = serialization.load_pem_private_key(own.read_bytes(), None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"password"),
    )
    (tmp_path / "key.pem").write_bytes(encrypted)
    conf = {
        "security.protocol": "ssl",
        "ssl.certificate.location": own,
        "ssl.key.location": tmp_path / "key.pem",
    }
    with pytest.raises(KafkaConfigurationError, match=r"without ssl\.key\.password: "):
        confluent_settings(conf)
    assert confluent_settings({**conf, "ssl.key.password": "password"})["ssl_context"]


@for_each([False, "false", "f", "0", 0])
def test_offsets_that_the_application_stores_become_acknowledgements(given: object) -> None:
    assert confluent_settings({"enable.auto.offset.store": given})["ack_mode"] == "explicit"


@for_each(
    [
        ({"ssl.ca.location": "none.pem"}, "ssl.ca.location='none.pem': [Errno 2] No such file"),
        ({"ssl.ca.pem": "text"}, "ssl.ca.pem: "),
        (
            {"ssl.certificate.location": "none.pem", "ssl.key.location": "none.key"},
            "ssl.certificate.location='none.pem', ssl.key.location='none.key' without "
            "ssl.key.password: [Errno 2] No such file",
        ),
        (
            {"ssl.certificate.location": "none.pem", "ssl.key.password": "p7"},
            "ssl.certificate.location='none.pem' with ssl.key.password: [Errno 2] No such file",
        ),
        ({"ssl.crl.location": "none.pem"}, "ssl.crl.location='none.pem': [Errno 2] No such file"),
        ({"ssl.cipher.suites": "NONE"}, "ssl.cipher.suites='NONE': "),
    ]
)
def test_an_error_of_a_certificate_names_its_setting(more: dict[str, str], reason: str) -> None:
    text = refusal({"security.protocol": "ssl", **more})
    assert f"cannot use {reason}" in text
    assert "p7" not in text


def test_tls_without_a_check_of_the_broker_is_refused() -> None:
    conf: dict[str, object] = {"security.protocol": "ssl"}
    conf |= {"enable.ssl.certificate.verification": False}
    conf |= {"ssl.endpoint.identification.algorithm": "none"}
    text = refusal(conf)
    assert text.count("create an ssl.SSLContext and pass it as ssl_context=") == 2


# --- Partitioners ------------------------------------------------------------------------------
KEYS = [b"%d" % number for number in range(60)] + [b"\xff\x80", b"\x00", bytes(range(256))]
PARTITIONS = 7


async def partitions_of(broker: Broker, topic: str) -> dict[bytes | None, int]:
    return {
        record.key: partition
        for partition in range(PARTITIONS)
        for record in broker.records(topic, partition)
    }


@pytest.mark.parametrize(
    "name",
    ["consistent", "consistent_random", "murmur2", "murmur2_random", "fnv1a", "fnv1a_random"],
)
async def test_a_key_has_the_same_partition_as_with_librdkafka(name: str) -> None:
    # Only some partitioners have a fixed partition for an empty key.
    keys = KEYS if name == "consistent_random" else [*KEYS, b""]
    async with Broker() as broker:
        for topic in ("theirs", "ours"):
            broker.create_topic(topic, PARTITIONS)
        conf: dict[str, Any] = {
            "bootstrap.servers": broker.bootstrap_servers,
            "partitioner": name,
        }
        theirs = confluent_kafka.Producer(conf)
        for key in keys:
            theirs.produce("theirs", b"value", key=key)
        await asyncio.to_thread(theirs.flush)
        async with AIOKafkaProducer(**confluent_settings(conf, kind="producer")) as ours:
            for key in keys:
                await ours.send("ours", b"value", key=key)
            await ours.flush()
        expected = await partitions_of(broker, "theirs")
        assert len(expected) == len(keys)
        assert await partitions_of(broker, "ours") == expected


def test_without_the_setting_a_key_has_librdkafkas_partition() -> None:
    default = confluent_settings({}, kind="producer")["partitioner"]
    named = confluent_settings({"partitioner": "consistent_random"}, "producer")["partitioner"]
    numbers = range(PARTITIONS)
    assert [default(key, numbers, numbers) for key in KEYS] == [
        named(key, numbers, numbers) for key in KEYS
    ]


@pytest.mark.parametrize("key", [None, b""])
def test_records_without_a_key_stay_in_a_partition_for_a_while(key: bytes | None) -> None:
    def drawn(partitioner: Callable[..., int]) -> set[int]:
        return {partitioner(key, range(1000), range(0, 1000, 2)) for _ in range(20)}

    (one,) = drawn(HashPartitioner(hash, is_empty_hashed=False, sticky_s=3600))
    assert one % 2 == 0  # among those that have a leader
    assert len(drawn(HashPartitioner(hash, is_empty_hashed=False, sticky_s=0))) > 1


def test_random_ignores_keys() -> None:
    partitioner = confluent_settings({"partitioner": "random"}, "producer")["partitioner"]
    assert len({partitioner(b"key", range(1000), range(1000)) for _ in range(20)}) > 1
