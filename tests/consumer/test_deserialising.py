"""Deserialisers of every kind, in every kind of get."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

import pytest

from aiokafka_lite import records
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.buffer.buffer import Limits
from aiokafka_lite.consumer.buffer.chunk import Record, serialized
from aiokafka_lite.consumer.buffer.deserialising import AnyDeserializer
from aiokafka_lite.deserializers import (
    AsyncDeserializer,
    BatchDeserializer,
    Deserializer,
    Serialized,
    Undeserializable,
)
from aiokafka_lite.errors import (
    ConsumerStoppedError,
    DeserializationError,
    DeserializerUnavailableError,
    IllegalStateError,
    KafkaTimeoutError,
)
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.support.buffers import A, B, Buffers
from tests.support.cluster import KafkaHandle
from tests.support.reading import reading


def understand(item: Serialized) -> object:
    if item.payload.startswith(b"bad"):
        raise ValueError(f"bad at {item.offset}")
    return f"{item.payload.decode()}@{item.topic}/{item.offset}"


def plain(payload: bytes | None) -> object:
    if payload is not None and payload.startswith(b"bad"):
        raise ValueError("bad")
    return payload and payload.decode()


class Knowing(Deserializer[object]):
    def deserialize(self, item: Serialized) -> object:
        return understand(item)


class Waiting(AsyncDeserializer[object]):
    """Waits a round of the loop for each record; counts how often it was called for which."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def deserialize(self, item: Serialized) -> object:
        self.asked.append(item.offset)
        await asyncio.sleep(0)
        return understand(item)


class AtOnce(BatchDeserializer[object]):
    """Takes four at once; says which are bad, or raises."""

    max_items = 4

    def __init__(self, *, raises: bool = False) -> None:
        self.asked: list[list[int]] = []
        self._raises = raises

    async def deserialize_batch(self, items: Sequence[Serialized]) -> Sequence[object]:
        self.asked.append([item.offset for item in items])
        await asyncio.sleep(0)
        made: list[object] = []
        for item in items:
            try:
                made.append(understand(item))
            except ValueError as error:
                if self._raises:
                    raise
                made.append(Undeserializable(error))
        return made


KINDS: dict[str, Callable[[], AnyDeserializer]] = {
    "plain": lambda: plain,
    "knowing": Knowing,
    "waiting": Waiting,
    "at once": AtOnce,
    "at once, raising": lambda: AtOnce(raises=True),
}


def view_of(*values: bytes | None, first: int = 0) -> bytes:
    return records.build_batch([(1, b"k", value, ()) for value in values], base_offset=first)


def numbers(count: int, bad: int | None = None) -> bytes:
    return view_of(*(b"bad" if number == bad else b"%d" % number for number in range(count)))


async def take_all(buffers: Buffers, get: str, count: int) -> list[object]:
    """Take `count` records by one kind of get; return their values."""
    values: list[object] = []
    while len(values) < count:
        if get == "one":
            values.append((await buffers.gets.one(())).value)
        else:
            limit = 3 if get == "some" else None
            for found in (await buffers.gets.many((), None, limit)).values():
                values += [record.value for record in found]
    return values


@pytest.mark.parametrize("get", ["one", "many", "some"])
@pytest.mark.parametrize("kind", KINDS)
async def test_records_come_deserialised_in_order(kind: str, get: str) -> None:
    buffers = Buffers(value_deserializer=KINDS[kind]())
    buffers.put({A: numbers(150)})
    seen = await take_all(buffers, get, 150)
    assert [str(value).partition("@")[0] for value in seen] == [f"{n}" for n in range(150)]
    assert buffers.state.finished.handed_out_offsets() == {A: OffsetAndMetadata(150, "")}
    assert await buffers.poll() == {}
    assert buffers.budget.used_bytes == 0


