"""The arguments of a share consumer: those that live elsewhere are refused with the place."""

from __future__ import annotations

from typing import Any

import pytest

from aiokafka_lite import AIOKafkaShareConsumer
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.sharing.config import REFUSED, ShareConfig


def create(**arguments: Any) -> ShareConfig[Any, Any]:
    return ShareConfig("t", **arguments)


def test_every_argument_of_a_consumer_is_taken_or_refused_with_a_reason() -> None:
    of_consumers = set(ConsumerConfig.__init__.__kwdefaults__ or {})
    taken = set(ShareConfig.__init__.__kwdefaults__ or {}) | {"group_id"}
    # Kerberos is not supported anywhere.
    kerberos = {name for name in of_consumers if "kerberos" in name}
    assert of_consumers - taken - kerberos == set(REFUSED)
    assert not taken & set(REFUSED)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("auto_offset_reset", "share.auto.offset.reset"),
        ("isolation_level", "share.isolation.level"),
        ("session_timeout_ms", "share.session.timeout.ms"),
        ("heartbeat_interval_ms", "share.heartbeat.interval.ms"),
        ("max_poll_interval_ms", "max_lease_ms"),
        ("enable_auto_commit", "ack_mode"),
        ("group_instance_id", "no static members"),
        ("colour", "none, either"),
    ],
)
async def test_an_argument_without_meaning_says_where_its_effect_is_set(
    name: str, place: str
) -> None:
    with pytest.raises(TypeError, match=place) as raised:
        AIOKafkaShareConsumer("t", group_id="g", **{name: 1})  # type: ignore[arg-type]
    assert f"no argument {name!r}" in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"group_id": ""}, TypeError),
        ({"group_id": None}, TypeError),
        ({"group_id": "g", "ack_mode": "maybe"}, ValueError),
        ({"group_id": "g", "max_lease_ms": 0}, ValueError),
        ({"group_id": "g", "max_lease_ms": "1"}, TypeError),
        ({"group_id": "g", "max_poll_records": None}, TypeError),
        ({"group_id": "g", "max_poll_records": 0}, ValueError),
        ({"group_id": "g", "security_protocol": "TLS"}, ValueError),
    ],
)
def test_invalid_arguments_are_refused(
    arguments: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        create(**arguments)


def test_a_group_is_required() -> None:
    with pytest.raises(TypeError, match="group_id"):
        create()


def test_defaults_that_a_share_consumer_has_no_argument_for_are_those_of_consumers() -> None:
    config = create(group_id="g", fetch_max_wait_ms=250)
    assert config.fetch_max_wait_s == 0.25
    assert config.session_timeout_s == 45.0
    assert config.max_poll_records == 500
    assert config.max_lease_ms == 300_000
