"""`on_bad_record`: what becomes of records, and of batches, that cannot be delivered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from aiokafka_lite import records
from aiokafka_lite.bad_records import BadRecord, OnBadRecord, RawRecord, Verdict
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.buffer.deserialising import AnyDeserializer
from aiokafka_lite.deserializers import AsyncDeserializer, Serialized
from aiokafka_lite.errors import (
    CorruptRecordException,
    DeserializationError,
    KafkaError,
    UnsupportedCodecError,
)
from aiokafka_lite.events import ConsumerEvent, RecordSkipped
from aiokafka_lite.structs import ConsumerRecord, OffsetAndMetadata, TopicPartition
from tests.support.buffers import A, B, Buffers, batch, with_unknown_codec
from tests.support.cluster import KafkaHandle, unique
from tests.support.crafted import message
from tests.support.reading import reading


def number(value: bytes | None) -> object:
    return int(value or b"")


class AsyncNumber(AsyncDeserializer[object]):
    async def deserialize(self, item: Serialized) -> object:
        await asyncio.sleep(0)
        return int(item.payload)


DESERIALIZERS: dict[str, AnyDeserializer] = {"plain": number, "awaited": AsyncNumber()}


def view_of(*values: bytes) -> bytes:
    return records.build_batch([(1, b"key", value, (("h", b"1"),)) for value in values])


def skips(buffers: Buffers) -> int:
    return buffers.state.events.counts.get("record_skipped", 0)


async def values_of(buffers: Buffers, max_records: int | None = None) -> list[object]:
    found = await buffers.gets.many((), 0, max_records)
    return [record.value for got in found.values() for record in got]


def with_wrong_crc(view: bytes) -> bytes:
    content = bytearray(view)
    content[-1] ^= 0xFF
    return bytes(content)


def with_batch_spoilt(offset: int) -> Callable[[TopicPartition, bytes], bytes]:
    """Return what breaks the checksum of the batch that begins at an offset, wherever it comes."""

    def spoil(tp: TopicPartition, view: bytes) -> bytes:
        content, pos = bytearray(view), 0
        while pos + 12 < len(view):
            size = 12 + int.from_bytes(view[pos + 8 : pos + 12], "big")
            if int.from_bytes(view[pos : pos + 8], "big") == offset:
                content[pos + 20] ^= 0xFF
            pos += size
        return bytes(content)

    return spoil


# --- Records that a deserialiser refuses --------------------------------------------------------
@pytest.mark.parametrize("deserializer", DESERIALIZERS)
async def test_skip_leaves_bad_records_out_and_tells(deserializer: str) -> None:
    buffers = Buffers(value_deserializer=DESERIALIZERS[deserializer], on_bad_record="skip")
    buffers.buffer.decoder.slice.length_s = 60.0  # however busy the machine is
    told: list[ConsumerEvent] = []
    buffers.state.events.publish = told.append  # type: ignore[method-assign,assignment]
    buffers.put({A: view_of(b"x", b"1", b"y", b"z", b"4", b"w")})
    assert await values_of(buffers) == [1, 4]
    assert buffers.partition().position == 6
    assert buffers.state.finished.handed_out_offsets() == {A: OffsetAndMetadata(6, "")}
    assert buffers.state.finished.processed_offsets() == {A: OffsetAndMetadata(1, "")}
    assert await values_of(buffers) == []
    assert buffers.state.finished.processed_offsets() == {A: OffsetAndMetadata(6, "")}
    assert buffers.budget.used_bytes == 0
    places = [
        (event.tp, event.offset, event.next_offset)
        for event in told
        if isinstance(event, RecordSkipped) and isinstance(event.error, DeserializationError)
    ]
    assert places == [(A, offset, offset + 1) for offset in (0, 2, 3, 5)]


@pytest.mark.parametrize("deserializer", DESERIALIZERS)
async def test_bad_records_do_not_cut_lists_short(deserializer: str) -> None:
    buffers = Buffers(value_deserializer=DESERIALIZERS[deserializer], on_bad_record="skip")
    buffers.buffer.decoder.slice.length_s = 60.0  # however busy the machine is
    # On a busy machine a slice is soon over, and what is there is handed out.
    buffers.buffer.decoder.slice.length_s = 60.0
    buffers.put({A: view_of(*(b"bad" if n % 3 else b"%d" % n for n in range(30)))})
    assert await values_of(buffers) == list(range(0, 30, 3))
    assert skips(buffers) == 20


@pytest.mark.parametrize("get", ["one", "many"])
@pytest.mark.parametrize("deserializer", DESERIALIZERS)
async def test_when_all_are_skipped_a_get_waits_for_what_comes(deserializer: str, get: str) -> None:
    buffers = Buffers(value_deserializer=DESERIALIZERS[deserializer], on_bad_record="skip")
    buffers.put({A: view_of(*[b"bad"] * 300)})
    if get == "one":
        getting: asyncio.Future[object] = asyncio.ensure_future(buffers.gets.one(()))
    else:
        getting = asyncio.ensure_future(buffers.poll(None))
    for _ in range(2_000):
        if buffers.partition().position == 300:
            break
        await asyncio.sleep(0)
    assert buffers.partition().position == 300
    assert not getting.done()
    buffers.put({A: records.build_batch([(1, None, b"7", ())], base_offset=300)})
    found = await getting
    assert found == {A: [300]} if get == "many" else getattr(found, "value", None) == 7
    assert skips(buffers) == 300


@pytest.mark.parametrize("deserializer", DESERIALIZERS)
async def test_raw_records_are_bytes_and_say_why(deserializer: str) -> None:
    buffers = Buffers(value_deserializer=DESERIALIZERS[deserializer], on_bad_record="raw")
    buffers.buffer.decoder.slice.length_s = 60.0  # however busy the machine is
    buffers.put({A: view_of(b"0", b"bad", b"2")})
    good, raw, last = (await buffers.gets.many((), 0, None))[A]
    assert [type(record) for record in (good, raw, last)] == [
        ConsumerRecord, RawRecord, ConsumerRecord,
    ]  # fmt: skip
    assert isinstance(raw, RawRecord)
    assert (raw.key, raw.value, raw.headers) == (b"key", b"bad", (("h", b"1"),))
    assert (raw.topic, raw.partition, raw.offset, raw.timestamp) == ("t", 0, 1, 1)
    assert (raw.serialized_key_size, raw.serialized_value_size) == (3, 3)
    assert isinstance(raw.error, DeserializationError)
    assert isinstance(raw.error.__cause__, ValueError)
    assert raw.error.__traceback__ is None
    assert skips(buffers) == 0
    assert buffers.partition().position == 3


@pytest.mark.parametrize("get", ["one", "many"])
@pytest.mark.parametrize("deserializer", DESERIALIZERS)
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_callable_decides_on_each(is_async: bool, deserializer: str, get: str) -> None:
    asked: list[BadRecord] = []

    def decide(bad: BadRecord) -> Verdict:
        asked.append(bad)
        if bad.value == b"skip":
            return "skip"
        if bad.value == b"raw":
            return "raw"
        if bad.value == b"raise":
            return "raise"
        mended: ConsumerRecord[object, object] = ConsumerRecord(
            *bad.tp, bad.offset, 1, 0, bad.key, -1, None, -1, -1, bad.headers
        )
        return mended

    async def decide_later(bad: BadRecord) -> Verdict:
        await asyncio.sleep(0)
        return decide(bad)

    buffers = Buffers(
        value_deserializer=DESERIALIZERS[deserializer],
        on_bad_record=decide_later if is_async else decide,
    )
    buffers.put({A: view_of(b"0", b"skip", b"2", b"raw", b"mend", b"5", b"raise", b"7")})
    seen: list[object] = []
    while len(seen) < 5:
        if get == "one":
            seen.append((await buffers.gets.one(())).value)
        else:
            seen += await values_of(buffers)
    assert seen == [0, 2, b"raw", -1, 5]
    for _ in range(2):
        with pytest.raises(DeserializationError) as raised:
            await buffers.gets.one(())
        assert raised.value.offset == 6
        assert buffers.partition().position == 6
    assert [bad.offset for bad in asked] == [1, 3, 4, 6, 6]
    assert asked[0] == BadRecord(
        A, 1, 2, asked[0].error, timestamp=1, headers=(("h", b"1"),), key=b"key", value=b"skip"
    )
    assert not asked[0].is_batch
    assert skips(buffers) == 1


@pytest.mark.parametrize("deserializer", DESERIALIZERS)
@pytest.mark.parametrize("magic", [0, 1])
async def test_a_message_of_an_old_format_is_a_record_and_no_batch(
    deserializer: str, magic: int
) -> None:
    """Those of magic 0 have no timestamp."""
    asked: list[BadRecord] = []

    def decide(bad: BadRecord) -> Verdict:
        asked.append(bad)
        return "raw"

    buffers = Buffers(value_deserializer=DESERIALIZERS[deserializer], on_bad_record=decide)
    values = (b"0", b"bad", b"2", b"worse", b"4")
    buffers.put({A: b"".join(message(n, v, magic=magic) for n, v in enumerate(values))})
    seen: list[object] = []
    while len(seen) < 5:
        seen += await values_of(buffers)
    assert seen == [0, b"bad", 2, b"worse", 4]
    assert [(bad.offset, bad.value, bad.is_batch) for bad in asked] == [
        (1, b"bad", False), (3, b"worse", False)
    ]  # fmt: skip


@pytest.mark.virtual_time  # a get also ends where its time slice of half a millisecond does
@pytest.mark.parametrize("deserializer", DESERIALIZERS)
async def test_a_callable_is_asked_when_all_ahead_was_handed_out_and_cancelling_asks_again(
    deserializer: str,
) -> None:
    asked: list[int] = []
    go_on = asyncio.Event()

    async def write_to_dead_letters(bad: BadRecord) -> Verdict:
        asked.append(bad.offset)
        assert buffers.partition().position == bad.offset
        await go_on.wait()
        return "skip"

    buffers = Buffers(
        value_deserializer=DESERIALIZERS[deserializer], on_bad_record=write_to_dead_letters
    )
    buffers.put({A: view_of(b"0", b"1", b"bad", b"3")})
    assert await values_of(buffers) == [0, 1]
    for times in (1, 2):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(buffers.poll(None), 0.01)
        assert asked == [2] * times
        assert buffers.partition().position == 2
        assert buffers.state.finished.handed_out_offsets() == {A: OffsetAndMetadata(2, "")}
    go_on.set()
    assert await values_of(buffers) == [3]
    assert asked == [2, 2, 2]


async def test_what_a_callable_raises_is_raised_by_the_get_and_others_go_on() -> None:
    failures = 2

    async def write_to_dead_letters(bad: BadRecord) -> Verdict:
        nonlocal failures
        if failures:
            failures -= 1
            raise ConnectionError("no broker for dead letters")
        return "skip"

    buffers = Buffers(A, B, value_deserializer=number, on_bad_record=write_to_dead_letters)
    buffers.put({A: view_of(b"bad", b"1"), B: view_of(b"0", b"1")})
    for expected in ([], [0, 1], [], [1]):
        if expected:
            assert await values_of(buffers) == expected
            continue
        with pytest.raises(ConnectionError, match="no broker for dead letters"):
            await buffers.poll()
        assert buffers.partition(A).position == 0
    assert buffers.partition(A).position == 2


WRONG: dict[str, tuple[object, type[Exception], str]] = {
    "nothing": (
        None,
        TypeError,
        "returned None: it must return 'raise', 'skip', 'raw', or a record",
    ),
    "a word": ("ignore", TypeError, "returned 'ignore'"),
    "another place": (
        ConsumerRecord("t", 0, 5, 1, 0, None, None, None, -1, -1, ()),
        ValueError,
        "offset 0 of .* offset 5 of .*keep the partition",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_verdict_that_is_none_is_an_error_and_loses_nothing(wrong: str) -> None:
    verdict, error_class, message = WRONG[wrong]
    answers: list[object] = [verdict, "skip"]
    buffers = Buffers(
        value_deserializer=number,
        on_bad_record=lambda bad: answers.pop(0),  # type: ignore[arg-type,return-value]
    )
    buffers.put({A: view_of(b"bad", b"1")})
    with pytest.raises(error_class, match=message):
        await buffers.poll()
    assert await values_of(buffers) == [1]


async def test_a_seek_while_a_callable_decides_makes_its_verdict_void() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def decide(bad: BadRecord) -> Verdict:
        begun.set()
        await go_on.wait()
        return "skip"

    buffers = Buffers(value_deserializer=number, on_bad_record=decide)
    buffers.put({A: view_of(b"bad", b"1")})
    getting = asyncio.ensure_future(buffers.poll(None))
    await begun.wait()
    buffers.state.seek(buffers.partition(), 9)
    go_on.set()
    buffers.put({A: records.build_batch([(1, None, b"9", ())], base_offset=9)})
    assert await getting == {A: [9]}
    assert skips(buffers) == 0


async def test_a_verdict_that_comes_after_the_stop_is_void() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def decide(bad: BadRecord) -> Verdict:
        begun.set()
        await go_on.wait()
        return "skip"

    buffers = Buffers(value_deserializer=number, on_bad_record=decide)
    buffers.put({A: view_of(b"bad", b"1")})
    getting = asyncio.ensure_future(buffers.poll())
    await begun.wait()
    buffers.buffer.clear()  # as the stop does
    go_on.set()
    assert await getting == {}
    assert skips(buffers) == 0


async def test_two_gets_ask_once() -> None:
    asked: list[int] = []

    async def decide(bad: BadRecord) -> Verdict:
        asked.append(bad.offset)
        await asyncio.sleep(0)
        return "skip"

    buffers = Buffers(value_deserializer=number, on_bad_record=decide)
    buffers.put({A: view_of(b"bad", b"1", b"2")})
    first, second = await asyncio.gather(buffers.gets.one(()), buffers.gets.one(()))
    assert sorted([first.offset, second.offset]) == [1, 2]
    assert asked == [0]


async def test_many_skips_are_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    buffers = Buffers(value_deserializer=number, on_bad_record="skip")
    buffers.put({A: view_of(*[b"bad"] * 200)})
    with caplog.at_level(logging.INFO):
        await buffers.poll()
    lines = [line for line in caplog.messages if "skipped" in line]
    assert len(lines) == 1
    assert "record skipped: t/0 at offset 0" in lines[0]
    assert skips(buffers) == 200


# --- Batches ------------------------------------------------------------------------------------
BAD_BATCHES: dict[str, tuple[Callable[[bytes], bytes], type[KafkaError]]] = {
    "corrupt": (with_wrong_crc, CorruptRecordException),
    "unknown codec": (with_unknown_codec, UnsupportedCodecError),
}


class Log:
    """A partition's log with a bad batch in the middle, read as a broker serves fetches."""

    def __init__(self, buffers: Buffers, *batches: bytes) -> None:
        self._buffers = buffers
        self._batches = batches

    def serve(self) -> int:
        """Answer a fetch from where it would be asked for; return from which offset."""
        offset = self._buffers.partition().fetched
        ends = [records.end_offset(memoryview(view)) for view in self._batches]
        first = next(
            (n for n, end in enumerate(ends) if end is None or end > offset), len(self._batches)
        )
        view = b"".join(self._batches[first:])
        if view and not self._buffers.partition().is_full:
            self._buffers.put({A: view})
        return offset


