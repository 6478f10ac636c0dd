"""Which options are taken, what they come to, and what an error tells about the others."""

from __future__ import annotations

import pickle
import time

import pytest

from aiokafka_lite.client.offsets import EARLIEST, LATEST
from aiokafka_lite.errors import KafkaConfigurationError, OptionError
from aiokafka_lite.spark.options import (
    Position,
    SourceOptions,
    parse_options,
)
from aiokafka_lite.structs import TopicPartition
from tests.spark.options.cases import ACCEPTED, BROKER, REFUSED, STRICTER, TOPIC, Case
from tests.support.for_each import for_each

ZERO, ONE = TopicPartition("flights", 0), TopicPartition("flights", 1)


def batch(**options: str) -> SourceOptions:
    return parse_options({**BROKER, **TOPIC, **_dotted(options)}, is_streaming=False)


def stream(**options: str) -> SourceOptions:
    return parse_options({**BROKER, **TOPIC, **_dotted(options)}, is_streaming=True)


def _dotted(options: dict[str, str]) -> dict[str, str]:
    return {name.replace("__", "."): value for name, value in options.items()}


def kinds(case: Case) -> list[bool]:
    return [
        is_streaming
        for is_streaming, is_meant in ((False, case.batch), (True, case.stream))
        if is_meant
    ]


@for_each(ACCEPTED, "{0.id}")
def test_options_are_accepted(case: Case) -> None:
    for is_streaming in kinds(case):
        options = parse_options({**BROKER, **case.options}, is_streaming=is_streaming)
        assert options.is_streaming is is_streaming


@for_each([*REFUSED, *STRICTER], "{0.id}")
def test_options_are_refused_by_name_and_value(case: Case) -> None:
    for is_streaming in kinds(case):
        with pytest.raises(OptionError) as caught:
            parse_options({**BROKER, **case.options}, is_streaming=is_streaming)
        assert (
            any(name.lower() in str(caught.value).lower() for name in case.options)
            or not case.options
        )


def test_defaults_are_those_of_sparks_own_source() -> None:
    read, streamed = batch(), stream()
    assert (read.starting, read.ending) == (Position(EARLIEST), Position(LATEST))
    assert (streamed.starting, streamed.ending) == (Position(LATEST), Position(LATEST))
    for options in (read, streamed):
        assert options.subscription.topics == {"flights"}
        assert options.fail_on_data_loss is True
        assert options.include_headers is False
        assert options.timestamp_strategy == "error"
        assert options.isolation_level == "read_uncommitted"
        assert options.max_trigger_delay_s == 900
        assert (options.fetch_retries, options.fetch_retry_interval_s) == (3, 1.0)
        assert options.poll_timeout_s == 120
        limits = (
            options.min_partitions,
            options.max_records_per_partition,
            options.max_offsets_per_trigger,
            options.min_offsets_per_trigger,
        )
        assert limits == (None, None, None, None)
        assert options.warnings == ()


def test_every_option_comes_through() -> None:
    options = stream(
        startingTimestamp="5",
        startingOffsetsByTimestampStrategy="latest",
        failOnDataLoss="false",
        includeHeaders="true",
        minPartitions="7",
        maxRecordsPerPartition="8",
        maxOffsetsPerTrigger="10",
        minOffsetsPerTrigger="9",
        maxTriggerDelay="90s",
        minRecordsPerTask="11",
        fetchOffset__numRetries="12",
        fetchOffset__retryIntervalMs="13",
        kafkaConsumer__pollTimeoutMs="14",
        groupIdPrefix="mine",
        commitOffsetsToGroup="lag",
    )
    assert options.starting == Position(5, is_time=True)
    assert options.timestamp_strategy == "latest"
    assert options.fail_on_data_loss is False
    assert options.include_headers is True
    assert (options.min_partitions, options.max_records_per_partition) == (7, 8)
    assert (options.max_offsets_per_trigger, options.min_offsets_per_trigger) == (10, 9)
    assert options.max_trigger_delay_s == 90
    assert options.min_records_per_task == 11
    assert (options.fetch_retries, options.fetch_retry_interval_s) == (12, 0.013)
    assert options.poll_timeout_s == 0.014
    assert options.commit_group == "lag"


def test_names_are_taken_in_any_case() -> None:
    assert batch(STARTINGOFFSETS='{"flights":{"0":3}}').starting == Position({ZERO: 3})


def test_topics_of_a_list_are_taken_once_without_spaces() -> None:
    options = parse_options({**BROKER, "subscribe": " a , b,,a"}, is_streaming=False)
    assert options.subscription.topics == {"a", "b"}


