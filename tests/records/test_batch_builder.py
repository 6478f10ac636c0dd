"""Both builders of batches: the same bytes, as other clients write them, and the same errors."""

from __future__ import annotations

import importlib
import itertools
import mmap
import subprocess
import sys
import tracemalloc
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import pytest
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy as AiokafkaBuilder
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aiokafka_lite import records
from aiokafka_lite.errors import UnsupportedCodecError
from aiokafka_lite.records import _build_py, build, compression
from tests.support.crafted import FIRST_TIMESTAMP, numbered, offsets, record_set, take_all
from tests.support.extensions import BROKEN, NOT_BUILT
from tests.support.for_each import for_each
from tests.support.rounds import LONG

MODULE = "aiokafka_lite.records._build"
INT16, INT32, INT64 = 1 << 15, 1 << 31, 1 << 63


class Way(NamedTuple):
    """One implementation."""

    new: type[_build_py.BatchBuilder]
    size_of: Callable[..., int]


WAYS = {"python": Way(_build_py.BatchBuilder, _build_py.size_of)}
try:
    compiled = importlib.import_module(MODULE)
except ModuleNotFoundError:
    pass
else:
    WAYS["compiled"] = Way(compiled.BatchBuilder, compiled.size_of)
compiled_only = pytest.mark.skipif("compiled" not in WAYS, reason="the extension is not built")


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    return WAYS[request.param]


each_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)

Header: TypeAlias = tuple[str, bytes | None]
Row: TypeAlias = tuple[int, bytes | None, bytes | None, list[Header]]
contents = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=12), contents), max_size=4)
timestamps = st.integers(-1, 2**62) | st.integers(FIRST_TIMESTAMP - 100, FIRST_TIMESTAMP + 100)
rows = st.tuples(timestamps, contents, contents, headers)
codecs = st.sampled_from(records.Codec)


# --- What comes out ------------------------------------------------------------------------------


@each_way
@given(
    added=st.lists(rows, min_size=1, max_size=20),
    codec=codecs,
    base_offset=st.integers(0, 2**62),
)
def test_records_are_read_as_they_were_added(
    way: Way, added: list[Row], codec: records.Codec, base_offset: int
) -> None:
    builder = way.new(codec=codec, base_offset=base_offset)
    for row in added:
        builder.append(*row)
    assert builder.count == len(added)
    taken = take_all(record_set(builder.build(), fetch_offset=base_offset))
    assert [(r.timestamp, r.key, r.value, list(r.headers)) for r in taken] == added
    assert offsets(taken) == list(range(base_offset, base_offset + len(added)))


@each_way
@given(
    deltas=st.sets(st.integers(0, INT32 - 1), min_size=1, max_size=10),
    codec=codecs,
)
def test_offsets_may_have_gaps(way: Way, deltas: set[int], codec: records.Codec) -> None:
    builder = way.new(codec=codec, base_offset=50)
    for delta in sorted(deltas):
        builder.append(5, None, b"v", offset=50 + delta)
    taken = take_all(record_set(builder.build()))
    assert offsets(taken) == [50 + delta for delta in sorted(deltas)]


@each_way
@given(
    added=st.lists(rows, min_size=1, max_size=20),
    is_transactional=st.booleans(),
    producer_id=st.integers(-1, INT64 - 1),
    producer_epoch=st.integers(-1, INT16 - 1),
    base_sequence=st.integers(-1, INT32 - 1),
)
def test_uncompressed_bytes_are_those_of_aiokafka(
    way: Way,
    added: list[Row],
    is_transactional: bool,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
) -> None:
    theirs = AiokafkaBuilder(
        2, 0, is_transactional, producer_id, producer_epoch, base_sequence, 1 << 20
    )
    ours = way.new(is_transactional=is_transactional)
    for number, row in enumerate(added):
        theirs.append(number, *row)
        ours.append(*row)
    assert ours.build(
        producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence
    ) == bytes(theirs.build())


