"""Options of the Spark source, and the offsets in checkpoints."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Final

from aiokafka_lite._compat import override
from aiokafka_lite.errors import (
    IllegalArgumentError,
    InsecureConfigError,
    KafkaConfigurationError,
    OptionError,
)
from aiokafka_lite.spark.options import NAMES, parse_options
from aiokafka_lite.spark.ranges import from_spark, to_spark
from tests.fuzz import mutations
from tests.fuzz.engine import Broken, Target

WORDS: Final = (
    *("earliest", "latest", "true", "FALSE", '{"t":{"0":1}}', '{"t":[0,1]}', "15m", "-1", "1e3"),
    *("a.*", "[a-z]+", r"\Qx\E", r"\p{Alpha}", "(?i)t", "(?<=a)b", "{2,3}", "(?:", "SASL_SSL"),
    *("org.apache.kafka.common.security.plain.PlainLoginModule required ", 'username="u" '),
    *('password="p";', "localhost:9092", "[::1]:9092", "PEM", "-----BEGIN CERTIFICATE-----\n"),
)
SERVERS: Final = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
JAAS: Final = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p";'
)
OPTIONS: Final[tuple[dict[str, str], ...]] = (
    {"subscribe": "t, u", "startingOffsets": "earliest", "failOnDataLoss": "false"},
    {"subscribePattern": r"t\d+|(?i:u)[a-z]*", "minPartitions": "7", "includeHeaders": "true"},
    {"assign": '{"t":[0,1]}', "startingOffsets": '{"t":{"0":23,"1":-2}}', "groupIdPrefix": "g"},
    {
        "subscribe": "t",
        "startingOffsetsByTimestamp": '{"t":{"0":1700000000000}}',
        "endingOffsetsByTimestamp": '{"t":{"0":1700000001000}}',
        "startingOffsetsByTimestampStrategy": "latest",
    },
    {
        "subscribe": "t",
        "maxOffsetsPerTrigger": "100",
        "minOffsetsPerTrigger": "10",
        "maxTriggerDelay": "15m",
        "commitOffsetsToGroup": "g",
        "admissionControl": "source",
        "fetchOffset.numRetries": "3",
        "fetchOffset.retryIntervalMs": "10",
        "kafkaConsumer.pollTimeoutMs": "1000",
        "minRecordsPerTask": "5",
        "maxRecordsPerPartition": "9",
    },
    {
        "subscribe": "t",
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": JAAS,
        "kafka.client.id": "c",
        "kafka.fetch.max.bytes": "1000",
        "kafka.request.timeout.ms": " 5 ",
        "allowPlaintextCredentials": "true",
    },
)


class Options(Target):
    """The options of a query, as JSON; parsed for a batch and for a stream."""

    name = "spark-options"
    allowed = (OptionError, InsecureConfigError, KafkaConfigurationError)

    @override
    def seeds(self) -> Sequence[bytes]:
        return [json.dumps({**SERVERS, **options}).encode() for options in OPTIONS]

    @override
    def mutate(self, rng: random.Random, content: bytes, pool: Sequence[bytes]) -> bytes:
        options = _options(content)
        for _ in range(rng.choice((1, 1, 2, 4))):
            names = (*options, *NAMES.values(), "kafka.ssl.truststore.certificates", "kafka.x")
            name = rng.choice(names)
            if rng.random() < 0.15:
                options.pop(name, None)
                continue
            value = options.get(name) or rng.choice(WORDS)
            options[name] = mutations.changed_text(rng, value, WORDS)[:5000]
        if rng.random() < 0.1:
            options.update(_options(rng.choice(pool)))
        return json.dumps(options).encode()

    @override
    def run(self, content: bytes) -> str:
        options = _options(content)
        failures = []
        for is_streaming in (False, True):
            try:
                parsed = parse_options(options, is_streaming=is_streaming)
                parsed.subscription.matches("t1")
            except self.allowed as error:
                failures.append(error)
        for failure in failures:
            if "kafka.sasl.jaas.config" in str(failure) and JAAS in str(failure):
                raise Broken("an error shows credentials")
        if failures:
            raise failures[0]
        return f"{sorted(options)[:2]} {sorted(options)[-2:]}"


def _options(content: bytes) -> dict[str, str]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        found = {"subscribe": content.decode(errors="replace")}
    return {str(name): str(value) for name, value in found.items()}


class Checkpoints(Target):
    """The offsets that Spark reads from a checkpoint, as JSON that Spark has parsed."""

    name = "spark-checkpoints"
    allowed = (IllegalArgumentError,)

    @override
    def seeds(self) -> Sequence[bytes]:
        return [
            b'{"flights":{"0":23,"1":345}}',
            b'{"a":{"0":0},"b":{"2":9223372036854775807,"10":1}}',
            b"{}",
        ]

    @override
    def mutate(self, rng: random.Random, content: bytes, pool: Sequence[bytes]) -> bytes:
        text = mutations.changed_text(rng, content.decode(errors="replace"), WORDS)
        return text.encode(errors="surrogatepass")[:5000]

    @override
    def run(self, content: bytes) -> str:
        try:
            stored = json.loads(content)
        except (ValueError, RecursionError):
            return "no JSON, which Spark refuses by itself"
        offsets = from_spark(stored)
        if any(tp.partition >= 2**31 or not 0 <= at < 2**63 for tp, at in offsets.items()):
            raise Broken(f"Kafka has no such offsets: {offsets}")
        if from_spark(json.loads(json.dumps(to_spark(offsets)))) != offsets:
            raise Broken(f"{offsets} are stored as other offsets")
        return f"{min(len(offsets), 3)} partitions"
