"""Columns: the same records as `take` gives, in Arrow's layout."""

from __future__ import annotations

import gc
import gzip
import itertools
import mmap
import subprocess
import sys
from typing import Any

import pytest

from aiokafka_lite import records
from aiokafka_lite.errors import CorruptRecordException, RecordTooLargeError
from aiokafka_lite.records import Codec, decoders
from aiokafka_lite.records._columns_py import MAX_COLUMN_BYTES, Columns
from aiokafka_lite.structs import ConsumerRecord
from tests.records.recorded import FIXTURES
from tests.support.crafted import (
    CODECS,
    FIRST_TIMESTAMP,
    batch,
    committed,
    corrupted,
    interleaved,
    message,
    numbered,
    of_transaction,
    raw_batch,
    record,
    record_set,
    take_all,
    varint,
)
from tests.support.for_each import for_each
from tests.support.rounds import LONG

pytest.importorskip("pyarrow", reason="columns are for pyarrow: pip install pyarrow")

import pyarrow as pa

from aiokafka_lite.records.arrow import DEFAULT_SCHEMA, MOST_KEPT, ArrowColumns

pytestmark = pytest.mark.usefixtures("decoder")

ALL_FIXTURES = sorted(path.stem for path in FIXTURES.glob("*.bin"))
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
# As Spark's Kafka source has it, with headers.
SPARK_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.field("element", HEADERS.value_type))),
    ]
)


def batches_of(
    content: records.RecordSet, arrow: ArrowColumns, at_a_time: int = 1000
) -> list[pa.RecordBatch]:
    """All rows, a record batch each time; every one checked by Arrow itself."""
    found = []
    while content.take_columns(arrow.columns, at_a_time):
        found.append(arrow.finish())
        found[-1].validate(full=True)
    return found


def rows_of(content: bytes, schema: pa.Schema | None = None) -> pa.RecordBatch:
    (found,) = batches_of(record_set(content), ArrowColumns(schema))
    return found


def column(content: bytes, name: str) -> list[object]:
    found: list[object] = rows_of(content).column(name).to_pylist()
    return found


# --- the same as records -------------------------------------------------------------------------


@for_each(ALL_FIXTURES)
def test_rows_are_the_records_of_kafkas_own_batches(name: str) -> None:
    content = (FIXTURES / f"{name}.bin").read_bytes()
    for schema, at_a_time in itertools.product((DEFAULT_SCHEMA, SPARK_SCHEMA), (1, 7, 1000)):
        arrow = ArrowColumns(schema)
        expected, taken = record_set(content), record_set(content)
        for rows in batches_of(taken, arrow, at_a_time):
            assert rows.schema.equals(schema, check_metadata=True)
            assert rows.equals(arrow.from_records(expected.take(at_a_time))), at_a_time
        assert (taken.next_offset, taken.epochs) == (expected.next_offset, expected.epochs)
        assert taken.is_exhausted
        assert expected.is_exhausted


def test_default_columns_hold_all_that_a_record_tells() -> None:
    content = records.build_batch(
        [
            (FIRST_TIMESTAMP, b"key", b"value", (("trace", b"1"), ("é", None), ("", b""))),
            (FIRST_TIMESTAMP + 5, None, b"", ()),
            (FIRST_TIMESTAMP + 6, b"", None, (("again", b"2"),)),
        ],
        base_offset=40,
    )
    rows = rows_of(content)
    assert rows.schema == DEFAULT_SCHEMA
    assert rows.column("topic").to_pylist() == ["topic"] * 3
    assert rows.column("partition").to_pylist() == [7, 7, 7]
    assert rows.column("offset").to_pylist() == [40, 41, 42]
    assert rows.column("timestamp").cast(pa.int64()).to_pylist() == [
        FIRST_TIMESTAMP,
        FIRST_TIMESTAMP + 5,
        FIRST_TIMESTAMP + 6,
    ]
    assert rows.column("timestamp_type").to_pylist() == [0, 0, 0]
    assert rows.column("key").to_pylist() == [b"key", None, b""]
    assert rows.column("value").to_pylist() == [b"value", b"", None]
    assert rows.column("headers").to_pylist() == [
        [
            {"key": "trace", "value": b"1"},
            {"key": "é", "value": None},
            {"key": "", "value": b""},
        ],
        None,
        [{"key": "again", "value": b"2"}],
    ]