@pytest.mark.parametrize("kind", ["corrupt", "unknown codec"])
@pytest.mark.parametrize("how", ["word", "callable", "async callable"])
async def test_a_bad_batch_is_skipped_as_a_whole(kind: str, how: str) -> None:
    spoil, error_class = BAD_BATCHES[kind]
    asked: list[BadRecord] = []

    def skip(bad: BadRecord) -> Verdict:
        asked.append(bad)
        return "skip"

    async def skip_later(bad: BadRecord) -> Verdict:
        await asyncio.sleep(0)
        return skip(bad)

    ways: dict[str, OnBadRecord] = {"word": "skip", "callable": skip, "async callable": skip_later}
    buffers = Buffers(on_bad_record=ways[how])
    told: list[ConsumerEvent] = []
    buffers.state.events.publish = told.append  # type: ignore[method-assign,assignment]
    log = Log(buffers, batch(0, 3), spoil(batch(3, 4)), batch(7, 2))
    seen: list[int] = []
    for _ in range(6):
        log.serve()
        seen += (await buffers.poll()).get(A, [])
    assert seen == [0, 1, 2, 7, 8]
    [event] = told
    assert isinstance(event, RecordSkipped)
    assert (event.offset, event.next_offset, type(event.error)) == (3, 7, error_class)
    assert "batch skipped: t/0 at offsets 3 to 6" in str(event)
    if how != "word":
        [bad] = asked
        assert (bad.tp, bad.offset, bad.next_offset, bad.is_batch) == (A, 3, 7, True)
        assert (bad.timestamp, bad.key, bad.value, bad.headers) == (None, None, None, ())
    assert buffers.partition().position == 9


