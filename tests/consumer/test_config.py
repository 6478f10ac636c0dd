from __future__ import annotations

import inspect
import math
import pydoc
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite.client.arguments import check_offsets, check_partition
from aiokafka_lite.consumer.assignors import RangePartitionAssignor
from aiokafka_lite.consumer.config import (
    HOLD,
    ConsumerConfig,
    check_handler,
    check_max_records,
    check_offset,
    check_timestamps,
    check_topics,
)
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.support.for_each import for_each

POSITIVE = (
    "fetch_max_bytes",
    "max_partition_fetch_bytes",
    "request_timeout_ms",
    "metadata_max_age_ms",
    "max_poll_interval_ms",
    "rebalance_timeout_ms",
    "session_timeout_ms",
    "heartbeat_interval_ms",
    "auto_commit_interval_ms",
    "max_buffered_bytes",
    "max_batch_bytes",
    "consumer_timeout_ms",
)
NOT_NEGATIVE = ("fetch_max_wait_ms", "fetch_min_bytes", "rebalance_hold_ms", "retry_backoff_ms")

TP = TopicPartition("t", 0)
LOGIN = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_plain_username": "ann",
    "sasl_plain_password": "secret",
}
# All that are sent, and some of one of several words.
TEXTS = [
    parameter.name
    for parameter in inspect.signature(ConsumerConfig).parameters.values()
    if parameter.annotation in ("str", "str | None")
    and parameter.kind is parameter.KEYWORD_ONLY
    and parameter.name not in (*LOGIN, "sasl_mechanism")
]


def test_each_argument_is_an_attribute_of_its_name() -> None:
    config = ConsumerConfig("t")
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(ConsumerConfig).parameters.items()
    }
    kept = {name: value for name, value in vars(config).items() if name != "_is_made"}
    assert kept == defaults | {"topics": ("t",)}


def test_the_consumer_shows_the_arguments_with_types_defaults_and_docs() -> None:
    assert inspect.signature(AIOKafkaConsumer) == inspect.signature(ConsumerConfig)
    shown = pydoc.plain(pydoc.render_doc(AIOKafkaConsumer))
    assert re.search("fetch_max_wait_ms: '?int'? = 500", shown)
    for name in inspect.signature(AIOKafkaConsumer).parameters:
        assert f"{name}: " in (AIOKafkaConsumer.__init__.__doc__ or ""), name
    with pytest.raises(TypeError, match=r"AIOKafkaConsumer\.__init__\(\) got an unexpected"):
        AIOKafkaConsumer(bootstrap_server="localhost")  # type: ignore[call-arg]


def test_a_config_never_changes() -> None:
    config = ConsumerConfig(group_id="g")
    with pytest.raises(AttributeError, match="is immutable"):
        config.group_id = "h"
    with pytest.raises(AttributeError, match="is immutable"):
        del config.group_id
    assert config.group_id == "g"


def test_arguments_of_aiokafka_without_a_meaning_here_are_accepted() -> None:
    config = ConsumerConfig(consumer_timeout_ms=500, sasl_kerberos_service_name="other")
    assert config.consumer_timeout_ms == 500