def test_partitions_are_assigned() -> None:
    options = parse_options({**BROKER, "assign": '{"flights":[1,0,1]}'}, is_streaming=False)
    assert options.subscription.assigned == {"flights": {0, 1}}


def test_pattern_finds_topics_by_a_part_of_their_names() -> None:
    options = parse_options({**BROKER, "subscribePattern": "li"}, is_streaming=False)
    assert options.subscription.topics is None
    assert options.subscription.matches("flights")
    assert not options.subscription.matches("weather")


def test_positions_are_read_from_json() -> None:
    text = '{"flights":{"0":23,"1":-2}}'
    assert batch(startingOffsets=text).starting == Position({ZERO: 23, ONE: -2})
    assert batch(endingOffsetsByTimestamp='{"flights":{"0":23}}').ending == Position(
        {ZERO: 23}, is_time=True
    )


def test_timestamp_for_all_comes_before_timestamps_and_these_before_offsets() -> None:
    everything = {
        "endingOffsets": '{"flights":{"0":1}}',
        "endingOffsetsByTimestamp": '{"flights":{"0":2}}',
        "endingTimestamp": "3",
    }
    assert batch(**everything).ending == Position(3, is_time=True)
    del everything["endingTimestamp"]
    assert batch(**everything).ending == Position({ZERO: 2}, is_time=True)
    del everything["endingOffsetsByTimestamp"]
    assert batch(**everything).ending == Position({ZERO: 1})


@for_each(
    [("15m", 900), ("1h", 3600), ("500ms", 0.5), ("7", 0.007), ("1500us", 0.001), ("2d", 172_800)]
)
def test_durations_have_units(text: str, seconds: float) -> None:
    assert stream(maxTriggerDelay=text).max_trigger_delay_s == seconds


def test_what_has_no_effect_is_a_warning() -> None:
    (warning,) = batch(maxOffsetsPerTrigger="5").warnings
    assert "maxOffsetsPerTrigger" in warning
    assert "batch" in warning
    assert stream(maxOffsetsPerTrigger="5").warnings == ()
    (warning,) = batch(commitOffsetsToGroup="lag").warnings
    assert "commitOffsetsToGroup" in warning
    (warning,) = batch(topic="out").warnings
    assert "writing" in warning


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("startingOfset", "startingOffsets"),
        ("subscribepatern", "subscribePattern"),
        ("fetchOffset.numretry", "fetchOffset.numRetries"),
        ("failondataloss ", "failOnDataLoss"),
    ],
)
def test_unknown_name_is_told_with_the_nearest(given: str, meant: str) -> None:
    with pytest.raises(OptionError, match=f"did you mean {meant}\\?"):
        batch(**{given: "1"})


def test_name_like_no_other_is_told_alone() -> None:
    with pytest.raises(OptionError, match=r"option zzzz is not known$"):
        batch(zzzz="1")


def test_table_of_a_catalog_is_refused_as_spark_forgets_its_options() -> None:
    # What pyspark 4.3 hands over for CREATE TABLE t USING ... OPTIONS (subscribe 'flights').
    given = {**BROKER, **TOPIC, "option.subscribe": "flights", "owner": "me", "provider": "x"}
    with pytest.raises(OptionError, match="CREATE TEMPORARY VIEW"):
        parse_options(given, is_streaming=False)


def test_value_in_an_error_is_cut() -> None:
    with pytest.raises(OptionError, match="and 4800 more characters") as caught:
        batch(startingOffsets="x" * 5000)
    assert len(str(caught.value)) < 500


def test_error_of_json_says_where_it_breaks() -> None:
    with pytest.raises(OptionError, match="char 12"):
        batch(startingOffsets='{"flights": }')


def test_json_of_any_depth_and_size_is_an_error_of_options() -> None:
    for text in (
        "[" * 100_000,
        '{"flights":{"0":' + "9" * 10_000 + "}}",
        '{"flights":{"0":1e999}}',
    ):
        with pytest.raises(OptionError, match="startingOffsets"):
            batch(startingOffsets=text)


def test_error_is_one_of_configuration() -> None:
    with pytest.raises(KafkaConfigurationError):
        batch(minPartitions="none")


def test_options_without_secrets_are_pickled() -> None:
    options = batch(startingOffsets='{"flights":{"0":3}}')
    again = pickle.loads(pickle.dumps(options))  # noqa: S301 -- our own
    assert repr(again) == repr(options)
    assert again.starting == options.starting


def test_parsing_takes_less_than_a_millisecond() -> None:
    # It happens in every process that Spark starts; 0.1 ms here.
    def once() -> float:
        began = time.perf_counter()
        batch(startingOffsets='{"flights":{"0":3}}', minPartitions="5", kafka__client__id="mine")
        return time.perf_counter() - began

    assert min(once() for _ in range(50)) < 0.001
