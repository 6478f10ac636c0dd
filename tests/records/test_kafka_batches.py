"""Record sets written by Kafka's own code; tests/records/fixtures/README.md says how."""

from __future__ import annotations

import itertools

import pytest

from aiokafka_lite import records
from aiokafka_lite.records.batch import BatchHeader, read_header, wrapped_value
from aiokafka_lite.records.transactions import end_marker
from tests.records.recorded import FIXTURES
from tests.support.crafted import (
    FIRST_TIMESTAMP,
    Record,
    aborted,
    message,
    offsets,
    record_set,
    take_all,
)
from tests.support.for_each import for_each

COUNT = 20

MAGIC_2 = ["none", "gzip", "snappy", "lz4", "zstd"]
LEGACY = ["none", "gzip", "snappy", "lz4"]

pytestmark = pytest.mark.usefixtures("decoder")


def fixture(name: str) -> bytes:
    return (FIXTURES / f"{name}.bin").read_bytes()


def key(number: int) -> bytes | None:
    return None if number % 4 == 3 else b"key-%d" % number


def value(number: int) -> bytes | None:
    return None if number % 5 == 4 else b"value-%d " % number * number


def headers(number: int) -> tuple[tuple[str, bytes | None], ...]:
    if number % 2:
        return ()
    return (("trace-é", b"id-%d" % number), ("nothing", None))


def assert_is_what_was_produced(taken: list[Record], first: int = 0) -> None:
    for number, record in enumerate(taken, first):
        assert (record.topic, record.partition) == ("topic", 7)
        assert record.key == key(number)
        assert record.value == value(number)
        assert record.serialized_key_size == (-1 if record.key is None else len(record.key))
        assert record.serialized_value_size == (-1 if record.value is None else len(record.value))


@for_each(itertools.product(MAGIC_2, [1, 7, COUNT, 1000]))
def test_batch_of_kafkas_producer_is_read(codec: str, at_a_time: int) -> None:
    kafka = record_set(fixture(f"magic2-{codec}"))
    taken = take_all(kafka, at_a_time)
    assert_is_what_was_produced(taken)
    assert offsets(taken) == list(range(COUNT))
    assert [record.timestamp for record in taken] == [FIRST_TIMESTAMP + 7 * n for n in range(COUNT)]
    assert {(record.timestamp_type, record.checksum) for record in taken} == {(0, None)}
    assert [record.headers for record in taken] == [headers(n) for n in range(COUNT)]
    assert (kafka.next_offset, kafka.epochs, kafka.is_exhausted) == (COUNT, [(0, 0)], True)


def test_append_time_of_the_broker_is_every_records_timestamp() -> None:
    taken = take_all(record_set(fixture("magic2-appendtime")))
    assert_is_what_was_produced(taken)
    assert {record.timestamp_type for record in taken} == {1}
    assert len({record.timestamp for record in taken}) == 1
    assert taken[0].timestamp > FIRST_TIMESTAMP + 7 * COUNT


@for_each(LEGACY)
def test_messages_of_magic_0_are_read(codec: str) -> None:
    kafka = record_set(fixture(f"magic0-{codec}"))
    taken = take_all(kafka, 6)
    assert_is_what_was_produced(taken)
    assert offsets(taken) == list(range(100, 100 + COUNT))
    times: set[object] = {(record.timestamp, record.timestamp_type) for record in taken}
    assert times == {(None, None)}
    assert all(isinstance(record.checksum, int) for record in taken)
    assert kafka.next_offset == 100 + COUNT


@for_each(LEGACY)
def test_messages_of_magic_1_are_read(codec: str) -> None:
    taken = take_all(record_set(fixture(f"magic1-{codec}")), 6)
    assert_is_what_was_produced(taken)
    assert offsets(taken) == list(range(100, 100 + COUNT))
    assert [record.timestamp for record in taken] == [FIRST_TIMESTAMP + 7 * n for n in range(COUNT)]
    assert {record.timestamp_type for record in taken} == {0}
    assert {record.headers for record in taken} == {()}


