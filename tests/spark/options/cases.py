"""Options that both sources take, that both refuse, and that only ours refuses.

The options of each case come on top of a broker's address. `test_options_alike` gives them to
Spark's own source as well.
"""

from __future__ import annotations

from typing import Final, NamedTuple

BROKER: Final = {"kafka.bootstrap.servers": "127.0.0.1:1"}
TOPIC: Final = {"subscribe": "flights"}


class Case(NamedTuple):
    """Some options, and the kinds of queries that refuse them."""

    options: dict[str, str]
    batch: bool = True
    stream: bool = True

    @property
    def id(self) -> str:
        return ",".join(f"{name}={value}" for name, value in self.options.items())[:80]


def _each(name: str, *values: str) -> list[Case]:
    return [Case({**TOPIC, name: value}) for value in values]


def _batch(name: str, *values: str) -> list[Case]:
    return [Case({**TOPIC, name: value}, stream=False) for value in values]


def _stream(name: str, *values: str) -> list[Case]:
    return [Case({**TOPIC, name: value}, batch=False) for value in values]


ACCEPTED: Final = [
    Case(TOPIC),
    Case({"SUBSCRIBE": " flights , weather,,flights "}),
    Case({"subscribePattern": " flights.* "}),
    Case({"assign": '{"flights":[0,1],"weather":[2]}'}),
    Case({"assign": ' {"flights":[0.0]} '}),
    *_each("startingOffsets", "earliest", " EARLIEST ", '{"flights":{"0":23,"1":-2}}'),
    *_each("startingOffsets", '{"flights":{"0":23.0}}', '{"flights":{"+1":1}}', "{}"),
    *_stream("startingOffsets", "latest", "LATEST ", '{"flights":{"0":-1}}'),
    *_batch("endingOffsets", "latest", '{"flights":{"0":23,"1":-1}}'),
    *_each("startingTimestamp", "1700000000000", " 5 ", "+5"),
    *_batch("endingTimestamp", "1700000000000"),
    *_each("startingOffsetsByTimestamp", '{"flights":{"0":1700000000000}}'),
    *_batch("endingOffsetsByTimestamp", '{"flights":{"0":1700000000000}}'),
    # What is less precise is not even read.
    Case({**TOPIC, "startingTimestamp": "5", "startingOffsets": "latest"}),
    Case({**TOPIC, "startingTimestamp": "5", "startingOffsetsByTimestamp": "broken"}),
    Case({**TOPIC, "startingOffsetsByTimestamp": '{"flights":{"0":5}}', "startingOffsets": "x"}),
    Case(
        {
            **TOPIC,
            "startingOffsets": '{"flights":{"0":5,"1":-2,"2":9}}',
            "endingOffsets": '{"flights":{"0":5,"1":3,"2":-1}}',
        },
        stream=False,
    ),
    *_each("startingOffsetsByTimestampStrategy", "error", "LATEST"),
    *_each("failOnDataLoss", "false", "TRUE"),
    *_each("includeHeaders", "true", "False"),
    *_each("minPartitions", "1", "+5", "2147483647"),
    *_each("maxRecordsPerPartition", "1", "2147483648"),
    *_each("maxOffsetsPerTrigger", "5", "9223372036854775807"),
    *_each("minOffsetsPerTrigger", "0", "5"),
    Case({**TOPIC, "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "5"}),
    *_each("maxTriggerDelay", "15m", "1h", " 500MS ", "5", "10min", "3d", "7us", "-1"),
    *_each("fetchOffset.numRetries", "0", "3"),
    *_each("fetchOffset.retryIntervalMs", "0", "10"),
    *_each("kafkaConsumer.pollTimeoutMs", "512"),
    *_each("groupIdPrefix", "mine"),
    *_each("kafka.group.id", "mine"),
    *_each("kafka.max.poll.records", "20000"),
    *_each("path", "/somewhere"),
    *_each("topic", "for-writing"),
]

REFUSED: Final = [
    Case({}),
    Case({"subscribe": "flights", "assign": '{"flights":[0]}'}),
    Case({"subscribe": "flights", "subscribePattern": "f.*"}),
    Case({"subscribe": " , "}),
    Case({"subscribePattern": "  "}),
    Case({"assign": ""}),
    Case({"assign": '["flights"]'}),
    Case({"assign": '{"flights":0}'}),
    Case({"assign": '{"flights":["0"]}'}),
    *_each("startingOffsets", "", "x", "earliest,latest", '{"flights":{"0":1,}}'),
    *_each("startingOffsets", '{"flights":{"0":"23"}}', '{"flights":{"0":true}}'),
    *_each("startingOffsets", '{"flights":{"x":1}}', '{"flights":{" 0":1}}', '{"flights":[1]}'),
    *_each("startingOffsets", "{'flights':{'0':1}}", '{"flights":{"2147483648":1}}'),
    *_batch("startingOffsets", "latest", " Latest", '{"flights":{"0":5,"1":-1}}'),
    *_batch("endingOffsets", "earliest", '{"flights":{"0":-2}}', "x"),
    *_stream("endingOffsets", "latest", '{"flights":{"0":5}}'),
    *_stream("endingOffsetsByTimestamp", '{"flights":{"0":5}}'),
    *_each("startingTimestamp", "", "yesterday", "1_0", "5.0", "9223372036854775808"),
    *_batch("endingTimestamp", "tomorrow"),
    *_each("startingOffsetsByTimestamp", "5", '{"flights":5}', '{"flights":{"0":"5"}}'),
    Case(
        {
            **TOPIC,
            "startingOffsets": '{"flights":{"0":5}}',
            "endingOffsets": '{"flights":{"0":4}}',
        },
        stream=False,
    ),
    Case(
        {
            **TOPIC,
            "startingOffsets": '{"flights":{"0":5}}',
            "endingOffsets": '{"flights":{"1":7}}',
        },
        stream=False,
    ),
    Case(
        {
            **TOPIC,
            "startingOffsetsByTimestamp": '{"flights":{"0":5}}',
            "endingOffsetsByTimestamp": '{"flights":{"0":4}}',
        },
        stream=False,
    ),
    *_each("startingOffsetsByTimestampStrategy", "earliest", "", " error"),
    *_each("failOnDataLoss", "no", "1", "", " true"),
    *_each("includeHeaders", "yes"),
    *_each("minPartitions", "0", "-1", "2147483648", " 5", "", "5.0"),
    *_each("maxRecordsPerPartition", "0", "x", "9223372036854775808"),
    *_stream("maxOffsetsPerTrigger", "x", "5.0", ""),
    *_stream("minOffsetsPerTrigger", "x"),
    Case({**TOPIC, "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}),
    *_stream("maxTriggerDelay", "", "1.5m", "1 h", "1w", "m", "+5s", "9" * 5000),
    *_stream("fetchOffset.numRetries", "x", "2147483648"),
    *_stream("fetchOffset.retryIntervalMs", "x"),
    *_each("kafkaConsumer.pollTimeoutMs", "x"),
    *_each("kafka.auto.offset.reset", "earliest"),
    *_each("kafka.key.deserializer", "x.Y"),
    *_each("kafka.value.deserializer", "x.Y"),
    *_each("kafka.enable.auto.commit", "false"),
    *_each("kafka.interceptor.classes", ""),
]

STRICTER: Final = [
    # Misspelt, or not of Kafka: Spark's source heeds its default instead.
    *_each("startingOfsets", "earliest"),
    *_each("kafka.fetch.min.byte", "1"),
    # Names that no topic can have, and partitions that none has: it fails, or reads nothing.
    *_each("subscribe", "two words", ".."),
    Case({"assign": '{"two words":[0]}'}),
    Case({"assign": "{}"}),
    Case({"assign": '{"flights":[-1]}'}),
    *_each("startingOffsets", '{"flights":{"-1":1}}'),
    # Numbers that Spark's source cuts, takes for 0, or sends to brokers as they are.
    Case({"assign": '{"flights":[1.5]}'}),
    Case({"assign": '{"flights":[null]}'}),
    Case({"assign": '{"flights":[2147483648]}'}),
    *_each("startingOffsets", '{"flights":{"0":1.5}}', '{"flights":{"0":null}}'),
    *_each("startingOffsets", '{"flights":{"0":-3}}', '{"flights":{"0":9223372036854775808}}'),
    *_each("startingTimestamp", "-5"),
    # Whatever is behind the JSON.
    Case({"assign": '{"flights":[0]}, "weather":[0]}'}),
    *_each("startingOffsets", "null", '{"flights":{"0":1}}}'),
    # An end that a streaming query does not heed.
    *_stream("endingTimestamp", "1700000000000"),
    # A stream that never moves, waits that cannot be.
    *_stream("maxOffsetsPerTrigger", "0", "-1"),
    *_stream("minOffsetsPerTrigger", "-1"),
    *_stream("fetchOffset.numRetries", "-1"),
    *_stream("fetchOffset.retryIntervalMs", "-3"),
    *_each("kafkaConsumer.pollTimeoutMs", "0", "-3"),
    # Values that batch queries do not read.
    *_batch("maxOffsetsPerTrigger", "x"),
    *_batch("maxTriggerDelay", "1.5m"),
    *_batch("fetchOffset.numRetries", "x"),
]
"""What Spark's source takes at first, and ours refuses at once; docs/spark.md lists the reasons."""