def test_a_record_without_headers_has_none_rather_than_an_empty_list() -> None:
    headers = rows_of(batch(3)).column("headers")
    assert headers.null_count == 3
    assert headers.to_pylist() == [None] * 3


@for_each([7, 8, 9, 64, 65, 1000])
def test_nulls_are_where_they_were_in_columns_of_any_length(count: int) -> None:
    content = [
        (
            1,
            None if n % 3 == 0 else b"%d" % n,
            None if n % 5 == 4 else b"v" * (n % 20),
            () if n % 7 else (("h", None if n % 2 else b"x"),),
        )
        for n in range(count)
    ]
    rows = rows_of(records.build_batch(content))
    assert rows.column("key").to_pylist() == [key for _, key, _, _ in content]
    assert rows.column("value").to_pylist() == [value for _, _, value, _ in content]
    assert rows.column("headers").to_pylist() == [
        [{"key": k, "value": v} for k, v in headers] or None for _, _, _, headers in content
    ]
    assert rows.column("key").null_count == sum(key is None for _, key, _, _ in content)


@for_each([(7, 1), (8, 1), (9, 2), (64, 8), (65, 9)])
def test_a_validity_bitmap_has_one_byte_for_eight_rows(count: int, size_bytes: int) -> None:
    content = records.build_batch([(1, None, b"v", ())] * count)
    bitmap = rows_of(content).column("key").buffers()[0]
    assert bitmap.size == size_bytes


def test_header_names_that_are_no_utf8_read_as_in_records() -> None:
    names = [b"ok", b"\xff\xfe", b"a\xed\xa0\x80b", b"\xc3", "é".encode()]
    headers = varint(len(names)) + b"".join(varint(len(n)) + n + b"\x02v" for n in names)
    content = raw_batch(record(0, headers=headers), count=1)
    (taken,) = record_set(content).take(1)
    (found,) = column(content, "headers")
    assert isinstance(found, list)
    assert [header["key"] for header in found] == [name for name, _ in taken.headers]
    assert [header["value"] for header in found] == [b"v"] * len(names)


def test_a_record_may_have_thousands_of_headers() -> None:
    many = tuple((f"name-{n}", b"%d" % n if n % 3 else None) for n in range(5_000))
    headers = [many, (("one", b"1"),), (), many]
    content = records.build_batch([(1, None, b"v", these) for these in headers])
    assert column(content, "headers") == [
        [{"key": name, "value": value} for name, value in these] or None for these in headers
    ]


def test_messages_of_magic_0_have_no_timestamp() -> None:
    content = message(3, b"v", magic=0) + message(4, b"w", magic=1) + message(5, b"x", magic=0)
    assert column(content, "timestamp_type") == [None, 0, None]
    assert rows_of(content).column("timestamp").cast(pa.int64()).to_pylist() == [
        None,
        FIRST_TIMESTAMP,
        None,
    ]


def test_timestamps_that_do_not_fit_the_unit_are_null() -> None:
    edge = (2**63 - 1) // 1000
    times = [edge, edge + 1, 2**63 - 1, -1, -edge, -edge - 1, -(2**63)]
    content = b"".join(
        raw_batch(record(0), count=1, base_offset=offset, base_timestamp=time)
        for offset, time in enumerate(times)
    )
    in_us = [edge * 1000, None, None, -1000, -edge * 1000, None, None]
    for schema, expected in ((SPARK_SCHEMA, in_us), (DEFAULT_SCHEMA, times)):
        taken = take_all(record_set(content))
        for rows in (rows_of(content, schema), ArrowColumns(schema).from_records(taken)):
            assert rows.column("timestamp").cast(pa.int64()).to_pylist() == expected


def test_records_without_a_timestamp_have_the_one_that_is_given_for_them() -> None:
    content = message(3, b"v", magic=0) + message(4, b"w", magic=1) + message(5, b"x", magic=0)
    arrow = ArrowColumns(SPARK_SCHEMA, missing_timestamp_ms=-1)
    (rows,) = batches_of(record_set(content), arrow)
    for found in (rows, arrow.from_records(take_all(record_set(content)))):
        times = found.column("timestamp").cast(pa.int64()).to_pylist()
        assert times == [-1000, FIRST_TIMESTAMP * 1000, -1000]
        assert found.column("timestampType").to_pylist() == [-1, 0, -1]
    assert rows_of(message(3, b"v", magic=0)).column("timestamp_type").to_pylist() == [None]


