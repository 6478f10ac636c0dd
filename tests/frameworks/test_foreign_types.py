"""Types of other packages where this package's are wanted, without `as_aiokafka.install()`."""

from __future__ import annotations

from collections.abc import Callable

import aiokafka
import aiokafka.structs
import confluent_kafka
import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite.structs import TopicPartition

TP = TopicPartition("t", 0)


class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]  # untyped
    """A program's own, derived from aiokafka's."""

    def on_partitions_revoked(self, revoked: object) -> None:
        """Do nothing."""

    def on_partitions_assigned(self, assigned: object) -> None:
        """Do nothing."""


async def refusal(use: Callable[[AIOKafkaConsumer], object]) -> str:
    consumer = AIOKafkaConsumer()
    try:
        with pytest.raises((TypeError, ValueError)) as refused:
            use(consumer)
    finally:
        await consumer.stop()
    return str(refused.value)


async def test_aiokafkas_listener_is_named_with_what_to_do() -> None:
    listener = Listener()
    said = await refusal(lambda consumer: consumer.subscribe(["t"], listener=listener))
    assert said == (
        "listener should be an instance of ConsumerRebalanceListener, not "
        f"{listener!r} (of {__name__}.Listener), derived from "
        "aiokafka.abc.ConsumerRebalanceListener: use aiokafka_lite.abc.ConsumerRebalanceListener, "
        "or call aiokafka_lite.as_aiokafka.install() before the first import of aiokafka"
    )


async def test_another_clients_partition_is_named() -> None:
    theirs = confluent_kafka.TopicPartition("t", 0)
    for use in (
        lambda consumer: consumer.assign([theirs]),
        lambda consumer: consumer.seek(theirs, 0),
        lambda consumer: consumer.pause(theirs),
    ):
        said = await refusal(use)
        assert f"(of {type(theirs).__module__}.TopicPartition)" in said
        assert said.endswith(": use aiokafka_lite.structs.TopicPartition")


async def test_a_value_that_is_no_offset_is_named_where_it_is_not_pythons_own() -> None:
    def seek(offset: object) -> Callable[[AIOKafkaConsumer], object]:
        return lambda consumer: consumer.seek(TP, offset)  # type: ignore[arg-type]

    theirs = aiokafka.structs.OffsetAndMetadata(1, "")
    assert (await refusal(seek(theirs))).endswith("(of aiokafka.structs.OffsetAndMetadata)")
    assert (await refusal(seek("1"))).endswith("not '1'")


async def test_a_class_in_place_of_a_listener_is_called_one() -> None:
    said = await refusal(lambda consumer: consumer.subscribe(["t"], listener=Listener))  # type: ignore[arg-type]
    assert said.endswith(f"not the class {__name__}.Listener")


async def test_named_tuples_of_aiokafka_are_taken() -> None:
    consumer = AIOKafkaConsumer()
    try:
        consumer.assign([aiokafka.TopicPartition("t", 0)])
        assert consumer.assignment() == {TP}
    finally:
        await consumer.stop()
