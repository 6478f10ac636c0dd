"""Dead letters that depend on the error: a mapping as `run`'s argument `dead_letter`, and DROP."""

from __future__ import annotations

import asyncio
import builtins
from typing import Any, Final

import pytest

from aiokafka_lite import AIOKafkaProducer
from aiokafka_lite._compat import timeout
from aiokafka_lite.consumer.processing.handling import ByError, LettersByError, dead_letter_of
from aiokafka_lite.errors import DeserializationError, IllegalStateError
from aiokafka_lite.processing import DROP, DeadLetters, DeadRecord, Outputs, Retry
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.consumer.processing.running import member, running
from tests.support.cluster import KafkaHandle, unique
from tests.support.for_each import for_each
from tests.support.waiting import until

pytestmark = pytest.mark.virtual_time_if_embedded

Record = ConsumerRecord[bytes | None, bytes | None]
PATIENCE_S: Final = 60.0
ERRORS: Final[dict[bytes | None, type[Exception]]] = {
    b"value": ValueError,
    b"unicode": UnicodeError,
    b"os": TimeoutError,
    b"key": KeyError,
    b"other": RuntimeError,
}


async def refuse(record: Record) -> None:
    if (kind := ERRORS.get(record.value)) is not None:
        raise kind("bad")


async def keep(dead: DeadRecord) -> None: ...


async def filled(kafka: KafkaHandle, values: list[bytes]) -> str:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, [(None, value) for value in values])
    return topic


async def values_of(kafka: KafkaHandle, topic: str, count: int) -> list[bytes | None]:
    reader = member(kafka, topic, unique("r"), isolation_level="read_committed")
    async with timeout(PATIENCE_S), reader:
        found = [(await reader.getone()).value for _ in range(count)]
        assert not await reader.getmany(timeout_ms=300)
        return found


def group(*errors: Exception) -> Any:
    if (kind := getattr(builtins, "ExceptionGroup", None)) is None:
        pytest.skip("from Python 3.11 on")
    return kind("several", errors)


@for_each(
    [
        (ValueError(), "value"),
        (UnicodeDecodeError("utf-8", b"", 0, 1, ""), "unicode"),
        (TimeoutError(), "os"),
        (KeyError(), "rest"),
        (asyncio.CancelledError(), None),
    ]
)
def test_the_most_specific_class_counts(error: BaseException, expected: str | None) -> None:
    kinds = {Exception: "rest", OSError: "os", UnicodeError: "unicode", ValueError: "value"}
    given = dead_letter_of(kinds)
    assert isinstance(given, LettersByError)
    found = given.of(error)
    assert (None if found is None else repr(found)) == (
        None if expected is None else f"DeadLetters({expected!r})"
    )


def test_a_group_is_of_a_class_if_all_its_errors_are() -> None:
    letters = dead_letter_of({ValueError: "value", Exception: "rest"})
    assert isinstance(letters, LettersByError)
    found = [
        letters.of(group(ValueError(), UnicodeError())),
        letters.of(group(ValueError(), KeyError())),
    ]
    assert [repr(each) for each in found] == ["DeadLetters('value')", "DeadLetters('rest')"]
    with_group = dead_letter_of({type(group(KeyError())): "group", Exception: "rest"})
    assert isinstance(with_group, LettersByError)
    assert repr(with_group.of(group(KeyError(), ValueError()))) == "DeadLetters('group')"