@pytest.mark.parametrize("kind", ["corrupt", "unknown codec"])
async def test_a_record_may_be_delivered_instead_of_a_batch(kind: str) -> None:
    def replace(bad: BadRecord) -> Verdict:
        place = bad.next_offset - 1
        return ConsumerRecord(*bad.tp, place, 1, 0, None, b"in place", None, -1, 8, ())

    spoil, _ = BAD_BATCHES[kind]
    buffers = Buffers(on_bad_record=replace)
    log = Log(buffers, batch(0, 3), spoil(batch(3, 4)), batch(7, 2))
    seen: list[int] = []
    for _ in range(6):
        log.serve()
        seen += (await buffers.poll()).get(A, [])
    assert seen == [0, 1, 2, 6, 7, 8]
    assert skips(buffers) == 0


async def test_a_batch_whose_end_is_unknown_is_raised_and_not_skipped() -> None:
    buffers = Buffers(on_bad_record="skip")
    for expected in (False, True, True):
        error = CorruptRecordException("the header is broken").at(A, 0)
        buffers.buffer.put_error(buffers.partition(), error)
        if expected:
            with pytest.raises(CorruptRecordException):
                await buffers.poll()
        else:
            assert await buffers.poll() == {}  # fetched once more before it counts
    assert buffers.partition().position == 0
    assert skips(buffers) == 0


