from __future__ import annotations

import ast
import inspect
import pydoc
import re
import textwrap

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite.consumer.assignors import RangePartitionAssignor
from aiokafka_lite.consumer.config import (
    NOT_NEGATIVE,
    POSITIVE,
    ConsumerConfig,
    check_handler,
    check_hold,
    check_max_records,
    check_topics,
)


def test_each_argument_is_an_attribute_of_its_name() -> None:
    source = textwrap.dedent(inspect.getsource(ConsumerConfig.__init__))
    (function,) = ast.parse(source).body
    kept = {
        target.attr: ast.unparse(node.value)
        for node in ast.walk(function)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Attribute)
    }
    arguments = [*inspect.signature(ConsumerConfig).parameters]
    assert {name: kept.pop(name) for name in arguments} == {name: name for name in arguments}
    assert not kept


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


@pytest.mark.parametrize(
    ("arguments", "reason"),
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
        ({"client_id": "\ud800"}, "client_id must be text that UTF-8 can encode"),
        ({"group_id": "\ud800"}, "group_id"),
        ({"group_instance_id": "\ud800"}, "group_instance_id"),
        ({"client_rack": "\ud800"}, "client_rack"),
    ],
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
    check_hold(0)
    check_max_records(1)


def test_a_wrong_isolation_level_is_found_only_when_it_is_checked() -> None:
    config = ConsumerConfig(isolation_level="serializable")
    with pytest.raises(ValueError, match="isolation_level"):
        config.check_isolation_level()


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
    )
    given = {f"{name}_ms": 250 * count for count, name in enumerate(names, 1)}
    config = ConsumerConfig(connections_max_idle_ms=None, **given)  # type: ignore[arg-type]
    assert [getattr(config, f"{name}_s") for name in names] == [
        0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0,
    ]  # fmt: skip
    assert config.handler_hold_s == config.rebalance_hold_s
    assert config.connections_max_idle_s is None


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


@pytest.mark.parametrize(
    ("topics", "error"),
    [
        ("t", TypeError),
        (5, TypeError),
        ([["t"]], TypeError),
        ([b"t"], ValueError),
        ([5], ValueError),
        ([""], ValueError),
        (["\ud800"], ValueError),
    ],
)
def test_invalid_topic_names_are_refused(topics: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        check_topics(topics)  # type: ignore[arg-type]


class Handler:
    async def __call__(self, record: object) -> None:
        """Handle a record."""


async def handle(record: object) -> None:
    """Handle a record."""


async def handle_with_outputs(record: object, outputs: object) -> None:
    """Handle a record."""


def test_a_handler_is_an_async_function_of_its_arguments() -> None:
    check_handler(handle, 1)
    check_handler(Handler(), 1)
    check_handler(handle_with_outputs, 2)
    for handler, argument_count, reason in (
        (Handler, 1, "must be an async def"),
        (print, 1, "must be an async def"),
        (handle, 2, "must take two arguments"),
        (handle_with_outputs, 1, "must take a record"),
    ):
        with pytest.raises(TypeError, match=reason):
            check_handler(handler, argument_count)


@pytest.mark.parametrize("max_hold_ms", [-1, -0.5, float("nan"), True, "1"])
def test_a_hold_is_a_number_of_at_least_zero(max_hold_ms: object) -> None:
    with pytest.raises(ValueError, match="max_hold_ms"):
        check_hold(max_hold_ms)


def test_no_secret_is_in_the_repr() -> None:
    shown = repr(
        ConsumerConfig(group_id="g", sasl_plain_password=None, sasl_oauth_token_provider=None)
    )
    assert shown == "ConsumerConfig(group_id='g')"