@pytest.mark.few_rows(14)
@pytest.mark.parametrize("get", ["one", "many"])
@pytest.mark.parametrize("bad", [0, 5, 9])
@pytest.mark.parametrize("kind", KINDS)
async def test_the_records_ahead_of_a_bad_one_come_first_then_its_error_once_a_get(
    kind: str, bad: int, get: str
) -> None:
    buffers = Buffers(A, B, value_deserializer=KINDS[kind]())
    view = numbers(10, bad)
    buffers.put({A: view})
    seen = await take_all(buffers, get, bad)
    assert [str(value).partition("@")[0] for value in seen] == [f"{n}" for n in range(bad)]
    for _ in range(2):
        with pytest.raises(DeserializationError) as raised:
            await take_all(buffers, get, 1)
        error = raised.value
        assert (error.tp, error.offset, error.next_offset, error.raw) == (A, bad, bad + 1, b"bad")
        assert isinstance(error.__cause__, ValueError)
        assert not error.is_key
        assert buffers.partition(A).position == bad
    buffers.put({B: view_of(b"other")})
    others: list[object] = []
    while not others:
        try:
            others = await take_all(buffers, get, 1)
        except DeserializationError:
            continue
    assert str(others[0]).startswith("other")
    buffers.state.seek(buffers.partition(A), bad + 1)
    buffers.put({A: view})
    left = 9 - bad
    assert len(await take_all(buffers, get, left)) == left
    buffers.put({A: view_of(b"end", first=10)})
    assert str((await take_all(buffers, get, 1))[0]).startswith("end")


@pytest.mark.parametrize("kind", KINDS)
async def test_keys_have_theirs_and_the_bad_one_is_named(kind: str) -> None:
    buffers = Buffers(key_deserializer=KINDS[kind](), value_deserializer=Knowing())
    rows = [(1, key, b"v", ()) for key in (b"a", None, b"bad", b"c")]
    buffers.put({A: records.build_batch(rows)})
    for expected in ("a@t/0", None):
        record = await buffers.gets.one(())
        found: tuple[object, object] = record.key, record.value
        assert found == (
            expected and expected[: 5 if kind != "plain" else 1],
            f"v@t/{record.offset}",
        )
    with pytest.raises(DeserializationError) as raised:
        await buffers.gets.one(())
    assert (raised.value.offset, raised.value.is_key, raised.value.raw) == (2, True, b"bad")


async def test_keys_alone_values_alone_or_both_are_deserialised() -> None:
    view = records.build_batch([(1, b"k", b"v", ()), (1, None, b"bad", ())])
    for key, value, expected in (
        (plain, plain, ("k", "v")),
        (plain, None, ("k", b"v")),
        (None, plain, (b"k", "v")),
        (Knowing(), None, ("k@t/0", b"v")),
        (Waiting(), None, ("k@t/0", b"v")),
    ):
        buffers = Buffers(key_deserializer=key, value_deserializer=value)
        buffers.put({A: view})
        record = await buffers.gets.one(())
        found: tuple[object, object] = record.key, record.value
        assert found == expected


async def test_null_is_not_given_to_deserialisers_that_know_where_it_stood() -> None:
    for kind in (Knowing(), Waiting(), AtOnce()):
        buffers = Buffers(value_deserializer=kind)
        buffers.put({A: view_of(None, b"x", None, None, b"y", None)})
        seen = await take_all(buffers, "many", 6)
        assert seen == [None, "x@t/1", None, None, "y@t/4", None]
    at_once = AtOnce()
    buffers = Buffers(value_deserializer=at_once)
    buffers.put({A: view_of(None, None, None, None, b"x")})
    assert await take_all(buffers, "many", 5) == [None, None, None, None, "x@t/4"]
    assert at_once.asked == [[4]]
    buffers = Buffers(value_deserializer=lambda payload: payload is None)
    buffers.put({A: view_of(None, b"x")})
    seen = await take_all(buffers, "many", 2)
    assert seen == [True, False]  # as in aiokafka


async def test_a_deserialiser_sees_topic_headers_and_time() -> None:
    items: list[Serialized] = []

    class Looking(Deserializer[object]):
        def deserialize(self, item: Serialized) -> object:
            items.append(item)
            return None

    buffers = Buffers(key_deserializer=Looking(), value_deserializer=Looking())
    buffers.put({A: records.build_batch([(17, b"k", b"v", (("h", b"1"),))], base_offset=3)})
    await buffers.gets.one(())
    key = Serialized(b"k", True, "t", 0, 3, 17, (("h", b"1"),))
    assert items == [key, key._replace(payload=b"v", is_key=False)]