def test_a_timestamp_that_does_not_fit_is_not_replaced_by_the_one_for_none() -> None:
    content = raw_batch(record(0), count=1, base_timestamp=2**63 - 1)
    arrow = ArrowColumns(SPARK_SCHEMA, missing_timestamp_ms=-1)
    (rows,) = batches_of(record_set(content), arrow)
    for found in (rows, arrow.from_records(take_all(record_set(content)))):
        assert found.column("timestamp").to_pylist() == [None]
        assert found.column("timestampType").to_pylist() == [0]


# --- where rows begin and end --------------------------------------------------------------------


@for_each(CODECS)
def test_records_and_rows_of_one_batch_may_be_mixed(codec: str) -> None:
    content, arrow = record_set(batch(10, base_offset=5, codec=codec)), ArrowColumns()
    assert [record.offset for record in content.take(2)] == [5, 6]
    assert content.take_columns(arrow.columns, 3) == 3
    assert arrow.finish().column("offset").to_pylist() == [7, 8, 9]
    assert content.next_offset == 10
    assert [record.offset for record in content.take(2)] == [10, 11]
    assert content.take_columns(arrow.columns, 100) == 3
    assert arrow.finish().column("offset").to_pylist() == [12, 13, 14]
    assert (content.take_columns(arrow.columns, 1), content.is_exhausted) == (0, True)


def test_rows_of_several_partitions_stay_in_order() -> None:
    arrow = ArrowColumns()
    sets = [
        records.RecordSet(topic, partition, memoryview(batch(4)), fetch_offset=0)
        for topic, partition in (("a", 0), ("b", 0), ("b", 1))
    ]
    for at_a_time in (3, 2):
        for content in sets:
            content.take_columns(arrow.columns, at_a_time)
    rows = arrow.finish()
    found = list(
        zip(
            rows.column("topic").to_pylist(),
            rows.column("partition").to_pylist(),
            rows.column("offset").to_pylist(),
            strict=True,
        )
    )
    assert found == [
        *[("a", 0, n) for n in range(3)],
        *[("b", 0, n) for n in range(3)],
        *[("b", 1, n) for n in range(3)],
        ("a", 0, 3),
        ("b", 0, 3),
        ("b", 1, 3),
    ]


def test_rows_of_one_partition_are_one_group_however_many_times_they_were_added_in() -> None:
    columns = decoders.current().columns_class()()
    content = record_set(batch(3) + batch(3, base_offset=3))
    for _ in range(3):
        assert content.take_columns(columns, 2) == 2
    content = records.RecordSet("topic", 8, memoryview(batch(3)), fetch_offset=0)
    assert content.take_columns(columns, 9) == 3
    assert columns.finish().row_groups == (("topic", 7, 0, 6), ("topic", 8, 0, 3))


def test_the_position_after_rows_is_after_the_marker_that_follows() -> None:
    content, arrow = record_set(of_transaction(1, 0) + committed(1, 2)), ArrowColumns()
    assert content.take_columns(arrow.columns, 2) == 2
    assert content.next_offset == 3


def test_nothing_is_added_when_nothing_is_asked_for() -> None:
    content, arrow = record_set(batch(3)), ArrowColumns()
    assert content.take_columns(arrow.columns, 0) == 0
    assert content.take_columns(arrow.columns, -1) == 0
    assert arrow.finish().num_rows == 0
    assert content.next_offset == 0


@for_each(
    [
        batch(12, base_offset=10),
        b"".join(message(offset, b"v", magic=1) for offset in range(10, 22)),
        message(
            21,
            gzip.compress(b"".join(message(offset, b"v", magic=1) for offset in range(12))),
            magic=1,
            attributes=Codec.GZIP,
        ),
    ]
)
def test_rows_outside_of_the_offsets_wanted_are_left_out(batches: bytes) -> None:
    content = records.RecordSet("topic", 7, memoryview(batches), fetch_offset=17, end_offset=20)
    arrow = ArrowColumns()
    assert content.take_columns(arrow.columns, 2) == 2
    assert (arrow.columns.first_offset, arrow.columns.last_offset) == (17, 18)
    assert content.take_columns(arrow.columns, 9) == 1
    assert (arrow.columns.first_offset, arrow.columns.last_offset) == (19, 19)
    assert content.is_exhausted