async def test_a_batch_has_no_raw_records() -> None:
    buffers = Buffers(on_bad_record="raw")
    buffers.put({A: with_unknown_codec(batch(0, 2))})
    with pytest.raises(UnsupportedCodecError):
        await buffers.poll()
    buffers = Buffers(on_bad_record=lambda bad: "raw")
    buffers.put({A: with_unknown_codec(batch(0, 2))})
    with pytest.raises(TypeError, match="return 'skip' or 'raise'"):
        await buffers.poll()


async def test_a_callable_may_have_a_bad_batch_raised_and_is_asked_by_each_get() -> None:
    asked: list[int] = []

    def decide(bad: BadRecord) -> Verdict:
        asked.append(bad.offset)
        return "raise"

    buffers = Buffers(on_bad_record=decide)
    buffers.put({A: batch(0, 2) + with_unknown_codec(batch(2, 2))})
    assert await buffers.poll() == {A: [0, 1]}
    for times in (1, 2, 3):
        with pytest.raises(UnsupportedCodecError) as raised:
            await buffers.poll()
        assert (raised.value.offset, raised.value.next_offset) == (2, 4)
        assert asked == [2] * times


async def test_a_batch_that_is_good_when_fetched_again_is_not_skipped() -> None:
    asked: list[BadRecord] = []

    def decide(bad: BadRecord) -> Verdict:
        asked.append(bad)
        return "skip"

    for on_bad_record in ("skip", decide):
        buffers = Buffers(on_bad_record=on_bad_record)
        buffers.put({A: with_wrong_crc(batch(0, 3))})
        assert await buffers.poll() == {}
        buffers.put({A: batch(0, 3)})
        assert await buffers.poll() == {A: [0, 1, 2]}
        assert skips(buffers) == 0
    assert asked == []