async def test_a_batch_is_asked_for_at_once_and_halved_to_find_the_bad_one() -> None:
    deserializer = AtOnce(raises=True)
    buffers = Buffers(value_deserializer=deserializer)
    buffers.put({A: numbers(8, 5)})
    assert len(await take_all(buffers, "many", 5)) == 5
    # Beside other work a get's time may be over with its last record: the next one asks for more.
    with pytest.raises(DeserializationError):
        await take_all(buffers, "many", 1)
    assert deserializer.asked == [[0, 1, 2, 3], [4, 5, 6, 7], [4, 5], [4], [5, 6, 7], [5]]


@pytest.mark.parametrize("max_items", [-1, 0, 1])
async def test_a_batch_has_one_record_at_least(max_items: int) -> None:
    deserializer = AtOnce()
    deserializer.max_items = max_items
    buffers = Buffers(value_deserializer=deserializer)
    buffers.put({A: numbers(3)})
    assert len(await take_all(buffers, "many", 3)) == 3
    assert deserializer.asked == [[0], [1], [2]]


async def test_too_few_objects_for_a_batch_are_an_error_that_says_so() -> None:
    class Lossy(BatchDeserializer[object]):
        async def deserialize_batch(self, items: Sequence[Serialized]) -> Sequence[object]:
            return [item.payload for item in items[1:]]

    buffers = Buffers(value_deserializer=Lossy())
    buffers.put({A: numbers(3)})
    with pytest.raises(TypeError, match="2 objects for 3 items"):
        await buffers.poll()
    assert buffers.partition().position == 0


@pytest.mark.parametrize("cause", [ConnectionResetError, asyncio.TimeoutError, KafkaTimeoutError])
@pytest.mark.parametrize("kind", ["knowing", "waiting", "at once"])
async def test_what_may_pass_is_no_verdict_on_the_record(kind: str, cause: type[Exception]) -> None:
    """on_bad_record must not skip a good record because the registry is away."""
    failures = [cause("away"), cause("away")]

    def fail_at_first(payload: bytes) -> object:
        if failures:
            raise failures.pop()
        return payload.decode()

    class Now(Deserializer[object]):
        def deserialize(self, item: Serialized) -> object:
            return fail_at_first(item.payload)

    class Later(AsyncDeserializer[object]):
        async def deserialize(self, item: Serialized) -> object:
            return fail_at_first(item.payload)

    class Several(BatchDeserializer[object]):
        async def deserialize_batch(self, items: Sequence[Serialized]) -> Sequence[object]:
            return [fail_at_first(item.payload) for item in items]

    made: dict[str, AnyDeserializer] = {"knowing": Now(), "waiting": Later(), "at once": Several()}
    buffers = Buffers(value_deserializer=made[kind], on_bad_record="skip")
    buffers.put({A: numbers(3)})
    for _ in range(2):
        with pytest.raises(DeserializerUnavailableError) as raised:
            await buffers.poll()
        assert raised.value.retriable
        assert isinstance(raised.value.__cause__, cause)
        assert buffers.partition().position == 0
    values: list[object] = await take_all(buffers, "many", 3)
    assert values == ["0", "1", "2"]
    assert buffers.state.events.counts == {}


class Interrupted(BaseException):
    """As KeyboardInterrupt, which ends no notebook."""


@pytest.mark.few_rows(25)
@pytest.mark.parametrize("on_bad_record", ["raise", "skip", "raw"])
@pytest.mark.parametrize("at", [0, 4, 8])
@pytest.mark.parametrize("kind", KINDS)
async def test_after_an_interruption_no_record_is_deserialised_twice(
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    at: int,
    on_bad_record: Literal["raise", "skip", "raw"],
) -> None:
    interruptions = iter([False] * at + [True])

    def decode(payload: bytes) -> str:
        if next(interruptions, False):
            raise Interrupted
        return payload.decode()  # a str has no such method

    monkeypatch.setitem(globals(), "plain", decode)
    monkeypatch.setitem(globals(), "understand", lambda item: decode(item.payload))
    buffers = Buffers(value_deserializer=KINDS[kind](), on_bad_record=on_bad_record)
    buffers.buffer.delivery.keeps_serialized = True
    buffers.put({A: numbers(10)})
    found: list[Record] = []
    interrupted_count = 0
    for _ in range(12):
        try:
            found += (await buffers.gets.many((), 0.0, 3)).get(A, [])
        except Interrupted:
            interrupted_count += 1
            assert buffers.partition().position == len(found)
    assert interrupted_count == 1
    assert [record.value for record in found] == [f"{n}" for n in range(10)]
    assert [serialized(record)[1] for record in found] == [b"%d" % n for n in range(10)]
    assert buffers.state.events.counts == {}