@for_each([1, 3, 100])
def test_reader_of_committed_records_gets_exactly_the_committed_rows(at_a_time: int) -> None:
    content = record_set(interleaved(), aborted=[(1, 10), (99, 0), (2, 2)])
    found = batches_of(content, ArrowColumns(), at_a_time)
    offsets = [offset for rows in found for offset in rows.column("offset").to_pylist()]
    assert offsets == [0, 1, 6, 7, 8, 9, 14, 15]
    assert content.next_offset == 16


@pytest.mark.parametrize(("byte_limit", "rows"), [(39, [3, 3, 3, 1]), (40, [4, 4, 2])])
def test_columns_are_full_before_they_would_exceed_the_byte_limit(
    byte_limit: int, rows: list[int]
) -> None:
    content = record_set(records.build_batch([(1, b"k" * 5, b"v" * 5, ())] * 10))
    arrow = ArrowColumns(byte_limit=byte_limit)
    counts = []
    while added := content.take_columns(arrow.columns, 100):
        assert arrow.columns.size_bytes == 10 * added <= byte_limit
        assert arrow.columns.is_full == (content.next_offset < 10)
        if arrow.columns.is_full:
            assert content.take_columns(arrow.columns, 100) == 0
            assert content.take(0) == []
        counts.append(added)
        arrow.finish()
        assert not arrow.columns.is_full
    assert counts == rows


def test_a_record_beyond_the_byte_limit_is_a_row_by_itself() -> None:
    content = record_set(records.build_batch([(1, b"k", b"v" * size, ()) for size in (3, 99, 3)]))
    found = batches_of(content, ArrowColumns(byte_limit=20))
    assert [rows.column("offset").to_pylist() for rows in found] == [[0], [1], [2]]


def test_a_record_that_no_column_holds_is_refused_in_plain_python() -> None:
    with mmap.mmap(-1, MAX_COLUMN_BYTES + 1) as mapped, memoryview(mapped) as view:
        large: Any = ConsumerRecord("t", 0, 5, 1, 0, None, view, None, -1, len(view), ())
        with pytest.raises(RecordTooLargeError, match="too large for an Arrow column"):
            Columns().add(large)


def test_headers_count_for_the_byte_limit_where_they_are_wanted() -> None:
    content = records.build_batch([(1, None, None, (("name", b"value"),))] * 3)
    with_headers = ArrowColumns(pa.schema([("headers", HEADERS)]), byte_limit=20)
    assert record_set(content).take_columns(with_headers.columns, 9) == 1
    without = ArrowColumns(pa.schema([("offset", pa.int64())]), byte_limit=20)
    assert record_set(content).take_columns(without.columns, 9) == 3


# --- errors --------------------------------------------------------------------------------------


def test_rows_ahead_of_a_corrupt_batch_come_first_then_the_error_each_time() -> None:
    broken, arrow = record_set(batch(3) + corrupted(batch(3, base_offset=3))), ArrowColumns()
    assert broken.take_columns(arrow.columns, 100) == 3
    for _ in range(2):
        assert broken.take_columns(arrow.columns, 0) == 0
        with pytest.raises(CorruptRecordException, match="checksum") as caught:
            broken.take_columns(arrow.columns, 100)
        assert caught.value.offset == 3 == broken.next_offset
    assert arrow.finish().column("offset").to_pylist() == [0, 1, 2]


def test_rows_ahead_of_a_malformed_record_come_first_then_the_error() -> None:
    broken = record_set(raw_batch(record(0) + record(1) + record(1), count=3))
    arrow = ArrowColumns()
    assert broken.take_columns(arrow.columns, 100) == 2
    assert arrow.finish().column("partition").to_pylist() == [7, 7]
    for take in (lambda: broken.take_columns(arrow.columns, 100), lambda: broken.take(1)):
        with pytest.raises(CorruptRecordException) as caught:
            take()
        assert caught.value.offset == 2


def test_an_error_ahead_of_all_rows_is_at_the_offset_that_was_asked_for() -> None:
    broken = record_set(raw_batch(record(0) + record(1) + record(1), count=3), fetch_offset=2)
    columns = ArrowColumns().columns
    with pytest.raises(CorruptRecordException) as caught:
        broken.take_columns(columns, 100)
    assert caught.value.offset == broken.next_offset == 2
    assert columns.finish().row_groups == ()