def test_header_tells_what_the_builder_was_told(way: Way) -> None:
    builder = way.new(codec="gzip", is_control=True, is_transactional=True, leader_epoch=7)
    builder.append(30, None, None)
    builder.append(10, None, None)
    content = builder.build(producer_id=INT64 - 1, producer_epoch=INT16 - 1, base_sequence=5)
    header = records.read_header(memoryview(content), 0)
    assert header is not None
    assert (header.magic, header.leader_epoch, header.codec) == (2, 7, records.Codec.GZIP)
    assert (header.is_control, header.is_transactional, header.timestamp_type) == (True, True, 0)
    assert (header.base_timestamp, header.max_timestamp) == (30, 30)
    assert header[9:12] == (INT64 - 1, INT16 - 1, 5)


def test_timestamps_may_be_as_far_apart_as_the_format_can_say(way: Way) -> None:
    builder = way.new()
    stamps = [-1, INT64 - 2, -INT64, INT64 - 2]
    for stamp in stamps:
        builder.append(stamp, None, None)
    assert [r.timestamp for r in take_all(record_set(builder.build()))] == stamps


@for_each(records.Codec)
def test_it_may_be_built_again_for_another_producer(codec: records.Codec, way: Way) -> None:
    builder = way.new(codec=codec)
    for row in numbered(10):
        builder.append(*row)
    first = builder.build()
    again = builder.build(producer_id=7, producer_epoch=1, base_sequence=40)
    assert first == builder.build()
    assert (first[:17], first[21:43], first[57:]) == (again[:17], again[21:43], again[57:])
    ((header, _),) = records.iter_batches(memoryview(again))  # checks the checksum
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 40)