# --- Cancellation, and other gets -------------------------------------------------------------
@pytest.mark.parametrize("get", ["one", "many"])
@pytest.mark.parametrize("kind", ["waiting", "at once", "at once, raising"])
async def test_a_get_cancelled_at_any_await_loses_and_doubles_nothing(kind: str, get: str) -> None:
    for steps in range(14):
        buffers = Buffers(A, B, value_deserializer=KINDS[kind]())
        buffers.put({A: numbers(6), B: numbers(2)})
        getting = asyncio.ensure_future(take_all(buffers, get, 1))
        for _ in range(steps):
            await asyncio.sleep(0)
        getting.cancel()
        try:
            seen = await getting
        except asyncio.CancelledError:
            seen = []
            assert buffers.partition(A).position == 0
        seen += await take_all(buffers, get, 8 - len(seen))
        expected = [f"{n}@t/{n}" for n in (0, 0, 1, 1, 2, 3, 4, 5)]
        assert sorted(map(str, seen)) == expected, f"cancelled after {steps} steps"
        assert await buffers.poll() == {}


async def test_what_was_deserialised_when_a_get_is_cancelled_is_not_waited_for_again() -> None:
    class Hanging(AsyncDeserializer[object]):
        async def deserialize(self, item: Serialized) -> object:
            if item.offset == 3:
                await asyncio.Event().wait()
            return item.offset

    buffers = Buffers(value_deserializer=Hanging())
    buffers.buffer.decoder.slice.length_s = 60.0  # however busy the machine is
    buffers.put({A: numbers(6)})
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(buffers.poll(), 0.01)
    assert await buffers.poll() == {A: [0, 1, 2]}
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(buffers.poll(), 0.01)
    assert buffers.partition().position == 3


async def test_a_get_that_awaits_the_application_ends_with_the_consumer() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    class Hanging(AsyncDeserializer[object]):
        async def deserialize(self, item: Serialized) -> object:
            begun.set()
            await go_on.wait()
            return item.offset

    buffers = Buffers(value_deserializer=Hanging())
    buffers.put({A: numbers(1)})
    polling = asyncio.ensure_future(buffers.poll())
    await begun.wait()
    buffers.state.gate.die(ConsumerStoppedError("stopped"))
    go_on.set()
    with pytest.raises(ConsumerStoppedError):
        await polling
    assert buffers.partition().position == 0


async def test_a_partition_that_hangs_does_not_keep_the_others_from_being_served() -> None:
    class HangingOnA(AsyncDeserializer[object]):
        async def deserialize(self, item: Serialized) -> object:
            if item.partition == A.partition:
                await asyncio.Event().wait()
            return item.offset

    buffers = Buffers(A, B, value_deserializer=HangingOnA())
    buffers.put({A: numbers(2), B: numbers(2)})
    found: list[int] = []
    for _ in range(4):
        try:
            record = await asyncio.wait_for(buffers.gets.one(()), 0.01)
        except asyncio.TimeoutError:
            continue
        assert record.partition == B.partition
        found.append(record.offset)
    assert found == [0, 1]


@pytest.mark.virtual_time
async def test_what_is_left_of_a_paused_partition_keeps_no_other_from_being_deserialised() -> None:
    buffers = Buffers(A, B, value_deserializer=Waiting())
    buffers.put({A: numbers(4)})
    await buffers.buffer.decode(Limits())  # as a read does that is cancelled then
    buffers.state.pause(buffers.partition(A))
    buffers.put({B: numbers(2)})
    assert await buffers.poll() == {B: [0, 1]}