@pytest.mark.parametrize("magic", [0, 1])
def test_rows_ahead_of_a_malformed_message_come_first_then_the_error(magic: int) -> None:
    broken = message(0, b"a", magic=magic) + message(1, b"b", magic=magic, tail=b"?")
    arrow = ArrowColumns()
    content = record_set(broken)
    assert content.take_columns(arrow.columns, 100) == 1
    with pytest.raises(CorruptRecordException, match="longer"):
        content.take_columns(arrow.columns, 100)


def test_forgotten_rows_leave_nothing_behind() -> None:
    arrow = ArrowColumns()
    content = records.build_batch([(2**63 - 1, None, b"v", (("h", None),))] * 9)
    record_set(content).take_columns(arrow.columns, 100)
    arrow.columns.clear()
    assert (arrow.columns.rows, arrow.columns.size_bytes) == (0, 0)
    record_set(batch(3)).take_columns(arrow.columns, 100)
    assert arrow.finish().equals(rows_of(batch(3)))


def test_one_decoders_columns_are_not_filled_by_the_other(decoder: str) -> None:
    if not records.COMPILED:
        pytest.skip("there is only one decoder")
    with records.use_decoder("python" if decoder == "compiled" else "compiled"):
        arrow = ArrowColumns()
    with pytest.raises(TypeError):
        record_set(batch(1)).take_columns(arrow.columns, 1)
    # There is only one way to read messages of older formats.
    assert record_set(message(0, b"v", magic=1)).take_columns(arrow.columns, 1) == 1
    assert arrow.finish().column("value").to_pylist() == [b"v"]


# --- memory --------------------------------------------------------------------------------------


def test_rows_own_their_bytes() -> None:
    content, arrow = bytearray(batch(300)), ArrowColumns()
    records.RecordSet("topic", 7, memoryview(content), fetch_offset=0).take_columns(
        arrow.columns, 300
    )
    rows = arrow.finish()
    content[:] = bytes(len(content))
    del arrow
    gc.collect()
    assert rows.column("value").to_pylist() == [value for _, _, value, _ in numbered(300)]


def test_what_is_kept_to_repeat_a_value_does_not_grow_with_the_partitions() -> None:
    arrow, content = ArrowColumns(pa.schema([("partition", pa.int32())])), memoryview(batch(64))
    before = pa.total_allocated_bytes()
    for partition in range(4 * MOST_KEPT):
        taken = records.RecordSet("t", partition, content, fetch_offset=0)
        taken.take_columns(arrow.columns, 64)
        assert arrow.finish().column("partition").to_pylist() == [partition] * 64
    assert pa.total_allocated_bytes() - before <= MOST_KEPT * 64 * 4


def test_memory_of_batches_that_are_gone_is_used_again_and_that_of_others_is_not() -> None:
    arrow, kept, expected = ArrowColumns(), [], []
    for round_number in range(30 if LONG else 6):
        count = 6_000 * (1 + round_number % 3)
        content = records.build_batch(
            [
                (n, b"%d" % n, b"%d of %d" % (n, round_number), (("h", b"x"),) if n % 2 else ())
                for n in range(count)
            ]
        )
        record_set(content).take_columns(arrow.columns, count)
        rows = arrow.finish()
        if round_number % 5:
            rows.validate(full=True)
        else:
            kept.append(rows)
            expected.append(arrow.from_records(record_set(content).take(count)))
    for rows, same in zip(kept, expected, strict=True):
        rows.validate(full=True)
        assert rows.equals(same)


# --- schemas -------------------------------------------------------------------------------------


@for_each(DEFAULT_SCHEMA.names)
def test_any_column_may_be_the_only_one(name: str) -> None:
    schema = pa.schema([DEFAULT_SCHEMA.field(name)])
    content = (FIXTURES / "magic2-none.bin").read_bytes()
    rows = rows_of(content, schema)
    assert rows.schema == schema
    assert rows.column(name).equals(rows_of(content).column(name))


def test_what_is_not_wanted_is_checked_nonetheless() -> None:
    broken = raw_batch(record(0, headers=varint(9) + bytes(17)), count=1)  # nine need 18 bytes
    arrow = ArrowColumns(pa.schema([("offset", pa.int64())]))
    with pytest.raises(CorruptRecordException, match="header count"):
        record_set(broken).take_columns(arrow.columns, 1)


