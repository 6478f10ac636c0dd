"""Wrong arguments of the producer's methods: an error at once that names the argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.producing.producer import AIOKafkaProducer
from aiokafka_lite.structs import ConsumerGroupMetadata, TopicPartition

TP = TopicPartition("t", 0)


def wrong(given: object) -> Any:
    """Return a value whose type a type checker would reject."""
    return given


Call = Callable[[AIOKafkaProducer], object]
CALLS: list[tuple[Call, str]] = [
    (lambda p: p.send(wrong(None), b"v"), "a topic's name must be a str, not None"),
    (lambda p: p.send(wrong(["t"]), b"v"), r"a topic's name must be a str, not \['t'\]"),
    (lambda p: p.send("t", b"v", headers=wrong(5)), r"headers must be a list of .*, not 5"),
    (
        lambda p: p.send("t", b"v", partition=wrong("3")),
        "partition must be an int or None, not '3'",
    ),
    (lambda p: p.partitions_for(wrong(["t"])), r"a topic's name must be a str, not \['t'\]"),
    (lambda p: p.send_batch(wrong(None), "t", partition=0), "batch must be a batch that create_"),
    (lambda p: p.send_batch(p.create_batch(), wrong(5), partition=0), "name must be a str, not 5"),
    (
        lambda p: p.send_offsets_to_transaction({TopicPartition("t", wrong("0")): 1}, "g"),
        "a partition number must be an int, not '0'",
    ),
    (
        lambda p: p.send_offsets_to_transaction({TopicPartition(wrong(5), 0): 1}, "g"),
        "a topic's name must be a str, not 5",
    ),
    (
        lambda p: p.send_offsets_to_transaction(wrong({("t", 0): 1}), "g"),
        "Key should be TopicPartition instance",
    ),
    (
        lambda p: p.send_offsets_to_transaction({TP: wrong((1, 2))}, "g"),
        "Metadata should be a string, not 2",
    ),
    (lambda p: p.stop(wrong("3")), "timeout must be a number or None, not '3'"),
    (lambda p: p.stop(float("nan")), "timeout must be a number or None, not nan"),
]


async def test_a_wrong_type_is_refused_by_name_and_the_producer_goes_on() -> None:
    async with (
        Broker() as broker,
        AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, transactional_id="x"
        ) as producer,
    ):
        broker.create_topic("t")
        await producer.begin_transaction()
        for call, text in CALLS:
            with pytest.raises(TypeError, match=text):
                await wrong(call(producer))
        for name in ("\ud800", "ä\ud800"):
            with pytest.raises(ValueError, match="a header's name must be text that UTF-8 can"):
                await producer.send("t", b"v", headers=[(name, b"")])
        for offsets in (wrong({}), wrong([TP]), wrong(None)):
            with pytest.raises(ValueError, match="offsets must be a dict"):
                await producer.send_offsets_to_transaction(offsets, "g")
        for offset in (-1, 2**63, True, "1", 1.5, (-1, "")):
            with pytest.raises(ValueError, match="an offset to commit must be an int from 0"):
                await producer.send_offsets_to_transaction({TP: wrong(offset)}, "g")
        await producer.send_offsets_to_transaction({TP: 1}, ConsumerGroupMetadata("g"))
        await producer.send_offsets_to_transaction({TP: 0}, "h")
        await producer.send("t", b"v")
        await producer.commit_transaction()
        assert [record.value for record in broker.records("t")] == [b"v"]
        assert broker.committed("g") == {TP: 1}
        assert broker.committed("h") == {TP: 0}


async def test_bootstrap_servers_of_a_wrong_type_are_refused_at_once() -> None:
    for servers in (9092, None, b"host:9092", ["host:9092", 9092]):
        with pytest.raises(TypeError, match=r"bootstrap_servers (must be|contains) "):
            AIOKafkaProducer(bootstrap_servers=wrong(servers))