@pytest.mark.virtual_time
async def test_what_an_earlier_read_has_left_is_returned_before_the_application_is_asked() -> None:
    class HangingOnB(AsyncDeserializer[object]):
        async def deserialize(self, item: Serialized) -> object:
            if item.partition == B.partition:
                await asyncio.Event().wait()
            return item.offset

    buffers = Buffers(A, B, value_deserializer=HangingOnB())
    buffers.put({A: numbers(2)})
    await buffers.buffer.decode(Limits())
    buffers.put({B: numbers(2)})
    assert await asyncio.wait_for(buffers.poll(), 60.0) == {A: [0, 1]}


async def test_slow_ones_are_handed_out_as_they_come() -> None:
    class Slow(AsyncDeserializer[object]):
        async def deserialize(self, item: Serialized) -> object:
            await asyncio.sleep(0.002)
            return item.offset

    buffers = Buffers(value_deserializer=Slow())
    buffers.put({A: numbers(4)})
    assert [await buffers.poll() for _ in range(4)] == [{A: [n]} for n in range(4)]


@pytest.mark.parametrize("kind", ["waiting", "at once"])
async def test_gets_of_several_tasks_ask_for_each_record_once(kind: str) -> None:
    deserializer = KINDS[kind]()
    buffers = Buffers(value_deserializer=deserializer)
    buffers.put({A: numbers(9)})
    found = await asyncio.gather(
        buffers.gets.one(()), buffers.gets.many((), None, 3), buffers.gets.one(())
    )
    first, some, last = found
    offsets = [first.offset, last.offset, *(record.offset for record in some[A])]
    while len(offsets) < 9:  # a get ends early where the deserialiser outlasts a time slice
        for records_of in (await buffers.gets.many((), 1, None)).values():
            offsets += [record.offset for record in records_of]
    assert sorted(offsets) == list(range(9))
    asked = deserializer.asked  # type: ignore[union-attr]
    flat = asked if kind == "waiting" else [offset for batch in asked for offset in batch]
    assert sorted(flat) == list(range(9))


@pytest.mark.parametrize("change", ["seek", "revoke", "pause"])
async def test_what_happens_to_the_partition_meanwhile_is_minded(change: str) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    class Held(AsyncDeserializer[object]):
        async def deserialize(self, item: Serialized) -> object:
            begun.set()
            await go_on.wait()
            return item.offset

    buffers = Buffers(A, B, value_deserializer=Held())
    buffers.put({A: numbers(3)})
    getting = asyncio.ensure_future(buffers.poll(timeout_s=None))
    await begun.wait()
    partition = buffers.partition(A)
    if change == "seek":
        buffers.state.seek(partition, 7)
        buffers.put({A: view_of(b"7", first=7)})
    elif change == "revoke":
        buffers.state.assign_from_user([B])
        buffers.put({B: view_of(b"other")})
    else:
        buffers.state.pause(partition)
        buffers.put({B: view_of(b"other")})
    go_on.set()
    expected = {"seek": {A: [7]}, "revoke": {B: [0]}, "pause": {B: [0]}}
    assert await getting == expected[change]
    if change == "pause":
        buffers.state.resume(partition)
        found: list[int] = []
        while len(found) < 3:  # in several lists, if it took its time
            found += (await buffers.poll()).get(A, [])
        assert found == [0, 1, 2]


async def test_getone_decodes_no_other_partition_before_the_first_is_deserialised() -> None:
    class AtOnce(AsyncDeserializer[object]):
        async def deserialize(self, item: Serialized) -> object:
            return item.offset

    buffers = Buffers(A, B, value_deserializer=AtOnce())
    buffers.put({A: numbers(3), B: numbers(3)})
    first = await buffers.gets.one(())
    other = buffers.partition(B if first.partition == 0 else A).first_chunk
    assert other is not None
    assert not other.raw


@pytest.mark.parametrize("end", ["returns", "is cancelled"])
async def test_what_it_takes_counts_towards_the_time_between_gets(end: str) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    class Held(AsyncDeserializer[object]):
        async def deserialize(self, item: Serialized) -> object:
            begun.set()
            await go_on.wait()
            return item.offset

    loop = asyncio.get_running_loop()
    buffers = Buffers(value_deserializer=Held())
    getting = asyncio.ensure_future(buffers.poll(timeout_s=None))
    await asyncio.sleep(0)
    assert buffers.state.reads.idle_s(loop.time() + 100) == 0  # it waits for records
    buffers.put({A: numbers(3)})
    await begun.wait()
    assert buffers.state.reads.idle_s(loop.time() + 100) >= 100
    if end == "returns":
        go_on.set()
        assert A in await getting
    else:
        getting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await getting
    assert not buffers.state.reads.is_in_get