def test_columns_come_in_the_order_of_the_schema_with_its_metadata() -> None:
    schema = pa.schema(
        [("value", pa.binary()), pa.field("offset", pa.int64(), nullable=False)],
        metadata={"origin": "kafka"},
    )
    rows = rows_of(batch(2), schema)
    assert rows.schema.equals(schema, check_metadata=True)
    assert rows.column(0).to_pylist() == [b"v0", b"v1"]


@for_each(["ms", "us", "ns"])
def test_timestamps_come_in_the_unit_of_the_schema(unit: str) -> None:
    schema = pa.schema([("timestamp", pa.timestamp(unit, "Europe/Paris"))])
    found = rows_of(batch(2), schema).column("timestamp")
    assert found.cast(pa.timestamp("ms", "Europe/Paris")).cast(pa.int64()).to_pylist() == [
        FIRST_TIMESTAMP,
        FIRST_TIMESTAMP + 1,
    ]


@pytest.mark.parametrize("schema", [DEFAULT_SCHEMA, SPARK_SCHEMA], ids=["default", "spark"])
def test_an_empty_batch_has_the_schema(schema: pa.Schema) -> None:
    arrow = ArrowColumns(schema)
    for rows in (arrow.finish(), arrow.from_records([])):
        assert rows.num_rows == 0
        assert rows.schema.equals(schema)
        rows.validate(full=True)


def test_topics_keep_their_number_in_all_dictionaries() -> None:
    arrow = ArrowColumns()
    found = []
    for topics in (["a"], ["b", "a"], ["b"], ["c", "a"]):
        for topic in topics:
            content = records.RecordSet(topic, 0, memoryview(batch(1)), fetch_offset=0)
            content.take_columns(arrow.columns, 1)
        found.append(arrow.finish().column("topic"))
    assert [column.to_pylist() for column in found] == [["a"], ["b", "a"], ["b"], ["c", "a"]]
    assert [column.dictionary.to_pylist() for column in found] == [
        ["a"],
        ["a", "b"],
        ["a", "b"],
        ["a", "b", "c"],
    ]


@for_each(
    [
        (("value", pa.string()), "'value' must be binary, not string"),
        (("value", pa.large_binary()), "'value' must be binary, not large_binary"),
        (("topic", pa.large_string()), "'topic' must be dictionary.* or string, not large_string"),
        (("partition", pa.int64()), "'partition' must be int32, not int64"),
        (("timestamp", pa.timestamp("s", "UTC")), "'timestamp' must be .*ms, us or ns"),
        (("timestamp", pa.timestamp("us")), "'timestamp' must be .*with a time zone"),
        (("timestamp_type", pa.int8()), "'timestamp_type' must be int32, not int8"),
        (("headers", pa.list_(pa.binary())), "'headers' must be list<struct<key: string"),
        (
            ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))),
            "'headers' must be list<struct<key: string",
        ),
        (
            (
                "headers",
                pa.list_(pa.struct([("key", pa.string()), pa.field("value", pa.binary(), False)])),
            ),
            "'headers' must be list<struct<key: string",
        ),
        (("headers", pa.map_(pa.string(), pa.binary())), "'headers' must be list<struct<key"),
        (("checksum", pa.int64()), "no column 'checksum': choose among topic, partition, offset"),
        (pa.field("key", pa.binary(), nullable=False), "'key' can contain nulls"),
    ]
)
def test_a_schema_that_is_not_supported_is_refused_with_what_is(
    field: object, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ArrowColumns(pa.schema([("offset", pa.int64()), field]))


def test_schemas_without_columns_or_with_one_twice_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        ArrowColumns(pa.schema([]))
    with pytest.raises(ValueError, match="twice"):
        ArrowColumns(pa.schema([("key", pa.binary()), ("key", pa.binary())]))
    with pytest.raises(TypeError, match=r"pyarrow\.Schema"):
        ArrowColumns(["key"])


def test_without_pyarrow_the_error_names_the_extra() -> None:
    code = "import sys; sys.modules['pyarrow'] = None; import aiokafka_lite.records.arrow"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "pip install 'aiokafka-lite[arrow]'" in done.stderr