@for_each(
    [
        ({"security_protocol": "SSL"}, "ssl_context"),
        ({"security_protocol": "SASL_SSL"}, "ssl_context"),
        ({"security_protocol": "SASL_PLAINTEXT"}, "sasl_plain_username"),
        ({"security_protocol": "TLS"}, "security_protocol"),
        ({"sasl_mechanism": "NONE"}, "sasl_mechanism"),
        ({"auto_offset_reset": "smallest"}, "auto_offset_reset"),
        ({"max_poll_records": 0}, "max_poll_records"),
        ({"max_poll_records": 1.5}, "max_poll_records"),
        ({"max_poll_records": True}, "max_poll_records"),
        *[({name: 0}, name) for name in POSITIVE],
        *[({name: -1}, name) for name in NOT_NEGATIVE],
        ({"rebalance_timeout_ms": 0}, "rebalance_timeout_ms"),
        ({"rebalance_hold_ms": -1}, "rebalance_hold_ms"),
        ({"max_records_per_partition": 0}, "max_records_per_partition"),
        ({"group_protocol": "kip848"}, "group_protocol"),
        ({"ack_mode": "manual"}, "ack_mode"),
        ({"session_timeout_ms": 2**31}, r"session_timeout_ms must be at most 2\*\*31 - 1"),
        ({"max_poll_interval_ms": 2**31}, "max_poll_interval_ms"),
        ({"rebalance_timeout_ms": 2**31}, "rebalance_timeout_ms"),
        ({"fetch_max_wait_ms": 2**31}, "fetch_max_wait_ms"),
        ({"fetch_min_bytes": 2**31}, "fetch_min_bytes"),
        ({"max_partition_fetch_bytes": 2**31}, "max_partition_fetch_bytes"),
        ({"fetch_max_bytes": 2**31}, "fetch_max_bytes"),
        ({"request_timeout_ms": 2**31}, "request_timeout_ms"),
        ({"max_buffered_bytes": 2**63}, r"max_buffered_bytes must be at most 2\*\*63 - 1"),
        ({"metadata_max_age_ms": 2**63}, "metadata_max_age_ms"),
        ({"client_id": "\ud800"}, "client_id must be text that UTF-8 can encode"),
        ({"group_id": "\ud800"}, "group_id"),
        ({"group_instance_id": "\ud800"}, "group_instance_id"),
        ({"client_rack": "\ud800"}, "client_rack"),
        *[({name: "ä" * 16_384}, f"{name} must have at most 32,767 bytes") for name in TEXTS],
        ({**LOGIN, "sasl_plain_username": "\ud800"}, "sasl_plain_username must be text"),
        ({**LOGIN, "sasl_plain_password": "\ud800"}, "sasl_plain_password must be text"),
    ]
)
def test_values_that_cannot_be_used_are_refused(arguments: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        ConsumerConfig(**arguments)  # type: ignore[arg-type]


def test_the_least_values_are_accepted() -> None:
    least = {
        **dict.fromkeys(POSITIVE, 1),
        **dict.fromkeys(NOT_NEGATIVE, 0),
        "rebalance_timeout_ms": 1,
        "rebalance_hold_ms": 0,
        "max_poll_records": 1,
        "max_records_per_partition": 1,
    }
    config = ConsumerConfig(**least)  # type: ignore[arg-type]
    assert {name: getattr(config, name) for name in least} == least
    HOLD.check("max_hold_ms", 0)
    check_max_records(1)


def test_the_largest_values_are_accepted() -> None:
    config = ConsumerConfig(
        session_timeout_ms=2**31 - 1,
        max_poll_interval_ms=2**31 - 1,
        fetch_max_bytes=2**31 - 1,
        max_buffered_bytes=2**63 - 1,
    )
    assert config.session_timeout_ms == config.max_poll_interval_ms == 2**31 - 1
    assert check_partition(TopicPartition("t", 2**31 - 1)) == TopicPartition("t", 2**31 - 1)
    assert check_offset(2**63 - 1) == 2**63 - 1
    assert check_timestamps({TP: 2**63 - 1}) == {TP: 2**63 - 1}


@for_each(
    [
        ({TP: 0}, OffsetAndMetadata(0, "")),
        ({TP: 2**63 - 1}, OffsetAndMetadata(2**63 - 1, "")),
        ({TP: (5, "note")}, OffsetAndMetadata(5, "note")),
        ({TP: [5, "note"]}, OffsetAndMetadata(5, "note")),
        ({TP: OffsetAndMetadata(5, "note")}, OffsetAndMetadata(5, "note")),
        ({TP: (5, 5)}, TypeError),
        ({TP: (5,)}, ValueError),
        ({TP: (5, "note", 1)}, ValueError),
        ({TP: -1}, ValueError),
        ({TP: 2**63}, ValueError),
        ({TP: True}, ValueError),
        ({TP: "5"}, ValueError),
        ({("t", 0): 5}, TypeError),
        ({}, ValueError),
        (None, ValueError),
        ([TP], ValueError),
    ]
)
def test_offsets_to_commit_have_one_shape_inside(
    offsets: object, checked: OffsetAndMetadata | type[Exception]
) -> None:
    if isinstance(checked, type):
        with pytest.raises(checked):
            check_offsets(offsets)
    else:
        assert check_offsets(offsets) == {TP: checked}


@for_each(
    [
        ({TP: 0}, {TP: 0}),
        ({TP: 1.9}, {TP: 1}),
        ({TP: -1}, ValueError),
        ({TP: 2**63}, ValueError),
        ({TP: math.inf}, TypeError),
        ({TP: "0"}, TypeError),
        ([TP], TypeError),
    ]
)
def test_timestamps_are_whole_milliseconds_that_a_request_can_name(
    timestamps: Any, checked: dict[TopicPartition, int] | type[Exception]
) -> None:
    if isinstance(checked, type):
        with pytest.raises(checked):
            check_timestamps(timestamps)
    else:
        assert check_timestamps(timestamps) == checked


def test_a_wrong_isolation_level_is_found_only_when_it_is_used() -> None:
    config = ConsumerConfig(isolation_level="serializable")
    with pytest.raises(ValueError, match="isolation_level"):
        _ = config.isolation_level_code


def test_the_rebalance_timeout_is_the_session_timeout_by_default() -> None:
    assert ConsumerConfig(session_timeout_ms=7_000).rebalance_timeout_s == 7.0
    assert ConsumerConfig(rebalance_timeout_ms=9_000).rebalance_timeout_s == 9.0


def test_everything_inside_is_in_seconds() -> None:
    names = (
        "fetch_max_wait",
        "request_timeout",
        "auto_commit_interval",
        "max_poll_interval",
        "session_timeout",
        "rebalance_timeout",
        "rebalance_hold",
        "heartbeat_interval",
        "metadata_max_age",
        "retry_backoff",
    )
    given = {f"{name}_ms": 250 * count for count, name in enumerate(names, 1)}
    config = ConsumerConfig(connections_max_idle_ms=None, **given)  # type: ignore[arg-type]
    assert [getattr(config, f"{name}_s") for name in names] == [
        0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5,
    ]  # fmt: skip
    assert config.handler_hold_s == config.rebalance_hold_s
    assert config.connections_max_idle_s is None
    for idle_ms, idle_s in ((-1, None), (0, None), (1, 0.001), (1_500, 1.5)):
        assert ConsumerConfig(connections_max_idle_ms=idle_ms).connections_max_idle_s == idle_s


@pytest.mark.parametrize(
    ("timeout_ms", "at_most_s", "request_s", "connect_s"),
    [
        (40_000, math.inf, 40.0, 10.0),
        (5_000, math.inf, 5.0, 5.0),
        (5_000, 2.0, 2.0, 2.0),
        (40_000, 20.0, 20.0, 10.0),
    ],
)
def test_to_connect_takes_no_longer_than_a_request(
    timeout_ms: int, at_most_s: float, request_s: float, connect_s: float
) -> None:
    config = ConsumerConfig(request_timeout_ms=timeout_ms)
    client = config.client_config(max_frame_bytes=7, at_most_s=at_most_s)
    assert (client.request_timeout_s, client.connect_timeout_s) == (request_s, connect_s)


@for_each(
    [
        ({}, 5.0, 237.0),
        ({"rebalance_timeout_ms": 60_000}, 45.0, 45.0),
        ({"rebalance_hold_ms": 1_500}, 1.5, 237.0),
        ({"rebalance_timeout_ms": 1_000}, 0.0, 0.0),
        ({"session_timeout_ms": 400_000, "max_poll_interval_ms": 1_000}, 317.0, 317.0),
    ]
)
def test_a_rebalance_waits_for_four_fifths_of_its_time_less_a_heartbeat(
    settings: dict[str, object], hold_s: float, most_s: float
) -> None:
    config = ConsumerConfig(**settings)  # type: ignore[arg-type]
    assert config.rebalance_hold_s == pytest.approx(hold_s)
    assert config.most_hold_s == pytest.approx(most_s)
    held = config.rebalance_hold_ms is not None
    assert config.handler_hold_s == pytest.approx(hold_s if held else most_s)


@pytest.mark.parametrize(
    ("settings", "joins_as"),
    [
        ({}, "auto"),
        ({"group_protocol": "consumer"}, "consumer"),
        ({"partition_assignment_strategy": [RangePartitionAssignor]}, "classic"),
        (
            {
                "group_protocol": "consumer",
                "partition_assignment_strategy": [RangePartitionAssignor],
            },
            "consumer",
        ),
    ],
)
def test_a_given_assignor_decides_for_the_classic_protocol_unless_another_is_named(
    settings: dict[str, object], joins_as: str
) -> None:
    assert ConsumerConfig(**settings).joins_as == joins_as  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "deserializers", [{}, {"key_deserializer": int}, {"value_deserializer": int}]
)
def test_one_deserializer_is_enough(deserializers: dict[str, object]) -> None:
    config = ConsumerConfig(**deserializers)  # type: ignore[arg-type]
    assert config.has_deserializers == bool(deserializers)
    assert not config.without_callables().has_deserializers


