"""Batches that are decompressed in pieces: the same records and errors, in less memory."""

from __future__ import annotations

import gc
import itertools
import random
import tracemalloc
from collections.abc import Callable, Iterator

import cramjam
import pytest

from aiokafka_lite import records
from aiokafka_lite.errors import CorruptRecordException, DecompressionLimitError, KafkaError
from aiokafka_lite.records import Codec, decoders, scratch
from aiokafka_lite.records.batch import HEADER_BYTES
from aiokafka_lite.records.compression import compress, inflate, inflate_stream
from tests.support import tuning
from tests.support.crafted import (
    CODECS,
    Record,
    batch,
    of_transaction,
    offsets,
    raw_batch,
    record,
    record_set,
    take,
    take_all,
    varint,
)
from tests.support.for_each import for_each
from tests.support.rounds import LONG

MIB = 1 << 20
COMPRESSED = [codec for codec in Codec if codec]
NO_LIMIT = 1 << 31


@pytest.fixture(params=COMPRESSED, ids=lambda codec: codec.name)
def codec(request: pytest.FixtureRequest) -> Codec:
    found: Codec = request.param
    return found


def rows(count: int, size_bytes: int) -> list[tuple[int, bytes | None, bytes | None, tuple[()]]]:
    """Records of that size and much smaller ones, with numbers in them."""
    return [
        (n, b"%d" % n, b"%d" % n * (size_bytes // 4) if n % 3 else None, ()) for n in range(count)
    ]


def small_pieces(monkeypatch: pytest.MonkeyPatch, piece_bytes: int = 64) -> None:
    tuning.cut_batches(monkeypatch, from_bytes=1, piece_bytes=piece_bytes)


# --- Large batches -------------------------------------------------------------------------------


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize("may_block", [False, True])
def test_large_batches_hold_the_records_that_were_written(codec: Codec, may_block: bool) -> None:
    count = 300
    content = records.build_batch(rows(count, 30_000), codec=codec, base_offset=5)
    content += batch(2, base_offset=5 + count, codec="lz4")
    decoded = records.RecordSet(
        "t", 0, memoryview(content), fetch_offset=0, may_block=may_block, max_batch_bytes=MIB
    )
    taken = take_all(decoded, 7)
    assert [(r.timestamp, r.key, r.value, r.headers) for r in taken[:count]] == rows(count, 30_000)
    assert offsets(taken) == list(range(5, 5 + count + 2))
    assert decoded.next_offset == 5 + count + 2
    assert decoded.is_exhausted


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_large_batch_is_never_in_memory_as_a_whole(codec: Codec) -> None:
    count = 300 if LONG else 100
    content = records.build_batch([(1, None, bytes(300_000), ())] * count, codec=codec)
    scratch._kept.clear()
    tracemalloc.start()
    try:
        decoded, read, at_once = record_set(content, max_batch_bytes=MIB), 0, 0
        while taken := take(decoded, 1000):
            read += len(taken)
            at_once = max(at_once, len(taken))
            assert decoded.inflated_bytes <= 4 * MIB
            del taken
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert read == count
    assert at_once <= 4
    assert decoded.inflated_total_bytes > count * 300_000
    assert peak < 10 * MIB  # of 30, or 90 in the long form


def test_pieces_give_their_memory_back() -> None:
    content = bytearray(records.build_batch(rows(300, 30_000), codec="zstd"))
    scratch._kept.clear()
    gc.disable()
    try:
        decoded = record_set(content)  # type: ignore[arg-type]
        assert len(take(decoded, 5)) == 5
        assert len(take_all(decoded)) == 295
        # One of the try to decompress it as a whole, and that of the pieces.
        assert 1 <= len(scratch._kept) <= 2
        assert len({id(kept) for kept in scratch._kept}) == len(scratch._kept)
        half = record_set(content)  # type: ignore[arg-type]
        take(half, 5)
        del decoded, half
        content.append(0)  # refused while anybody looks at it
    finally:
        gc.enable()


# --- Cut at any place ----------------------------------------------------------------------------


@pytest.mark.usefixtures("decoder")
@for_each(itertools.product([8, 64, 1000, 4000], [1, 7, 1000]))
def test_pieces_of_any_size_hold_whole_records(
    piece_bytes: int, at_a_time: int, codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = records.build_batch(rows(50, 200), codec=codec) + batch(2, base_offset=50)
    expected = take_all(record_set(content))
    small_pieces(monkeypatch, piece_bytes)
    for start in (0, 1, 20, 49, 50, 51):
        decoded = record_set(content, fetch_offset=start)
        assert take_all(decoded, at_a_time) == expected[start:]
        assert decoded.next_offset == 52


@pytest.mark.usefixtures("decoder")
def test_what_is_ahead_of_the_position_is_passed_a_piece_at_a_time(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = records.build_batch(rows(50, 200), codec=codec)
    small_pieces(monkeypatch, 600)
    decoded = record_set(content, fetch_offset=40)
    times = 0
    while decoded.inflate_estimate_s:
        before = decoded.inflated_total_bytes
        decoded.inflate()
        assert decoded.inflated_total_bytes - before <= 1200
        assert decoded.next_offset == 40
        times += 1
    assert times >= 5
    assert offsets(take(decoded, 1)) == [40]


@pytest.mark.usefixtures("decoder")
@for_each([1, 20, 49, 50, 60])
def test_records_from_the_end_offset_on_are_left_out(
    end: int, codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = records.build_batch(rows(50, 200), codec=codec) + batch(20, base_offset=50)
    small_pieces(monkeypatch)
    for may_block in (False, True):
        decoded = records.RecordSet(
            "t", 0, memoryview(content), fetch_offset=0, end_offset=end, may_block=may_block
        )
        assert offsets(take_all(decoded, 7)) == list(range(end))
        assert decoded.next_offset >= end


@pytest.mark.usefixtures("decoder")
def test_gaps_and_aborted_batches_are_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch, 16)
    payload = b"".join(record(delta, value=varint(9) + bytes(9)) for delta in (2, 5, 6, 30))
    gaps = raw_batch(compress(Codec.ZSTD, payload), count=4, last_offset_delta=40, attributes=4)
    aborted = batch(9, base_offset=41, codec="zstd", producer_id=3, is_transactional=True)
    content = gaps + aborted + of_transaction(4, 50)
    decoded = record_set(content, aborted=[(3, 41)])
    assert offsets(take_all(decoded, 1)) == [2, 5, 6, 30, 50, 51]
    assert decoded.next_offset == 52


@pytest.mark.usefixtures("decoder")
def test_rows_are_the_records(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow", reason="rows are for pyarrow: pip install pyarrow")
    from aiokafka_lite.records.arrow import ArrowColumns

    content = records.build_batch(rows(50, 200), codec=codec) + batch(2, base_offset=50)
    expected = ArrowColumns().from_records(take_all(record_set(content)))
    small_pieces(monkeypatch, 500)
    arrow, decoded = ArrowColumns(), record_set(content, may_block=True)
    while decoded.take_columns(arrow.columns, 7):
        pass
    assert arrow.finish().equals(expected)


def test_decode_all_returns_every_record_of_every_batch() -> None:
    content = b"".join(
        records.build_batch([(1, None, bytes(size), ())] * 8, codec="zstd", base_offset=8 * n)
        for n, size in enumerate((MIB, 1000, MIB, 2 * MIB))
    )
    assert offsets(records.decode_all(memoryview(content))) == list(range(32))
    with pytest.raises(CorruptRecordException):
        records.decode_all(memoryview(content[:-1] + b"!"))


def test_a_set_that_runs_out_of_memory_goes_on_where_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = records.build_batch(rows(300, 30_000), codec="zstd")
    decoded = record_set(content)
    with monkeypatch.context() as patched:
        tuning.have_no_buffers(patched)
        with pytest.raises(MemoryError):
            take(decoded, 5)
    assert offsets(take_all(decoded)) == list(range(300))


@pytest.mark.usefixtures("decoder")
@for_each(
    [
        (b"", 9, (2, 16, 0)),
        (b"", 1, (1, 8, 0)),
        (record(2)[:-1], 9, (2, 16, 8)),
        (record(2)[:1], 9, (2, 16, 8)),
        (varint(300)[:1], 9, (2, 16, 0)),
        (varint(300), 9, (2, 16, 302)),
        (varint(0), 9, (2, 16, 0)),
    ]
)
def test_whole_records_are_counted_and_the_size_of_the_next_is_told(
    tail: bytes, limit: int, found: tuple[int, int, int]
) -> None:
    content = memoryview(record(0) + record(1) + tail)
    assert decoders.current().whole_records(content, limit) == found


# --- Large records -------------------------------------------------------------------------------


@pytest.mark.usefixtures("decoder")
def test_a_record_larger_than_a_piece_is_read_if_it_is_within_the_limit(codec: Codec) -> None:
    sizes = [10, 5 * MIB, 10, 3 * MIB, 2 * MIB, 10]
    content = records.build_batch([(1, None, bytes(size), ()) for size in sizes], codec=codec)
    taken = take_all(record_set(content, max_batch_bytes=5 * MIB + 100))
    assert [len(r.value or b"") for r in taken] == sizes


@pytest.mark.usefixtures("decoder")
def test_a_record_beyond_the_limit_is_an_error_behind_the_records_ahead(codec: Codec) -> None:
    sizes = [10, 3 * MIB, 5 * MIB, 10]
    content = records.build_batch(
        [(1, None, bytes(size), ()) for size in sizes], codec=codec, base_offset=100
    )
    decoded = record_set(content + batch(2, base_offset=104), max_batch_bytes=4 * MIB)
    taken: list[Record] = []
    for _ in range(2):
        taken += take(decoded, 1)
    assert offsets(taken) == [100, 101]
    for _ in range(2):
        with pytest.raises(
            DecompressionLimitError, match=r" 5\d* bytes.* max_batch_bytes"
        ) as caught:
            take(decoded, 1)
        assert (caught.value.offset, caught.value.next_offset) == (102, 104)


def test_a_record_that_only_claims_to_be_large_takes_no_memory() -> None:
    claim = varint(200 * MIB) + bytes(5 * MIB)
    content = raw_batch(compress(Codec.ZSTD, claim), count=1, attributes=4)
    scratch._kept.clear()
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecordException):
            take(record_set(content, max_batch_bytes=256 * MIB), 1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 30 * MIB


def test_snappy_without_blocks_is_read_as_a_whole_within_the_limit() -> None:
    content = b"".join(record(n, value=varint(10_000) + bytes(10_000)) for n in range(600))
    stream = bytes(cramjam.snappy.compress_raw(content))
    whole = raw_batch(stream, count=600, attributes=2)
    assert len(take_all(record_set(whole, max_batch_bytes=8 * MIB))) == 600
    with pytest.raises(DecompressionLimitError, match=r"raise .* max_batch_bytes"):
        take(record_set(whole, max_batch_bytes=5 * MIB), 1)


def test_linked_lz4_blocks_are_read_as_a_whole_within_the_limit() -> None:
    content = b"".join(record(n, value=varint(10_000) + bytes(10_000)) for n in range(600))
    whole = raw_batch(bytes(cramjam.lz4.compress(content)), count=600, attributes=3)
    assert len(take_all(record_set(whole, max_batch_bytes=8 * MIB))) == 600
    with pytest.raises(DecompressionLimitError, match=r"raise .* max_batch_bytes"):
        take(record_set(whole, max_batch_bytes=5 * MIB), 1)


# --- Batches that lie, or are broken -------------------------------------------------------------


Outcome = tuple[list[Record], type[KafkaError] | None, int | None, int]


def outcome(content: bytes, *, at_a_time: int = 7, max_batch_bytes: int = NO_LIMIT) -> Outcome:
    """All records ahead of an error, the error, where reading goes on, and the position."""
    decoded = record_set(content, check_crcs=False, max_batch_bytes=max_batch_bytes)
    taken: list[Record] = []
    try:
        while more := take(decoded, at_a_time):
            taken += more
    except KafkaError as error:
        return taken, type(error), error.next_offset, error.offset or 0
    return taken, None, None, decoded.next_offset


@pytest.mark.usefixtures("decoder")
@for_each([(2, 1), (4, 3), (2**31 - 1, 3), (-1, 0)])
def test_a_count_that_lies_is_an_error_behind_the_records(
    claim: int, readable: int, codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = b"".join(record(n, value=varint(40) + bytes(40)) for n in range(3))
    content = raw_batch(
        compress(codec, payload), count=claim, last_offset_delta=9, attributes=codec
    )
    for piece_bytes in (50, 100, 1000):
        small_pieces(monkeypatch, piece_bytes)
        taken, error, next_offset, _ = outcome(content)
        assert (offsets(taken), error, next_offset) == (
            list(range(readable)),
            CorruptRecordException,
            10,
        )


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize("length", [b"\x00", b"\x01", b"\xff\xff\xff\xff\x7f", b"\x80"])
def test_a_length_that_is_none_is_an_error_behind_the_records(
    length: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = record(0) + record(1) + length + bytes(200)
    content = raw_batch(compress(Codec.GZIP, payload), count=5, attributes=1)
    for piece_bytes in (10, 20, 1000):
        small_pieces(monkeypatch, piece_bytes)
        taken, error, *_ = outcome(content)
        assert (offsets(taken), error) == ([0, 1], CorruptRecordException)


@pytest.mark.usefixtures("decoder")
def test_offsets_that_go_back_across_pieces_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = record(0) + record(5) + record(3)
    content = raw_batch(compress(Codec.GZIP, payload), count=3, last_offset_delta=9, attributes=1)
    small_pieces(monkeypatch, 10)
    taken, error, *_ = outcome(content)
    assert (offsets(taken), error) == ([0, 5], CorruptRecordException)


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize("piece_bytes", [30, 1000])
def test_a_stream_cut_anywhere_is_an_error_at_the_first_record_that_is_missing(
    codec: Codec, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = records.build_batch(rows(12, 60), codec=codec)
    expected = take_all(record_set(whole))
    small_pieces(monkeypatch, piece_bytes)
    for missing in range(1, len(whole) - HEADER_BYTES):
        cut = whole[8 : len(whole) - missing]
        content = whole[:8] + (len(cut) - 4).to_bytes(4, "big") + cut[4:]
        taken, error, next_offset, place = outcome(content)
        assert error is CorruptRecordException
        assert taken == expected[: len(taken)]
        assert (place, next_offset) == (len(taken), max(12, len(taken) + 1))


def mutations(count: int) -> Iterator[tuple[Codec, bytes]]:
    """Batches whose compressed, or decompressed, records have a few wrong bytes."""
    rng = random.Random(count)
    plain = b"".join(
        record(n, value=varint(5 * n) + bytes(rng.choices(b"abc", k=5 * n))) for n in range(12)
    )
    for _ in range(count):
        codec = rng.choice(COMPRESSED)
        payload = bytearray(plain)
        if is_inside := rng.random() < 0.5:
            payload[rng.randrange(len(payload))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        stream = bytearray(compress(codec, bytes(payload)))
        if not is_inside:
            stream[rng.randrange(len(stream))] ^= 1 << rng.randrange(8)
        yield codec, raw_batch(bytes(stream), count=12, attributes=codec)


def test_broken_batches_come_to_the_same_as_decompressed_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors, count = 0, 3000 if LONG else 750
    for number, (codec, content) in enumerate(mutations(count)):
        with monkeypatch.context() as patched:
            whole_taken, whole_error, *_ = outcome(content)
            small_pieces(patched, 8 + number % 100)
            found = {}
            for name in records.DECODERS:
                with records.use_decoder(name):
                    found[name] = outcome(content, at_a_time=1 + number % 9)
        taken, error, *_ = found["python"]
        assert all(each == found["python"] for each in found.values()), content.hex()
        errors += error is not None
        # As a whole nothing is had of a broken stream; in pieces, what is ahead of the break.
        assert error is whole_error, (codec, content.hex())
        assert taken[: len(whole_taken)] == whole_taken
        assert error is not None or taken == whole_taken
    assert errors > count // 3


# --- Streams -------------------------------------------------------------------------------------


def both(codec: Codec, stream: bytes) -> tuple[bytes | None, bytes | None]:
    """What a stream is, decompressed whole and in pieces; None for broken ones."""

    def attempt(way: Callable[[], bytes]) -> bytes | None:
        try:
            return way()
        except CorruptRecordException:
            return None

    def in_pieces() -> bytes:
        found = inflate_stream(codec, memoryview(stream))
        if found is None:  # of another kind now
            return bytes(inflate(codec, memoryview(stream), 8 * MIB))
        return b"".join(bytes(each) for each in found)

    return attempt(lambda: bytes(inflate(codec, memoryview(stream), 8 * MIB))), attempt(in_pieces)


def lz4(content: bytes, **options: bool) -> bytes:
    compressor = cramjam.lz4.Compressor(block_linked=False, **options)
    compressor.compress(content)
    return bytes(compressor.finish())


CONTENTS = {
    "small": b"carrier" * 20,
    "large": random.Random(3).randbytes(700_000) + bytes(700_000),
}
MAKERS: dict[str, tuple[Codec, Callable[[bytes], bytes]]] = {
    "gzip": (Codec.GZIP, lambda content: compress(Codec.GZIP, content)),
    "gzip members": (Codec.GZIP, lambda content: 3 * compress(Codec.GZIP, content)),
    "zstd": (Codec.ZSTD, lambda content: compress(Codec.ZSTD, content)),
    "zstd frames": (Codec.ZSTD, lambda content: 3 * compress(Codec.ZSTD, content)),
    "zstd, skippable frame": (
        Codec.ZSTD,
        lambda content: b"\x50\x2a\x4d\x18\3\0\0\0abc" + compress(Codec.ZSTD, content),
    ),
    "snappy": (Codec.SNAPPY, lambda content: compress(Codec.SNAPPY, content)),
    "lz4": (Codec.LZ4, lambda content: compress(Codec.LZ4, content)),
    "lz4 frames": (Codec.LZ4, lambda content: 3 * compress(Codec.LZ4, content)),
    "lz4, checksum": (Codec.LZ4, lambda content: lz4(content, content_checksum=True)),
}


@for_each(itertools.product(MAKERS, CONTENTS))
def test_streams_hold_what_was_compressed(maker: str, content: str) -> None:
    codec, made_of = MAKERS[maker]
    whole, pieces = both(codec, made_of(CONTENTS[content]))
    assert whole == pieces
    assert whole is not None
    assert whole.startswith(CONTENTS[content])


@for_each(MAKERS)
def test_broken_streams_are_broken_either_way(maker: str) -> None:
    codec, made_of = MAKERS[maker]
    rng = random.Random(1)
    stream = made_of(b"0123456789abcdef" * 30 + rng.randbytes(200))
    for missing in range(1, len(stream) - 20):
        whole, pieces = both(codec, stream[:-missing])
        assert whole == pieces
    for more in (b"\0", b"x", bytes(20), b"garbage" * 5):
        assert both(codec, stream + more) == (None, None)
    for _ in range(1000):
        broken = bytearray(stream)
        broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        whole, pieces = both(codec, bytes(broken))
        assert pieces == whole or (maker == "lz4, checksum" and whole is None)


def test_codecs_have_no_more_ways_than_these() -> None:
    assert [codec.name.lower() for codec in COMPRESSED] == CODECS[1:]
    with pytest.raises(ValueError, match="none"):
        inflate_stream(Codec.NONE, memoryview(b""))
