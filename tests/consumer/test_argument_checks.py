"""What aiokafka's consumer refuses, in its order and its words: the same calls of both."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable
from typing import Any, Final

import aiokafka
import aiokafka.errors
import pytest

from aiokafka_lite import errors
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.config import seconds
from aiokafka_lite.processing import CircuitBreaker, DeadLetters, Retry
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.support.cluster import KafkaHandle, unique
from tests.support.reading import consumer_of, values

# Everything is called in the same way, so the other consumer passes for ours.
Consumer = AIOKafkaConsumer
Partition = TopicPartition
NAN, INF = float("nan"), float("inf")

SASL: Final = {"security_protocol": "SASL_PLAINTEXT", "allow_plaintext_credentials": True}
ARGUMENTS: Final[list[dict[str, object]]] = [
    {"security_protocol": "TLS"},
    {"security_protocol": "SSL"},
    {"security_protocol": "SASL_SSL"},
    {"security_protocol": "TLS", "max_poll_records": 0},
    {"security_protocol": "TLS", "sasl_mechanism": "NONE"},
    {"max_poll_records": 0},
    {"max_poll_records": 1.5},
    {**SASL, "sasl_mechanism": "NONE"},
    {**SASL, "sasl_mechanism": "PLAIN"},
    {**SASL, "sasl_mechanism": "PLAIN", "sasl_plain_username": "user"},
]


def refusal(make: Callable[[], object]) -> Exception:
    with pytest.raises((ValueError, TypeError)) as caught:
        make()
    return caught.value


def assert_alike(ours: BaseException, theirs: BaseException) -> None:
    assert type(ours).__name__ == type(theirs).__name__, (ours, theirs)
    if isinstance(theirs, (ValueError, TypeError)):
        assert str(ours).startswith(str(theirs))


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
async def test_constructor_refuses_what_aiokafkas_refuses(arguments: dict[str, object]) -> None:
    known = {k: v for k, v in arguments.items() if k != "allow_plaintext_credentials"}
    assert_alike(
        refusal(lambda: Consumer(**arguments)),  # type: ignore[arg-type]
        refusal(lambda: aiokafka.AIOKafkaConsumer(**known)),
    )


async def test_a_token_provider_that_is_none_is_refused_in_aiokafkas_words() -> None:
    with pytest.raises(ValueError, match="sasl_oauth_token_provider needs to be provided impl"):
        Consumer(**SASL, sasl_mechanism="OAUTHBEARER")  # type: ignore[arg-type]


@pytest.mark.real_if_long
async def test_an_isolation_level_is_refused_at_the_start_in_aiokafkas_words(
    kafka: KafkaHandle,
) -> None:
    consumer = Consumer(bootstrap_servers=kafka.bootstrap_servers, isolation_level="dirty")
    with pytest.raises(ValueError, match=r"^Incorrect isolation level dirty"):
        await consumer.start()
    await consumer.stop()


def test_outside_a_loop_both_say_that_it_has_to_be_inside() -> None:
    with pytest.raises(RuntimeError, match="created within an async function"):
        Consumer()


# --- Subscriptions --------------------------------------------------------------------------
def subscribe(**arguments: object) -> Callable[[Consumer], object]:
    return lambda consumer: consumer.subscribe(**arguments)  # type: ignore[arg-type]


SUBSCRIPTIONS: Final[dict[str, Callable[[Consumer], object]]] = {
    "neither": subscribe(),
    "both": subscribe(topics=["t"], pattern="t"),
    "listener": subscribe(topics=["t"], listener=object()),
    "string": subscribe(topics="t"),
    "pattern": subscribe(pattern="("),
    "pause": lambda c: c.pause("t-0"),  # type: ignore[arg-type]
    "resume": lambda c: c.resume("t-0"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", SUBSCRIPTIONS)
async def test_before_the_start_both_refuse_alike(name: str) -> None:
    ours, theirs = Consumer(), aiokafka.AIOKafkaConsumer()
    call = SUBSCRIPTIONS[name]
    assert_alike(refusal(lambda: call(ours)), refusal(lambda: call(theirs)))
    await ours.stop()
    await theirs.stop()


# --- While it runs --------------------------------------------------------------------------
# Of a consumer, a partition that it has, and one that it has not.
Call = Callable[[Consumer, Partition, Partition], object]
CALLS: Final[dict[str, Call]] = {
    "seek to -1": lambda c, tp, other: c.seek(tp, -1),
    "seek to -1 of an unassigned": lambda c, tp, other: c.seek(other, -1),
    "seek to a string": lambda c, tp, other: c.seek(other, "5"),  # type: ignore[arg-type]
    "seek an unassigned": lambda c, tp, other: c.seek(other, 5),
    "pause an unassigned": lambda c, tp, other: c.pause(other),
    "resume an unassigned": lambda c, tp, other: c.resume(other),
    "pause none": lambda c, tp, other: c.pause(("t", 0)),  # type: ignore[arg-type]
    "resume none": lambda c, tp, other: c.resume(5),  # type: ignore[arg-type]
    "position of an unassigned": lambda c, tp, other: c.position(other),
    "to the beginning of an unassigned": lambda c, tp, other: c.seek_to_beginning(other),
    "to the end of an unassigned": lambda c, tp, other: c.seek_to_end(tp, other),
    "to the committed of an unassigned": lambda c, tp, other: c.seek_to_committed(other),
    "to the committed": lambda c, tp, other: c.seek_to_committed(tp),
    "to the beginning of none": lambda c, tp, other: c.seek_to_beginning(("t", 0)),  # type: ignore[arg-type]
    "to the end of none": lambda c, tp, other: c.seek_to_end(5),  # type: ignore[arg-type]
    "to the committed of none": lambda c, tp, other: c.seek_to_committed(5),  # type: ignore[arg-type]
    "highwater of an unassigned": lambda c, tp, other: c.highwater(other),
    "last stable of an unassigned": lambda c, tp, other: c.last_stable_offset(other),
    "last poll of an unassigned": lambda c, tp, other: c.last_poll_timestamp(other),
    "a time below 0": lambda c, tp, other: c.offsets_for_times({tp: -1}),
    "a get of 0": lambda c, tp, other: c.getmany(tp, max_records=0),
    "a get of a half": lambda c, tp, other: c.getmany(max_records=0.5),  # type: ignore[arg-type]
    "commit": lambda c, tp, other: c.commit({tp: 0}),
    "commit an unassigned": lambda c, tp, other: c.commit({other: 5}),
    "commit nothing": lambda c, tp, other: c.commit({}),
    "commit a list": lambda c, tp, other: c.commit([tp]),  # type: ignore[arg-type]
    "commit none": lambda c, tp, other: c.commit({5: 5}),  # type: ignore[dict-item]
    "commit a tuple's": lambda c, tp, other: c.commit({("t", 0): 5}),  # type: ignore[dict-item]
    "commit a string": lambda c, tp, other: c.commit({tp: object()}),  # type: ignore[dict-item]
    "commit a number's note": lambda c, tp, other: c.commit({tp: (5, 5)}),  # type: ignore[dict-item]
    "committed": lambda c, tp, other: c.committed(tp),
    "subscribe": lambda c, tp, other: c.subscribe(["t"]),
}


SHAPES: Final = frozenset({"commit nothing", "commit a list", "commit a string"})


async def outcome(call: Call, consumer: Consumer, kind: type[Partition], topic: str) -> object:
    """What a call raises; None if nothing."""
    try:
        result = call(consumer, kind(topic, 0), kind(topic, 1))
        if inspect.isawaitable(result):
            await asyncio.wait_for(result, 10)
    except Exception as error:  # noqa: BLE001 -- whatever it is
        return error
    return None


@pytest.mark.real_if_long
@pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="aiokafka's stop() does not come to its end there"
)
@pytest.mark.parametrize("has_group", [False, True])
async def test_while_they_run_both_refuse_alike(kafka: KafkaHandle, *, has_group: bool) -> None:
    topic = await kafka.create_topic(partitions=2)
    settings = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "group_id": unique("group") if has_group else None,
        "enable_auto_commit": False,
    }
    ours = Consumer(**settings)  # type: ignore[arg-type]
    theirs = aiokafka.AIOKafkaConsumer(**settings)
    ours.assign([TopicPartition(topic, 0)])
    theirs.assign([aiokafka.TopicPartition(topic, 0)])
    async with ours, theirs:
        refused = 0
        for name, call in CALLS.items():
            expected = await outcome(call, theirs, aiokafka.TopicPartition, topic)
            found = await outcome(call, ours, TopicPartition, topic)
            if expected is None:
                assert found is None, name
                continue
            assert isinstance(expected, Exception)
            assert isinstance(found, Exception), (name, expected)
            refused += 1
            if name in SHAPES and has_group:
                assert isinstance(found, ValueError), name
                # aiokafka's words are the offsets themselves, here the other consumer's.
                assert isinstance(expected, ValueError)
                continue
            assert_alike(found, expected)
        assert refused >= 27
        ours.unsubscribe()
        theirs.unsubscribe()
        commit: Call = lambda c, tp, other: c.commit()  # noqa: E731
        assert_alike(
            await outcome(commit, ours, TopicPartition, topic),  # type: ignore[arg-type]
            await outcome(commit, theirs, aiokafka.TopicPartition, topic),  # type: ignore[arg-type]
        )


async def handle(record: ConsumerRecord, outputs: object) -> None:
    """A handler with transactions."""


async def made(call: Callable[[AIOKafkaConsumer], object], consumer: AIOKafkaConsumer) -> None:
    result = call(consumer)
    if inspect.isawaitable(result):
        await result


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda c: c.seek(Partition("t", 0), 2**63), r"0 to 2\*\*63 - 1"),
        (lambda c: c.commit({Partition("t", 0): 2**63}), r"0 to 2\*\*63 - 1"),
        (lambda c: c.commit({Partition("t", 0): (1, "\ud800")}), "metadata of an offset must be"),
        (lambda c: c.commit({Partition("t", 0): (1, "x" * 32_768)}), "metadata .* at most"),
        (lambda c: c.offsets_for_times({Partition("t", 0): 2**63}), "cannot be later than"),
        (lambda c: c.incremental_assign([Partition("t", 2**31)]), r"0 to 2\*\*31 - 1"),
        (lambda c: c.incremental_assign([Partition("\ud800", 0)]), "UTF-8"),
        (lambda c: c.end_offsets([Partition("\ud800", 0)]), "UTF-8"),
    ],
)
async def test_what_no_request_has_room_for_is_refused_and_records_go_on(
    call: Callable[[AIOKafkaConsumer], object], reason: str
) -> None:
    async with Broker() as broker:
        broker.produce("t", "v")
        async with consumer_of(broker, group_id="g") as consumer:
            consumer.assign([Partition("t", 0)])
            with pytest.raises(ValueError, match=reason):
                await made(call, consumer)
            assert await values(consumer, 1) == [b"v"]
            assert consumer.health().verdict == "ok"


TP = Partition("t", 0)


def wrong(given: object) -> Any:
    """Return a value whose type a type checker would reject."""
    return given


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda c: c.assign(wrong("t")), "TopicPartition instances in a list, not 't'"),
        (lambda c: c.assign(wrong(5)), "TopicPartition instances in a list, not 5"),
        (lambda c: c.assign(TP), "TopicPartition instances in a list, not TopicPartition"),
        (lambda c: c.assign(wrong(["t"])), "must be TopicPartition instances, not 't'"),
        (lambda c: c.assign([wrong(("t", 0))]), r"TopicPartition instances, not \('t', 0\)"),
        (lambda c: c.assign([Partition("t", wrong("0"))]), "number must be an int, not '0'"),
        (lambda c: c.assign([Partition("t", True)]), "number must be an int, not True"),
        (lambda c: c.assign([Partition("t", wrong(1.0))]), "number must be an int, not 1.0"),
        (lambda c: c.assign([Partition(wrong(5), 0)]), "a topic's name must be a str, not 5"),
        (lambda c: c.end_offsets(wrong(None)), "TopicPartition instances in a list, not None"),
        (lambda c: c.beginning_offsets(wrong("t")), "TopicPartition instances in a list"),
        (lambda c: c.offsets_for_times(wrong([TP])), "timestamps must be a dict of TopicPart"),
        (lambda c: c.offsets_for_times({TP: wrong("x")}), r"time for .* a number .*, not 'x'"),
        (lambda c: c.offsets_for_times({TP: wrong(None)}), r"time for .* a number .*, not None"),
        (lambda c: c.offsets_for_times({TP: wrong(NAN)}), r"time for .* a number .*, not nan"),
        (lambda c: c.offsets_for_times({TP: wrong(-INF)}), r"time for .* a number .*, not -inf"),
        (lambda c: c.poll(timeout_ms=wrong("100")), "timeout_ms must be a number of mill.*'100'"),
        (lambda c: c.poll(timeout_ms=NAN), "timeout_ms must be a number of milliseconds, not nan"),
        (lambda c: c.poll(True), "timeout_ms must be a number of milliseconds, not True"),
        (lambda c: c.batch(timeout_ms=wrong("1")), "timeout_ms must be a number of mill.*'1'"),
        (lambda c: c.poll_arrow(timeout_ms=wrong([1])), r"timeout_ms must be a number.*\[1\]"),
        (lambda c: c.stop(wrong("3")), "timeout must be a number, not '3'"),
        (lambda c: c.stop(NAN), "timeout must be a number, not nan"),
        (lambda c: c.stop(leave=wrong("no")), "leave must be True or False or None, not 'no'"),
        (lambda c: c.subscribe(wrong(b"t")), "Topics should be list of strings.*not b't'"),
        (lambda c: c.subscribe(wrong(5)), "Topics should be list of strings.*not 5"),
        (lambda c: c.subscribe(pattern=wrong(5)), "pattern must be a str.*not 5"),
        (lambda c: c.subscribe(pattern=wrong(b"t")), "pattern must be a str.*not b't'"),
        (lambda c: Consumer(bootstrap_servers=wrong(9092)), "bootstrap_servers must be .*9092"),
        (lambda c: Consumer(bootstrap_servers=wrong(b"h:1")), "bootstrap_servers must be .*b'h"),
        (
            lambda c: Consumer(bootstrap_servers=wrong([9092])),
            "bootstrap_servers contains 9092: each",
        ),
        (lambda c: Consumer(bootstrap_servers=wrong(iter(["h:1"]))), "bootstrap_servers must be "),
        (lambda c: c.run(handle, transactions=wrong("3")), "transactions must be an AIOKafkaPro"),
        (lambda c: Retry(attempts=wrong("3")), "attempts must be an int or None, not '3'"),
        (lambda c: Retry(attempts=True), "attempts must be an int or None, not True"),
        (lambda c: Retry(first_delay_ms=NAN), "first_delay_ms must be a number, not nan"),
        (lambda c: CircuitBreaker(window_ms=wrong("1")), "window_ms must be a number, not '1'"),
        (lambda c: CircuitBreaker(probes=wrong(1.5)), "probes must be an int, not 1.5"),
        (lambda c: DeadLetters(wrong(5)), "topic must be a str, not 5"),
        (lambda c: DeadLetters("t", producer=wrong(5)), "producer must be an AIOKafkaProducer"),
        (lambda c: DeadLetters("t", transactional_id=wrong(5)), "transactional_id must be a str"),
        (
            lambda c: DeadLetters("t", transaction_timeout_ms=wrong("1")),
            "transaction_timeout_ms must be an int, not '1'",
        ),
        (lambda c: Consumer(loop=wrong(5)), "loop must be an event loop, not 5"),
        (lambda c: Consumer(partition_assignment_strategy=wrong(5)), "must be a list of assignor"),
        (lambda c: Consumer(partition_assignment_strategy=()), "must be a list of assignor"),
        (lambda c: Consumer(partition_assignment_strategy=wrong([5])), "must list assignor class"),
    ],
)
async def test_a_wrong_type_is_refused_at_once_by_name(
    call: Callable[[AIOKafkaConsumer], object], text: str
) -> None:
    consumer = Consumer(bootstrap_servers="localhost:1", group_id="g")
    with pytest.raises(TypeError, match=text):
        await made(call, consumer)
    await consumer.stop()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda c: c.assign([Partition("t", -1)]), r"number must be from 0 to 2\*\*31 - 1, not -1"),
        (lambda c: c.assign([Partition("", 0)]), "a topic's name must not be empty"),
        (lambda c: c.events(wrong("3")), "max_buffered must be a positive int, not '3'"),
        (lambda c: c.events(True), "max_buffered must be a positive int, not True"),
        (lambda c: Consumer(group_instance_id=""), "group_instance_id must be None or a non-empty"),
        (lambda c: c.poll(max_records=0), "max_records` must be a positive Integer"),
        (lambda c: c.poll(max_records_per_partition=0), "max_records_per_partition must be a pos"),
        (lambda c: c.getmany(max_records=0), "max_records` must be a positive Integer"),
        (lambda c: c.getmany(max_records_per_partition=0), "max_records_per_partition must be"),
        (lambda c: c.batch(max_records=0), "max_records` must be a positive Integer"),
        (lambda c: c.batch(max_records_per_partition=0), "max_records_per_partition must be a"),
        (lambda c: c.batch(max_hold_ms=-1), "max_hold_ms must be a number of at least 0"),
        (lambda c: c.batches(max_rows=0), "max_rows must be a positive int"),
        (lambda c: c.poll_arrow(max_rows=0), "max_rows must be a positive int"),
    ],
)
async def test_a_value_without_a_meaning_is_refused_at_once_by_name(
    call: Callable[[AIOKafkaConsumer], object], text: str
) -> None:
    consumer = Consumer(bootstrap_servers="localhost:1")
    with pytest.raises(ValueError, match=text):
        await made(call, consumer)
    await consumer.stop()


@pytest.mark.parametrize("timeout_ms", [0, 1.5, -1, 2**70])
def test_a_number_is_a_timeout(timeout_ms: float) -> None:
    assert seconds(timeout_ms) == timeout_ms / 1000


@pytest.mark.parametrize("timeout_ms", [INF, 10**400])
def test_a_timeout_beyond_all_floats_is_without_a_limit(timeout_ms: float) -> None:
    assert seconds(timeout_ms) == INF


async def test_stopped_comes_before_what_is_wrong_with_the_arguments() -> None:
    consumer, other = Consumer(), aiokafka.AIOKafkaConsumer()
    await consumer.stop()
    await other.stop()
    with pytest.raises(errors.ConsumerStoppedError):
        await consumer.getmany(max_records=0)
    with pytest.raises(aiokafka.errors.ConsumerStoppedError):
        await other.getmany(max_records=0)