@for_each(
    [
        ("t", TypeError),
        (5, TypeError),
        ([["t"]], TypeError),
        ([b"t"], ValueError),
        ([5], ValueError),
        ([""], ValueError),
        (["\ud800"], ValueError),
    ]
)
def test_invalid_topic_names_are_refused(topics: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        check_topics(topics)  # type: ignore[arg-type]


class Handler:
    async def __call__(self, record: object) -> None:
        """Handle a record."""


async def handle(record: object) -> None:
    """Handle a record."""


def generate(record: object) -> Iterator[object]:
    yield record


async def generate_async(record: object) -> AsyncIterator[object]:
    yield record


async def handle_with_outputs(record: object, outputs: object) -> None:
    """Handle a record."""


def test_a_handler_is_a_function_of_its_arguments() -> None:
    for handler, argument_count in (
        (handle, 1), (Handler(), 1), (handle_with_outputs, 2), (print, 1), (bytes.join, 2),
        (lambda record: None, 1), (dict.pop, 2),
    ):  # fmt: skip
        check_handler(handler, argument_count)
    for wrong, argument_count, reason in (
        (Handler, 1, "must be an async def"),
        (7, 1, "must be an async def"),
        (generate, 1, "must be an async def"),
        (generate_async, 1, "must be an async def"),
        (handle, 2, "must take two arguments"),
        (lambda record: None, 2, "must take two arguments"),
        (handle_with_outputs, 1, "must take a record"),
    ):
        with pytest.raises(TypeError, match=reason):
            check_handler(wrong, argument_count)


@for_each([-1, -0.5, float("nan"), True, "1"])
def test_a_hold_is_a_number_of_at_least_zero(max_hold_ms: object) -> None:
    with pytest.raises(ValueError, match="max_hold_ms"):
        HOLD.check("max_hold_ms", max_hold_ms, or_none=True)


def test_no_secret_is_in_the_repr() -> None:
    shown = repr(
        ConsumerConfig(group_id="g", sasl_plain_password=None, sasl_oauth_token_provider=None)
    )
    assert shown == "ConsumerConfig(group_id='g')"