def test_compression_is_done_once(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    compressed: list[int] = []
    plain_compress = compression.compress

    def compress(codec: records.Codec, content: bytes) -> bytes:
        compressed.append(len(content))
        return plain_compress(codec, content)

    monkeypatch.setattr(compression, "compress", compress)
    builder = way.new(codec="zstd")
    builder.append(1, None, b"value")
    for sequence in range(3):
        builder.build(producer_id=1, producer_epoch=0, base_sequence=sequence)
    assert compressed == [builder.size_estimate - 61]


@for_each(["none", "gzip"])
def test_batch_that_was_built_takes_no_further_record(codec: str, way: Way) -> None:
    builder = way.new(codec=codec)
    builder.append(1, None, b"value")
    built, size = builder.build(), builder.size_estimate
    with pytest.raises(ValueError, match="is complete: create another"):
        builder.append(1, None, b"next")
    assert (builder.build(), builder.count, builder.size_estimate) == (built, 1, size)


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_batch_that_was_built_holds_what_it_returned_and_no_more(way: Way, codec: str) -> None:
    tracemalloc.start()
    try:
        builder = way.new(codec=codec)
        for _ in range(1200):
            builder.append(1, None, bytes(1000))
        collected, _ = tracemalloc.get_traced_memory()
        built = builder.build()
        held, _ = tracemalloc.get_traced_memory()
        built = builder.build(base_sequence=1)
        held_again, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert collected > 1_200_000
    assert max(held, held_again) - len(built) < 200_000


class OwnBytes(bytes):
    pass


@for_each([0, 1, 8, 72, 800])
def test_anything_like_bytes_is_a_key_or_a_value(size: int, way: Way) -> None:
    content = bytes(range(8)) * (size // 8) + b"x" * (size % 8)
    likes: list[Any] = [bytearray(content), memoryview(content), OwnBytes(content)]
    likes.append(memoryview(bytearray(b"?" + content))[1:])
    if size % 8 == 0:
        likes.append(memoryview(array("q", content)))
    expected = way.new()
    expected.append(1, content, content, [("name", content)])
    for like in likes:
        builder = way.new()
        builder.append(1, like, like, [("name", like)])
        assert builder.build() == expected.build(), type(like)
        assert way.size_of(like, like, [("name", like)]) == way.size_of(
            content, content, [("name", content)]
        )


def test_headers_may_be_any_sequence_of_pairs(way: Way) -> None:
    expected = way.new()
    expected.append(1, None, None, (("a", b"1"), ("é", None)))
    pairs: list[Any] = [("a", b"1"), ["é", None]]
    for like in (pairs, tuple(pairs), deque(pairs)):
        builder = way.new()
        builder.append(1, None, None, like)
        assert builder.build() == expected.build()


# --- Sizes ---------------------------------------------------------------------------------------


def test_size_estimate_is_the_size_of_an_uncompressed_batch(way: Way) -> None:
    builder = way.new()
    assert builder.size_estimate == 61
    for timestamp_ms, key, value, _ in numbered(1000):
        builder.append(timestamp_ms, key, value)
    assert builder.count == 1000
    assert builder.size_estimate == len(builder.build()) == builder.size_estimate


@each_way
@given(added=st.lists(rows, min_size=1, max_size=10), step=st.sampled_from([1, 1 << 20]))
def test_record_takes_no_more_than_was_told_and_little_less(
    way: Way, added: list[Row], step: int
) -> None:
    builder = way.new()
    for number, (timestamp_ms, key, value, its_headers) in enumerate(added):
        before = builder.size_estimate
        builder.append(timestamp_ms, key, value, its_headers, offset=number * step)
        taken = builder.size_estimate - before
        assert taken <= way.size_of(key, value, its_headers) <= taken + 17


@for_each([0, 63, 64, 8191, 8192, 1 << 20])
def test_sizes_are_told_where_lengths_get_longer(size: int, way: Way) -> None:
    content = b"x" * size
    assert way.size_of(content, None) == way.size_of(None, content)
    builder = way.new()
    builder.append(0, content, content, [("n" * size, content)])
    taken = builder.size_estimate - 61
    assert taken <= way.size_of(content, content, [("n" * size, content)]) <= taken + 17


# --- What is refused -----------------------------------------------------------------------------

GAPPY = memoryview(b"0123456789")[::2]
PAIR = r"pair of name and value"
REFUSED: dict[str, tuple[Callable[[_build_py.BatchBuilder], object], type[Exception], str]] = {
    "timestamp": (lambda b: b.append(1.5, None, b"v"), TypeError, "timestamp_ms .* not float"),  # type: ignore[arg-type]
    "no timestamp": (lambda b: b.append(None, None, b"v"), TypeError, "timestamp_ms .* NoneType"),  # type: ignore[arg-type]
    "late": (lambda b: b.append(INT64, None, b"v"), ValueError, f"timestamp_ms is {INT64}.*64 bit"),
    "early": (lambda b: b.append(-INT64 - 1, None, b"v"), ValueError, "timestamp_ms is -9223"),
    "key": (lambda b: b.append(1, "k", b"v"), TypeError, "key must be bytes, .* not str"),  # type: ignore[arg-type]
    "value": (lambda b: b.append(1, b"k", 5), TypeError, "value must be bytes, .* not int"),  # type: ignore[arg-type]
    "gaps": (lambda b: b.append(1, GAPPY, b"v"), TypeError, r"key is .* bytes\(view\)"),
    "headers": (lambda b: b.append(1, None, None, {"a": b"1"}), TypeError, "headers .* not dict"),  # type: ignore[arg-type]
    "no headers": (lambda b: b.append(1, None, None, None), TypeError, "headers .* not NoneType"),  # type: ignore[arg-type]
    "an iterator": (
        lambda b: b.append(1, None, None, iter([("a", b"1")])),  # type: ignore[arg-type]
        TypeError,
        "headers must be a sequence",
    ),
    "header": (
        lambda b: b.append(1, None, None, [("a", b"1"), "ab"]),  # type: ignore[list-item]
        TypeError,
        rf"headers\[1\] must be a {PAIR}, not str",
    ),
    "three": (
        lambda b: b.append(1, None, None, [("a", b"1", b"2")]),  # type: ignore[list-item]
        TypeError,
        rf"headers\[0\] must be a {PAIR}",
    ),
    "name": (
        lambda b: b.append(1, None, None, [("a", None), (b"b", b"1")]),  # type: ignore[list-item]
        TypeError,
        r"the name of headers\[1\] must be str, not bytes",
    ),
    "surrogate": (
        lambda b: b.append(1, None, None, [("\ud800", b"1")]),
        UnicodeEncodeError,
        "surrogates",
    ),
    "header's value": (
        lambda b: b.append(1, None, None, [("a", None), ("b", "1")]),  # type: ignore[list-item]
        TypeError,
        r"the value of headers\[1\] must be bytes, .* not str",
    ),
    "header with gaps": (
        lambda b: b.append(1, None, None, [("a", GAPPY)]),
        TypeError,
        r"the value of headers\[0\] is a memoryview that is not contiguous",
    ),
    "offset": (lambda b: b.append(1, None, None, offset="9"), TypeError, "offset .* not str"),  # type: ignore[arg-type]
    "offset below": (lambda b: b.append(1, None, None, offset=49), ValueError, "49 is too low"),
    "offset above": (
        lambda b: b.append(1, None, None, offset=50 + INT32),
        ValueError,
        "more than 2147483647 above .* create another batch",
    ),
    "large offset": (lambda b: b.append(1, None, None, offset=INT64), ValueError, "offset is 9223"),
}
RECORDS_BEFORE: list[dict[str, Any]] = [{"timestamp_ms": 9, "key": b"k", "value": b"v"}] * 2


@for_each(REFUSED)
def test_refused_record_leaves_the_batch_as_it_was(name: str, way: Way) -> None:
    add, error, match = REFUSED[name]
    for codec, before in itertools.product(("none", "lz4"), ([], RECORDS_BEFORE)):
        options = {"codec": codec, "base_offset": 50}
        builder, untouched = way.new(**options), way.new(**options)
        for row in before:
            builder.append(**row)
            untouched.append(**row)
        with pytest.raises(error, match=match):
            add(builder)
        sizes = untouched.count, untouched.size_estimate
        assert (builder.count, builder.size_estimate) == sizes, (codec, before)
        builder.append(5, None, b"next")
        untouched.append(5, None, b"next")
        assert builder.build() == untouched.build(), (codec, before)


def test_offset_that_is_not_above_the_last_is_refused(way: Way) -> None:
    builder = way.new(base_offset=50)
    builder.append(5, None, b"v", offset=52)
    for offset in (51, 52, 49):
        with pytest.raises(ValueError, match="is too low"):
            builder.append(5, None, b"v", offset=offset)


def test_record_behind_the_last_offset_is_refused(way: Way) -> None:
    builder = way.new(base_offset=50)
    builder.append(5, None, b"v", offset=50 + INT32 - 1)
    with pytest.raises(ValueError, match=f"offset {50 + INT32} is more than"):
        builder.append(5, None, b"v")


@for_each([(1, -INT64), (-1, INT64 - 1)])
def test_timestamp_too_far_from_the_first_is_refused(first: int, then: int, way: Way) -> None:
    builder = way.new()
    builder.append(first, None, b"v")
    with pytest.raises(
        ValueError,
        match=f"{then} is too far from {first}, the timestamp of the batch's first record",
    ):
        builder.append(then, None, b"v")
    builder.append(then + (1 if then < 0 else -1), None, b"v")


@for_each([INT32 - 1, INT32 - 70, INT32, 1 << 33])
def test_batch_of_2_gib_is_refused(size: int, way: Way) -> None:
    builder = way.new()
    with mmap.mmap(-1, size) as mapped, memoryview(mapped) as view:  # takes no memory by itself
        assert way.size_of(None, view) > size
        with pytest.raises(ValueError, match="less than 2 GiB: create another"):
            builder.append(1, None, view)
    assert (builder.count, builder.size_estimate) == (0, 61)


def test_released_memoryview_is_refused(way: Way) -> None:
    view = memoryview(b"v")
    view.release()
    with pytest.raises(ValueError, match="released"):
        way.size_of(None, view)


def test_batch_without_records_is_refused(way: Way) -> None:
    with pytest.raises(ValueError, match="needs at least one record"):
        way.new().build()


@for_each(["brotli", "", "5", 5])
def test_unknown_codec_is_refused_when_it_is_named(codec: str | int, way: Way) -> None:
    with pytest.raises(UnsupportedCodecError, match=r"gzip, snappy, lz4, zstd"):
        way.new(codec=codec)


@for_each([("producer_id", 64), ("producer_epoch", 16), ("base_sequence", 32)])
def test_producer_that_no_field_holds_is_refused(name: str, bits: int, way: Way) -> None:
    builder = way.new()
    builder.append(1, None, b"v")
    for number in (1 << bits - 1, -(1 << bits - 1) - 1):
        with pytest.raises(
            ValueError, match=f"{name} is {number}, which does not fit into {bits} bits"
        ):
            builder.build(**{name: number})
    with pytest.raises(TypeError, match=f"{name} must be int, not str"):
        builder.build(**{name: "1"})  # type: ignore[arg-type]
    assert len(builder.build(**{name: (1 << bits - 1) - 1})) == builder.size_estimate


@for_each([("base_offset", 64), ("leader_epoch", 32)])
def test_place_that_no_field_holds_is_refused(name: str, bits: int, way: Way) -> None:
    with pytest.raises(
        ValueError, match=f"{name} is {1 << bits - 1}, which does not fit into {bits} bits"
    ):
        way.new(**{name: 1 << bits - 1})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=f"{name} must be int"):
        way.new(**{name: None})  # type: ignore[arg-type]


# --- One against the other -----------------------------------------------------------------------

odd_contents = contents | st.sampled_from(["text", 5, GAPPY, bytearray(b"array"), memoryview(b"m")])
odd_numbers = st.integers(-2, 80) | st.sampled_from(
    [INT64, INT64 - 1, -INT64, -INT64 - 1, INT32, INT32 + 50, "1", None, 1.0, True]
)
odd_headers = headers | st.sampled_from(
    [None, "ab", [1], [("n",)], [(b"n", b"v")], [("n", "v")], [("n", GAPPY)], [("\udfff", None)]]
)
appends = st.tuples(
    st.just("append"),
    st.tuples(timestamps | odd_numbers, odd_contents, odd_contents, odd_headers),
    st.fixed_dictionaries({}, optional={"offset": odd_numbers}),
)
sizes = st.tuples(
    st.just("size_of"),
    st.tuples(odd_contents, odd_contents, odd_headers),
    st.builds(dict[str, object]),
)
builds = st.tuples(
    st.just("build"),
    st.just(()),
    st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(("producer_id", "producer_epoch", "base_sequence"), odd_numbers),
    ),
)