def test_append_time_of_a_wrapper_is_every_messages_timestamp() -> None:
    taken = take_all(record_set(fixture("magic1-gzip-appendtime")))
    assert_is_what_was_produced(taken)
    assert {(record.timestamp, record.timestamp_type) for record in taken} == {
        (FIRST_TIMESTAMP + 1_000_000, 1)
    }


def test_lz4_frame_of_an_old_producer_has_the_wrong_checksum_this_test_is_about() -> None:
    """KAFKA-3160: were it right, the test above would not show that a wrong one is read."""
    import cramjam

    (_, wrapper), *_ = records.iter_batches(memoryview(fixture("magic0-lz4")))
    with pytest.raises(cramjam.DecompressionError, match="header"):
        cramjam.lz4.decompress(bytes(wrapper[26:]))


@for_each(["magic0-gzip", "magic1-lz4", "magic1-none", "magic2-zstd"])
def test_records_below_the_fetch_offset_are_passed_over(name: str) -> None:
    first = 0 if name.startswith("magic2") else 100
    taken = take_all(record_set(fixture(name), fetch_offset=first + 13))
    assert offsets(taken) == list(range(first + 13, first + COUNT))
    assert_is_what_was_produced(taken, 13)


def test_reader_of_committed_records_does_not_see_the_aborted_transaction() -> None:
    content = fixture("magic2-transactions")
    first_aborted = 6  # 0 to 4, a marker, 6 to 12, a marker, 14 to 21, a marker
    (header, _), *_ = records.iter_batches(memoryview(content))
    kafka = record_set(content, aborted=[(header.producer_id, first_aborted)])
    taken = take_all(kafka, 3)
    assert offsets(taken) == [*range(5), *range(14, 22)]
    assert_is_what_was_produced(taken[:5])
    assert_is_what_was_produced(taken[5:], 12)
    assert kafka.next_offset == 23


def test_reader_of_uncommitted_records_sees_all_but_the_markers() -> None:
    kafka = record_set(fixture("magic2-transactions"))
    taken = take_all(kafka)
    assert offsets(taken) == [*range(5), *range(6, 13), *range(14, 22)]
    assert_is_what_was_produced(taken)
    assert kafka.next_offset == 23


def test_batches_of_different_ages_follow_each_other() -> None:
    content = fixture("magic1-gzip") + patched("magic2-lz4", 120)
    taken = take_all(record_set(content))
    assert offsets(taken) == list(range(100, 140))


def patched(name: str, base_offset: int) -> bytes:
    content = bytearray(fixture(name))
    records.patch_batch(content, base_offset=base_offset, leader_epoch=3)
    return bytes(content)


@pytest.mark.parametrize("magic", [0, 1])
def test_what_a_message_lacks_of_a_batchs_header_is_minus_one(magic: int) -> None:
    content = message(5, b"v", magic=magic, timestamp=17)
    timestamp = 17 if magic else -1
    assert read_header(memoryview(content), 0) == BatchHeader(
        base_offset=5,
        batch_length=len(content) - 12,
        leader_epoch=-1,
        magic=magic,
        crc=int.from_bytes(content[12:16], "big"),
        attributes=0,
        last_offset_delta=0,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        count=-1,
    )


@pytest.mark.parametrize("magic", [0, 1])
def test_the_value_of_a_wrapper_may_be_empty(magic: int) -> None:
    content = memoryview(message(0, b"", magic=magic, attributes=1))
    header = read_header(content, 0)
    assert header is not None
    assert wrapped_value(header, content) == b""


def test_the_first_record_of_a_log_may_end_a_transaction() -> None:
    content = memoryview(aborted(7, 0))
    header = read_header(content, 0)
    assert header is not None
    marker = end_marker(header, content)
    assert marker is not None
    assert marker.type is records.ControlType.ABORT