# --- Arguments ----------------------------------------------------------------------------------
async def test_what_on_bad_record_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="raise, skip, raw, or a callable, not 'ignore'"):
        AIOKafkaConsumer(on_bad_record="ignore")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a str or a callable, not None"):
        AIOKafkaConsumer(on_bad_record=None)  # type: ignore[arg-type]


# --- The whole consumer -------------------------------------------------------------------------
@pytest.mark.real_if_long
async def test_every_get_goes_on_behind_bad_records(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    tp = TopicPartition(topic, 0)
    values = [b"x" if n % 5 == 0 else b"%d" % n for n in range(40)]
    await kafka.produce(topic, 0, [(b"k", value) for value in values])
    good = [n for n in range(40) if n % 5]
    group = unique("group")
    async with reading(
        kafka, topic, group_id=group, value_deserializer=number, on_bad_record="skip"
    ) as consumer:
        seen = [(await consumer.getone()).value, (await consumer.getone()).value]
        async for record in consumer:
            seen.append(record.value)
            if len(seen) == 6:
                break
        seen += [r.value for r in (await consumer.getmany(timeout_ms=9_000, max_records=5))[tp]]
        while len(seen) < len(good):
            for found in (await consumer.poll(timeout_ms=9_000)).values():
                seen += [record.value for record in found]
        assert seen == good
    async with reading(kafka, topic, group_id=group) as consumer:
        assert await consumer.committed(tp) == 40


async def test_dead_letters_are_written_before_the_position_passes(kafka: KafkaHandle) -> None:
    topic, dead_letters = await kafka.create_topic(), await kafka.create_topic()
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, [(b"k", b"0"), (b"k", b"bad"), (b"k", b"2")])
    committed: list[int | None] = []

    async def to_dead_letters(bad: BadRecord) -> Verdict:
        committed.append(await consumer.position(tp))
        await kafka.produce(dead_letters, 0, [(bad.key, bad.value)])
        return "skip"

    async with reading(
        kafka, topic, value_deserializer=number, on_bad_record=to_dead_letters
    ) as consumer:
        assert [(await consumer.getone()).value for _ in range(2)] == [0, 2]
    assert committed == [1]
    async with reading(kafka, dead_letters) as consumer:
        assert (await consumer.getone()).value == b"bad"


@pytest.mark.parametrize("way", ["poll", "getone", "async for", "poll_arrow"])
async def test_a_corrupt_batch_of_a_broker_is_skipped_by_every_get(way: str) -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        for first in (0, 3, 6):
            for n in range(first, first + 3):
                broker.produce("t", b"%d" % n)
        # Every record is a batch of its own; that at offset 4 is broken for good.
        broker.on("Fetch").rewrite_batch(with_batch_spoilt(4), times=None)
        async with AIOKafkaConsumer(
            "t",
            bootstrap_servers=broker.bootstrap_servers,
            auto_offset_reset="earliest",
            on_bad_record="skip",
            fetch_max_wait_ms=20,
        ) as consumer:
            seen: list[int] = []
            while len(seen) < 8:
                if way == "getone":
                    seen.append((await consumer.getone()).offset)
                elif way == "poll":
                    for found in (await consumer.poll()).values():
                        seen += [record.offset for record in found]
                elif way == "poll_arrow":
                    seen += (await consumer.poll_arrow()).column("offset").to_pylist()
                else:
                    async for record in consumer:
                        seen.append(record.offset)
                        break
            assert seen == [0, 1, 2, 3, 5, 6, 7, 8]