@compiled_only
@settings(max_examples=300 if LONG else 6)  # each has up to a dozen steps
@given(
    steps=st.lists(appends | builds | sizes, min_size=1, max_size=12),
    options=st.fixed_dictionaries(
        {"codec": codecs},
        optional={
            "base_offset": st.integers(-5, 50) | st.just(INT64 - 1),
            "is_transactional": st.booleans(),
            "is_control": st.booleans(),
            "leader_epoch": st.integers(-1, 9),
        },
    ),
)
@example(  # the offset behind the last one is beyond 64 bits
    steps=[("append", (0, None, None, []), {}), ("append", (0, None, None, []), {"offset": 0})],
    options={"codec": records.Codec.NONE, "base_offset": INT64 - 1},
)
def test_both_do_the_same_whatever_they_are_given(
    steps: list[tuple[str, tuple[Any, ...], dict[str, Any]]], options: dict[str, Any]
) -> None:
    def seen(way: Way) -> list[object]:
        builder = way.new(**options)
        found: list[object] = []
        for name, args, kwargs in steps:
            do = way.size_of if name == "size_of" else getattr(builder, name)
            try:
                found.append(do(*args, **kwargs))
            except (TypeError, ValueError) as error:
                found.append((type(error), str(error)))
            found += (builder.count, builder.size_estimate)
        return found

    assert seen(WAYS["compiled"]) == seen(WAYS["python"])


# --- Which one runs ------------------------------------------------------------------------------

REPORT = """
from aiokafka_lite import records
print(records.BatchBuilder.__module__, len(records.build_batch([(1, None, b"value", ())])))
"""


def run(prepare: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys\n{prepare}\n{REPORT}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_extension_is_used_where_it_is_built() -> None:
    used = WAYS.get("compiled", WAYS["python"])
    assert (build.BatchBuilder, build.size_of) == used


def test_plain_python_builds_where_the_extension_is_not_built() -> None:
    result = run(NOT_BUILT.format(name=MODULE))
    assert result.stdout.split() == [f"{MODULE}_py", "73"], result.stderr
    assert result.stderr == ""


@compiled_only
def test_broken_extension_is_not_hidden() -> None:
    result = run(BROKEN.format(name=MODULE))
    assert result.returncode != 0
    assert "undefined symbol" in result.stderr