@for_each(
    [
        ({}, ValueError, "at least one class"),
        ({"ValueError": "t"}, TypeError, "must be exception classes"),
        ({ValueError(): "t"}, TypeError, "must be exception classes"),
        ({ValueError: None}, TypeError, r"dead_letter\[ValueError\] must be DeadLetters"),
        ({ValueError: print}, TypeError, "DROP, an async def"),
        ({ValueError: {KeyError: "t"}}, TypeError, r"dead_letter\[ValueError\]"),
        ({ValueError: ""}, ValueError, "name of a topic"),
    ]
)
def test_a_wrong_mapping_is_refused(given: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        dead_letter_of(given)


async def test_each_record_goes_where_its_error_says(
    kafka: KafkaHandle, caplog: pytest.LogCaptureFixture
) -> None:
    values = [b"value", b"good", b"unicode", b"os", b"key", b"other", b"good"]
    topic = await filled(kafka, values)
    first, second = await kafka.create_topic(), await kafka.create_topic()
    consumer = member(kafka, topic, unique("by-error"))
    others: list[bytes | None] = []

    async def remember(dead: DeadRecord) -> None:
        others.append(dead.value)

    dead_letter = {
        ValueError: DeadLetters(first),
        OSError: second,
        TimeoutError: second,
        KeyError: DROP,
        Exception: remember,
    }
    async with (
        timeout(PATIENCE_S),
        running(
            consumer, refuse, dead_letter=dead_letter, retry=Retry(attempts=2, first_delay_ms=1)
        ),
    ):
        await until(lambda: consumer.metrics()["processing_dead_total"] == 4)
        await until(lambda: consumer.metrics()["processing_dropped_total"] == 1)
        await consumer.commit()
        assert await consumer.committed(TopicPartition(topic, 0)) == len(values)
    assert sorted(await values_of(kafka, first, 2), key=str) == [b"unicode", b"value"]
    assert await values_of(kafka, second, 1) == [b"os"]
    assert others == [b"other"]
    assert "offset 4 is dropped after 2 attempts: KeyError('bad')" in caplog.text
    assert "offset 4 was written" not in caplog.text


@pytest.mark.real_if_long
async def test_an_error_of_no_class_ends_the_run(kafka: KafkaHandle) -> None:
    topic = await filled(kafka, [b"key", b"value"])
    consumer = member(kafka, topic, unique("by-error"))
    async with timeout(PATIENCE_S), consumer:
        with pytest.raises(ValueError, match="bad"):
            await consumer.run(refuse, dead_letter={KeyError: DROP}, retry=2, order="partition")
        assert await consumer.committed(TopicPartition(topic, 0)) in (None, 0, 1)


@pytest.mark.real_if_long
async def test_a_record_that_cannot_be_deserialised_has_its_class_too(kafka: KafkaHandle) -> None:
    topic = await filled(kafka, [b"1", b"x", b"2"])
    consumer = member(kafka, topic, unique("by-error"), value_deserializer=int)
    dead: list[bytes | None] = []

    async def remember(letter: DeadRecord) -> None:
        dead.append(letter.value)

    async with (
        timeout(PATIENCE_S),
        running(consumer, refuse, dead_letter={DeserializationError: remember, ValueError: DROP}),
    ):
        await until(lambda: dead == [b"x"])
    again = member(kafka, topic, unique("by-error"), value_deserializer=int)
    async with timeout(PATIENCE_S), again:
        with pytest.raises(DeserializationError):
            await again.run(refuse, dead_letter={ValueError: DROP})


@pytest.mark.real_if_long
async def test_a_failure_of_the_function_for_the_order_has_its_class_too(
    kafka: KafkaHandle,
) -> None:
    topic = await filled(kafka, [b"good", b"x", b"good"])
    dead: list[bytes | None] = []

    async def remember(letter: DeadRecord) -> None:
        dead.append(letter.value)

    def order(record: Record) -> int:
        return {b"good": 1}[record.value or b""]

    consumer = member(kafka, topic, unique("by-error"))
    async with (
        timeout(PATIENCE_S),
        running(consumer, refuse, order=order, dead_letter={KeyError: remember}),
    ):
        await until(lambda: dead == [b"x"])
    again = member(kafka, topic, unique("by-error"))
    async with timeout(PATIENCE_S), again:
        with pytest.raises(KeyError):
            await again.run(refuse, order=order, dead_letter={ValueError: remember})


async def test_those_in_transactions_share_a_producer(kafka: KafkaHandle) -> None:
    values = [b"value", b"key", b"os", b"good", b"value", b"os", b"other"]
    topic = await filled(kafka, values)
    first, second, third = [await kafka.create_topic() for _ in range(3)]
    consumer = member(kafka, topic, unique("by-error"))
    name = unique("letters")
    dead_letter: ByError = {
        ValueError: DeadLetters(first, transactional_id=name),
        OSError: DeadLetters(second, transactional_id=name),
        RuntimeError: third,
        Exception: DROP,
    }
    async with (
        timeout(PATIENCE_S),
        running(consumer, refuse, dead_letter=dead_letter, breaker=None),
    ):
        await until(lambda: consumer.metrics()["processing_dead_total"] == 5)
        await until(lambda: consumer.metrics()["processing_dropped_total"] == 1)
        await consumer.commit()
        assert await consumer.committed(TopicPartition(topic, 0)) == len(values)
    assert await values_of(kafka, first, 2) == [b"value"] * 2
    assert await values_of(kafka, second, 2) == [b"os"] * 2
    assert await values_of(kafka, third, 1) == [b"other"]
    again = member(kafka, topic, unique("by-error"))
    wrong = {**dead_letter, OSError: DeadLetters(second, transactional_id=unique("another"))}
    async with timeout(PATIENCE_S), again:
        with pytest.raises(IllegalStateError, match=f"give .*{second}.* the transactional_id"):
            await again.run(refuse, dead_letter=wrong)
        # What was open is closed: the same objects can be used again.
        task = asyncio.create_task(again.run(refuse, dead_letter=dead_letter, breaker=None))
        await until(lambda: again.metrics()["processing_dead_total"] == 5)
        await again.stop()
        await task


@pytest.mark.real_if_long
async def test_dropped_records_of_transactions_are_committed_without_outputs(
    kafka: KafkaHandle,
) -> None:
    topic = await filled(kafka, [b"key", b"good", b"value"])
    outputs_topic, letters = await kafka.create_topic(), await kafka.create_topic()
    consumer = member(kafka, topic, unique("by-error"))

    async def handle(record: Record, outputs: Outputs) -> None:
        outputs.send(outputs_topic, record.value)
        await refuse(record)

    async with (
        timeout(PATIENCE_S),
        AIOKafkaProducer(
            bootstrap_servers=kafka.bootstrap_servers, transactional_id=unique("by-error")
        ) as producer,
        running(
            consumer,
            handle,
            transactions=producer,
            dead_letter={KeyError: DROP, Exception: letters},
        ),
    ):
        await until(lambda: consumer.metrics()["processing_dropped_total"] == 1)
        await until(lambda: consumer.metrics()["processing_dead_total"] == 1)
        await until(lambda: consumer.metrics()["processing_in_outbox"] == 0)
        assert await consumer.committed(TopicPartition(topic, 0)) == 3
    assert await values_of(kafka, outputs_topic, 1) == [b"good"]
    assert await values_of(kafka, letters, 1) == [b"value"]