async def test_a_deserialiser_that_never_waits_leaves_the_loop_free() -> None:
    turns = 0

    class Busy(AsyncDeserializer[object]):
        async def deserialize(self, item: Serialized) -> object:
            return sum(range(2_000))  # some 20 us

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    buffers = Buffers(value_deserializer=Busy())
    buffers.put({A: numbers(1_000)})
    counting = asyncio.ensure_future(count())
    await take_all(buffers, "many", 1_000)
    counting.cancel()
    assert turns >= 10


async def test_asking_for_records_from_within_a_deserialiser_is_refused() -> None:
    class Greedy(AsyncDeserializer[object]):
        async def deserialize(self, item: Serialized) -> object:
            return await buffers.gets.one(())

    buffers = Buffers(value_deserializer=Greedy())
    buffers.put({A: numbers(1)})
    with pytest.raises(DeserializationError) as raised:
        await buffers.gets.one(())
    assert isinstance(raised.value.__cause__, IllegalStateError)


# --- Arguments --------------------------------------------------------------------------------
async def of_bytes(payload: bytes | None) -> object:
    return payload


class SyncInAsync(AsyncDeserializer[object]):
    def deserialize(self, item: Serialized) -> Awaitable[object]:  # type: ignore[override]
        raise NotImplementedError


class AsyncInSync(Deserializer[object]):
    async def deserialize(self, item: Serialized) -> object:
        return item


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (of_bytes, "must be an instance of AsyncDeserializer"),
        (AsyncInSync(), "must be an instance of AsyncDeserializer"),
        (SyncInAsync(), "with async def"),
        (Knowing, "an instance of Knowing, not the class"),
        (
            "json",
            "a function that takes bytes, or a Deserializer, .* or BatchDeserializer, not 'json'",
        ),
    ],
)
async def test_what_would_go_wrong_silently_is_refused(wrong: AnyDeserializer, why: str) -> None:
    for argument in ("key_deserializer", "value_deserializer"):
        with pytest.raises(TypeError, match=f"{argument}.*{why}"):
            AIOKafkaConsumer(**{argument: wrong})  # type: ignore[arg-type]


async def test_rows_refuse_deserialisers_of_every_kind() -> None:
    for make in KINDS.values():
        consumer = AIOKafkaConsumer(value_deserializer=make())
        with pytest.raises(IllegalStateError, match="returns keys and values as bytes"):
            await consumer.poll_arrow()  # type: ignore[misc]  # so type checkers say, too
        await consumer.stop()


# --- The whole consumer -----------------------------------------------------------------------
@pytest.mark.real_if_long
@pytest.mark.parametrize("kind", ["knowing", "waiting", "at once"])
async def test_every_get_deserialises(kafka: KafkaHandle, kind: str) -> None:
    topic = await kafka.create_topic()
    tp = TopicPartition(topic, 0)
    values = [b"0", b"1", b"2", b"bad", *(b"%d" % number for number in range(4, 40))]
    await kafka.produce(topic, 0, [(b"k", value) for value in values])
    async with reading(kafka, topic, value_deserializer=KINDS[kind]()) as consumer:
        assert (await consumer.getone()).value == f"0@{topic}/0"
        async for record in consumer:
            assert record.value == f"1@{topic}/1"
            break
        assert [record.offset for record in (await consumer.poll())[tp]] == [2]
        for get in (consumer.getone, consumer.getmany, consumer.poll, consumer.__anext__):
            with pytest.raises(DeserializationError) as raised:
                await get()
            assert (raised.value.tp, raised.value.offset) == (tp, 3)
        assert await consumer.position(tp) == 3
        consumer.seek(tp, 4)
        seen: list[int] = []
        while len(seen) < 36:
            for found in (await consumer.getmany(timeout_ms=1_000, max_records=7)).values():
                assert len(found) <= 7
                seen += [record.offset for record in found]
        assert seen == list(range(4, 40))
