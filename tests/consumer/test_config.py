from __future__ import annotations

import ast
import inspect
import pydoc
import re
import textwrap

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite.consumer.config import ConsumerConfig


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
        ({"fetch_max_bytes": 0}, "fetch_max_bytes"),
        ({"fetch_max_wait_ms": -1}, "fetch_max_wait_ms"),
        ({"session_timeout_ms": 0}, "session_timeout_ms"),
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


def test_a_wrong_isolation_level_is_found_only_when_it_is_checked() -> None:
    config = ConsumerConfig(isolation_level="serializable")
    with pytest.raises(ValueError, match="isolation_level"):
        config.check_isolation_level()


def test_the_rebalance_timeout_is_the_session_timeout_by_default() -> None:
    assert ConsumerConfig(session_timeout_ms=7_000).rebalance_timeout_s == 7.0
    assert ConsumerConfig(rebalance_timeout_ms=9_000).rebalance_timeout_s == 9.0


def test_everything_inside_is_in_seconds() -> None:
    config = ConsumerConfig(
        fetch_max_wait_ms=250, request_timeout_ms=1_500, connections_max_idle_ms=None
    )
    assert (config.fetch_max_wait_s, config.request_timeout_s) == (0.25, 1.5)
    assert config.connections_max_idle_s is None


def test_no_secret_is_in_the_repr() -> None:
    shown = repr(
        ConsumerConfig(group_id="g", sasl_plain_password=None, sasl_oauth_token_provider=None)
    )
    assert shown == "ConsumerConfig(group_id='g')"
