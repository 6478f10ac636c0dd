"""Whatever the bytes: records, then nothing or a typed error, at a bounded cost."""

from __future__ import annotations

import gzip
import itertools
import random
import tracemalloc
from collections.abc import Sequence

import cramjam
import pytest

from aiokafka_lite import records
from aiokafka_lite.errors import CorruptRecordException, DecompressionLimitError
from aiokafka_lite.records import scratch
from aiokafka_lite.records._decode_py import MAX_HEADERS
from aiokafka_lite.records.codec import Codec
from aiokafka_lite.records.compression import compress, inflate
from tests.support.crafted import (
    batch,
    message,
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

pytestmark = pytest.mark.usefixtures("decoder")

MIB = 1024 * 1024


def assert_corrupt(content: bytes, *, ahead: int = 0) -> None:
    broken = record_set(content)
    if ahead:
        assert len(take(broken, 1000)) == ahead
    with pytest.raises(CorruptRecordException):
        take(broken, 1000)


# --- claims of magic 2 ---------------------------------------------------------------------------


@for_each([-1, -(2**31), 2**31 - 1, 3])
def test_impossible_count_is_refused_before_anything_is_allocated(count: int) -> None:
    payload = record(0) + record(1)
    tracemalloc.start()
    try:
        assert_corrupt(raw_batch(payload, count=count, last_offset_delta=1))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MIB


def test_fewer_records_than_declared_are_delivered_ahead_of_the_error() -> None:
    payload = record(0, value=varint(40) + bytes(40)) + record(1)
    assert_corrupt(raw_batch(payload, count=5), ahead=2)


def test_records_beyond_the_declared_count_are_corruption() -> None:
    assert_corrupt(raw_batch(record(0) + record(1), count=1, last_offset_delta=1))


def test_bytes_behind_the_last_record_are_corruption() -> None:
    assert_corrupt(raw_batch(record(0) + b"\0", count=1))
    assert_corrupt(raw_batch(record(0) + record(1) + b"\0", count=2), ahead=1)
    assert_corrupt(raw_batch(b"\0", count=0, last_offset_delta=0))


@for_each(
    [
        pytest.param(record(1, length=-1), id="negative length"),
        pytest.param(record(1, length=0), id="length of zero"),
        pytest.param(record(1, length=6), id="length too short"),
        pytest.param(record(1, length=9), id="length too long"),
        pytest.param(record(1, length=2**31 - 1), id="huge length"),
        pytest.param(record(1, tail=b"\0"), id="bytes behind the headers"),
        pytest.param(record(1, key=varint(-2)), id="negative key length"),
        pytest.param(record(1, key=varint(2**31 - 1)), id="huge key length"),
        pytest.param(record(1, value=varint(-(2**31))), id="negative value length"),
        pytest.param(record(1, value=varint(4) + b"v"), id="value longer than the record"),
        pytest.param(record(1, headers=varint(-1)), id="negative header count"),
        pytest.param(record(1, headers=varint(2**31 - 1)), id="huge header count"),
        pytest.param(record(1, headers=varint(1)), id="missing header"),
        pytest.param(record(1, headers=varint(1) + b"\x01\x01"), id="header without a name"),
        pytest.param(record(1, headers=varint(1) + b"\x02n"), id="header without a value"),
        pytest.param(record(1, headers=varint(1) + b"\x02n\x03"), id="header value of length -2"),
        pytest.param(record(1, headers=b""), id="no header count"),
        pytest.param(record(1, timestamp_delta=b"\xff" * 11), id="varlong of 11 bytes"),
        pytest.param(record(1, timestamp_delta=b"\xff" * 9 + b"\x02"), id="varlong of 65 bits"),
        pytest.param(record(1, key=b"\xff\xff\xff\xff\x1f"), id="varint of 33 bits"),
        pytest.param(record(1, key=b"\x80\x80\x80\x80\x80\x00"), id="varint of 6 bytes"),
        pytest.param(record(0), id="offset twice"),
        pytest.param(record(-1), id="offset going back"),
        pytest.param(record(2), id="offset beyond the batch"),
        pytest.param(record(2**31 - 1), id="offset far beyond the batch"),
    ]
)
def test_malformed_record_is_corruption_behind_the_good_one(bad: bytes) -> None:
    content = raw_batch(record(0) + bad, count=2)
    if len(record(0) + bad) < 14:
        assert_corrupt(content)
    else:
        assert_corrupt(content, ahead=1)


def test_longest_varints_are_read() -> None:
    minimum = varint(-(2**63))
    assert len(minimum) == 10
    (lowest,) = take_all(
        record_set(raw_batch(record(0, timestamp_delta=minimum), count=1, base_timestamp=0))
    )
    assert lowest.timestamp == -(2**63)
    padded = record(0, key=b"\x81\x80\x80\x80\x00")  # -1 in five bytes
    assert take_all(record_set(raw_batch(padded, count=1)))[0].key is None


@pytest.mark.parametrize(("base", "delta"), [(2**63 - 1, 1), (-(2**63), -1)])
def test_timestamp_that_overflows_is_corruption(base: int, delta: int) -> None:
    payload = record(0, timestamp_delta=varint(delta))
    assert_corrupt(raw_batch(payload, count=1, base_timestamp=base))


def test_header_name_that_is_not_text_does_not_hold_up_the_partition() -> None:
    payload = record(0, headers=varint(1) + b"\x04\xff\xfe\x01")
    (read,) = take_all(record_set(raw_batch(payload, count=1)))
    headers: object = read.headers
    assert headers == (("\ufffd\ufffd", None),)


@for_each([MAX_HEADERS - 1, MAX_HEADERS, MAX_HEADERS + 1])
def test_a_record_may_not_have_headers_by_the_million(count: int) -> None:
    content = raw_batch(record(0, headers=varint(count) + b"\0\1" * count), count=1)
    if count > MAX_HEADERS:
        assert_corrupt(content)
    else:
        assert len(take_all(record_set(content))[0].headers) == count


@for_each([Codec.NONE, Codec.ZSTD])
def test_one_take_returns_fewer_records_if_they_have_thousands_of_headers(codec: Codec) -> None:
    payload = b"".join(record(delta, headers=varint(640) + b"\0\1" * 640) for delta in range(9))
    content = raw_batch(compress(codec, payload), count=9, attributes=codec)
    content += batch(9, base_offset=9)
    decoded = record_set(content)
    counts = []
    while not decoded.is_exhausted:
        counts.append(len(decoded.take(25)))
    assert sum(counts) == 18
    assert counts[:2] == [3, 3]


def test_header_without_a_name_s_bytes_and_without_a_value_is_read() -> None:
    payload = record(0, headers=varint(1) + b"\x00\x01")
    (read,) = take_all(record_set(raw_batch(payload, count=1)))
    headers: object = read.headers
    assert headers == (("", None),)


def test_length_beyond_its_record_is_named_in_plain_python() -> None:
    content = raw_batch(record(0, key=varint(9) + b"k"), count=1)
    with (
        records.use_decoder("python"),
        pytest.raises(CorruptRecordException, match="of 9 bytes is longer than its record"),
    ):
        take_all(record_set(content))


@for_each(
    [
        raw_batch(record(0), count=1, base_offset=2**63 - 2),
        *(message(2**63 - 2, None, magic=magic) for magic in (0, 1)),
    ],
    ["batch", "magic 0", "magic 1"],
)
def test_last_offset_that_there_can_be_is_read(content: bytes) -> None:
    decoded = record_set(content)
    assert offsets(take_all(decoded)) == [2**63 - 2]
    assert decoded.next_offset == records.end_offset(memoryview(content)) == 2**63 - 1


@for_each([-1, 0, 13, 48, -(2**31)])
def test_impossible_batch_length_is_corruption(length: int) -> None:
    content = bytearray(batch(3, base_offset=3))
    content[8:12] = length.to_bytes(4, "big", signed=True)
    assert_corrupt(batch(3) + bytes(content), ahead=3)


@for_each(
    [
        message(3, None, magic=0),
        message(3, None, magic=1),
        raw_batch(b"", count=0, base_offset=2, last_offset_delta=1),
        message(3, gzip.compress(message(3, None, magic=0)), magic=0, attributes=1),
        message(3, gzip.compress(message(0, None, magic=1)), magic=1, attributes=1),
    ]
)
def test_the_smallest_batch_of_each_format_is_read(content: bytes) -> None:
    smallest = record_set(content)
    taken = take_all(smallest)
    assert offsets(taken) == [3] * (content[16] < 2)
    assert smallest.next_offset == records.end_offset(memoryview(content)) == 4


# --- claims of magic 0 and 1 ---------------------------------------------------------------------


def wrapper(inner: bytes | None, *, offset: int, magic: int) -> bytes:
    value = None if inner is None else gzip.compress(inner)
    return message(offset, value, magic=magic, attributes=1)


@for_each(
    [
        pytest.param(1, None, id="no value"),
        pytest.param(1, b"", id="no messages"),
        pytest.param(1, message(0, b"v", magic=1)[:-1], id="cut value"),
        pytest.param(1, message(0, b"v", magic=1)[:10], id="cut header"),
        pytest.param(0, message(0, b"v", magic=1), id="of another age"),
        pytest.param(1, message(0, b"v", magic=1, attributes=1), id="compressed again"),
        pytest.param(1, message(9, b"v", magic=1), id="offset beyond the wrapper"),
        pytest.param(1, message(-1, b"v", magic=1), id="negative offset"),
        pytest.param(
            1,
            message(-1, b"v", magic=1) + message(0, b"v", magic=1),
            id="negative offset of the first",
        ),
        pytest.param(0, message(2**63 - 1, b"v", magic=0), id="no offset after it"),
        pytest.param(1, message(0, b"v", magic=1, tail=b"x"), id="bytes behind the value"),
        pytest.param(0, b"\0" * 8 + b"\xff\xff\xff\xff" + b"\0" * 30, id="negative size"),
        pytest.param(0, b"\0" * 8 + b"\x7f\xff\xff\xff" + b"\0" * 30, id="huge size"),
        pytest.param(1, b"\0" * 11 + b"\x0e" + b"\0" * 4 + b"\x01" + b"\0" * 9, id="no timestamp"),
    ]
)
def test_malformed_wrapper_is_corruption(magic: int, inner: bytes | None) -> None:
    assert_corrupt(wrapper(inner, offset=5, magic=magic))


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_ahead_of_a_regression_are_delivered(magic: int) -> None:
    inner = b"".join(message(offset, b"v", magic=magic) for offset in (0, 1, 1, 2))
    assert_corrupt(wrapper(inner, offset=2, magic=magic), ahead=2)


@for_each(
    itertools.product(
        [0, 1], ["key", "value"], [b"\xff\xff\xff\xfe", b"\x7f\xff\xff\xff", b"\0\0\0\x03"]
    )
)
def test_impossible_lengths_in_a_message_are_corruption(magic: int, at: str, length: bytes) -> None:
    good = message(0, b"v", magic=magic)
    start = 18 + 8 * magic + (0 if at == "key" else 4)
    inner = good[:start] + length + good[start + 4 :]
    assert_corrupt(wrapper(inner, offset=0, magic=magic))


@for_each(["ffffffff", "ffffffff000000", "ffffffff00000009aa"])
def test_wrapper_whose_value_does_not_fit_is_corruption(body: str) -> None:
    start = message(0, None, magic=1, attributes=1)[:26]
    content = start + bytes.fromhex(body)
    content = content[:8] + (len(content) - 12).to_bytes(4, "big") + content[12:]
    broken = record_set(content, check_crcs=False)
    with pytest.raises(CorruptRecordException):
        take(broken, 1)


@pytest.mark.parametrize("magic", [0, 1])
def test_compressed_messages_have_the_offsets_the_broker_gave(magic: int) -> None:
    first = 100 if magic == 0 else 0  # absolute; relative since KIP-31
    inner = b"".join(
        message(first + delta, None if delta == 2 else b"v", magic=magic) for delta in (0, 2, 3)
    )
    taken = take_all(record_set(wrapper(inner, offset=103, magic=magic)), 2)
    assert [(read.offset, read.value) for read in taken] == [(100, b"v"), (102, None), (103, b"v")]


# --- compressed streams --------------------------------------------------------------------------

COMPRESSED = [codec for codec in Codec if codec]


@for_each(COMPRESSED)
def test_stream_cut_at_every_byte_is_corruption(codec: Codec) -> None:
    stream = compress(codec, record(0, value=varint(90) + bytes(range(90))))
    for cut in range(len(stream)):
        if codec is Codec.ZSTD and cut == 0:
            continue  # no bytes are no frames: caught as too few bytes for the count
        content = raw_batch(stream[:cut], count=1, attributes=codec)
        with pytest.raises(CorruptRecordException):
            take_all(record_set(content))


@for_each(itertools.product(COMPRESSED, COMPRESSED))
def test_wrong_codec_bit_is_corruption(codec: Codec, claimed: Codec) -> None:
    if codec is claimed:
        return
    stream = compress(codec, b"".join(record(number) for number in range(50)))
    content = raw_batch(stream, count=50, attributes=claimed)
    with pytest.raises(CorruptRecordException):
        take_all(record_set(content))


# Of LZ4, Kafka itself reads one frame only, and so do some versions of cramjam.
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_stream_of_several_frames_is_read_whole(codec: Codec) -> None:
    small, large = record(0), record(1, value=varint(100_000) + bytes(100_000))
    stream = compress(codec, small) + compress(codec, large)
    taken = take_all(record_set(raw_batch(stream, count=2, attributes=codec)))
    assert [len(read.value or b"") for read in taken] == [1, 100_000]


def test_raw_snappy_is_read() -> None:
    stream = bytes(cramjam.snappy.compress_raw(record(0) + record(1)))
    assert offsets(take_all(record_set(raw_batch(stream, count=2, attributes=2)))) == [0, 1]


def test_lz4_frame_that_tells_its_size_is_read() -> None:
    plain = record(0, value=varint(70_000) + bytes(70_000))
    block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
    descriptor = b"\x68\x70" + len(plain).to_bytes(8, "little")
    frame = (
        b"\x04\x22\x4d\x18"
        + descriptor
        + b"?"
        + len(block).to_bytes(4, "little")
        + block
        + bytes(4)
    )
    from aiokafka_lite.records.lz4_frame import with_correct_checksum

    mended = with_correct_checksum(memoryview(frame))
    assert offsets(take_all(record_set(raw_batch(bytes(mended), count=1, attributes=3)))) == [0]


@for_each(
    [
        pytest.param(b"\x82SNAPPY\0", id="cut header"),
        pytest.param(b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01\0\0", id="cut length"),
        pytest.param(b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01\xff\xff\xff\xff", id="negative length"),
        pytest.param(
            b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01\0\0\0\x09abc", id="block longer than stream"
        ),
        pytest.param(b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01\0\0\0\x02\x05\x00", id="claim untrue"),
        pytest.param(b"\xff\xff\xff\x01abc", id="raw claim no stream can keep"),
        pytest.param(b"\xff\xff\xff\xff\xff\xff", id="raw claim no number"),
    ]
)
def test_lying_snappy_stream_is_corruption(stream: bytes) -> None:
    with pytest.raises(CorruptRecordException):
        take_all(record_set(raw_batch(stream, count=1, attributes=2)))


def xerial(*blocks: bytes, lengths: Sequence[int] = ()) -> bytes:
    """A stream of snappy-java's, whose lengths may lie."""
    stream = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01"
    for block, length in zip(blocks, lengths or [len(block) for block in blocks], strict=True):
        stream += length.to_bytes(4, "big") + block
    return stream


def snappy_blocks(*sizes: int) -> tuple[list[bytes], bytes]:
    """Blocks that hold so many bytes each, and what they hold together."""
    plain = random.Random(7).randbytes(sum(sizes))
    ends = list(itertools.accumulate(sizes))
    parts = [plain[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    return [bytes(cramjam.snappy.compress_raw(part)) for part in parts], plain


@for_each([[1], [32_768, 1], [1, 32_769, 3], [0, 5], [5, 0, 0, 5], [5, 0], [0], [100] * 50])
def test_xerial_blocks_of_any_size_are_put_together(sizes: list[int]) -> None:
    blocks, plain = snappy_blocks(*sizes)
    assert inflate(Codec.SNAPPY, memoryview(xerial(*blocks)), 10 * MIB) == plain


@for_each(itertools.product([0, 1, 2], [-1, 1, -4, 4, 1000, 2**31 - 200]))
def test_a_xerial_block_whose_length_lies_is_corruption(place: int, lie: int) -> None:
    blocks, _ = snappy_blocks(100, 120, 140)
    lengths = [len(block) for block in blocks]
    lengths[place] += lie
    with pytest.raises(CorruptRecordException):
        inflate(Codec.SNAPPY, memoryview(xerial(*blocks, lengths=lengths)), 10 * MIB)


def test_a_xerial_block_that_ends_behind_its_stream_is_not_read() -> None:
    blocks, _ = snappy_blocks(100, 120)
    whole = xerial(*blocks)
    for missing in (1, 2, len(blocks[1])):
        with pytest.raises(CorruptRecordException, match="is longer than its stream"):
            inflate(Codec.SNAPPY, memoryview(whole)[:-missing], 10 * MIB)
    for more in (b"\0", b"\0\0\0"):
        with pytest.raises(CorruptRecordException, match="ends inside a length field"):
            inflate(Codec.SNAPPY, memoryview(whole + more), 10 * MIB)


def test_xerial_blocks_that_together_exceed_the_cap_are_refused_before_any_is_read() -> None:
    blocks, plain = snappy_blocks(60, 60, 60)
    broken = [*blocks[:2], blocks[2][:-1] + b"\xff"]
    assert inflate(Codec.SNAPPY, memoryview(xerial(*blocks)), 180) == plain
    with pytest.raises(DecompressionLimitError):
        inflate(Codec.SNAPPY, memoryview(xerial(*broken)), 179)


def test_xerial_blocks_are_written_with_their_lengths() -> None:
    plain = random.Random(8).randbytes(3 * 32_768 + 5)
    stream = compress(Codec.SNAPPY, plain)
    parts = [plain[at : at + 32_768] for at in range(0, len(plain), 32_768)]
    assert stream == xerial(*(bytes(cramjam.snappy.compress_raw(part)) for part in parts))


# --- bombs ---------------------------------------------------------------------------------------

BOMB_BYTES = (64 if LONG else 16) * MIB
CAP = 2 * MIB


def nested_xerial() -> bytes:
    """Blocks of 64 KiB of zeros that compress 20 to 1, in a stream that is compressed once more."""
    return compress(Codec.SNAPPY, compress(Codec.SNAPPY, bytes(BOMB_BYTES)))


@pytest.fixture(scope="module", params=COMPRESSED, ids=lambda codec: codec.name)
def bomb(request: pytest.FixtureRequest) -> bytes:
    """A batch of one large record."""
    codec: Codec = request.param
    large = record(0, value=varint(BOMB_BYTES) + bytes(BOMB_BYTES))
    return raw_batch(compress(codec, large), count=1, base_offset=3, attributes=codec)


def test_bomb_costs_its_cap_and_not_its_claim(bomb: bytes) -> None:
    scratch._kept.clear()
    armed = record_set(batch(3) + bomb, max_batch_bytes=CAP)
    assert len(armed.take(3)) == 3
    tracemalloc.start()
    try:
        with pytest.raises(DecompressionLimitError, match=str(CAP)) as caught:
            take(armed, 1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.offset == 3
    assert peak < 2 * CAP


def test_a_bomb_is_left_to_inflate_unless_take_may_block(bomb: bytes) -> None:
    waiting = record_set(batch(3) + bomb, max_batch_bytes=BOMB_BYTES + 100)
    assert len(waiting.take(3)) == 3
    for _ in range(2):
        assert waiting.take(1) == []
        assert waiting.inflated_total_bytes == 0
        assert waiting.inflate_estimate_s >= 1e-3
        assert not waiting.is_exhausted
    waiting.inflate()
    assert offsets(waiting.take(1)) == [3]
    blocking = record_set(bomb, max_batch_bytes=BOMB_BYTES + 100, may_block=True)
    assert offsets(blocking.take(1)) == [3]


@for_each(COMPRESSED)
def test_one_take_decompresses_few_batches_without_records_to_return(codec: Codec) -> None:
    packed = compress(codec, record(0, value=varint(3 * MIB) + bytes(3 * MIB)))
    overlapping = [
        raw_batch(packed, count=1, last_offset_delta=99 + number, attributes=codec)
        for number in range(5)
    ]
    passing = record_set(b"".join(overlapping), fetch_offset=50, max_batch_bytes=4 * MIB)
    for number in range(1, 5):
        assert passing.take(1) == []
        assert not passing.is_exhausted
        assert passing.inflated_total_bytes < (3 * number + 1) * MIB
    assert take(passing, 1) == []
    assert passing.next_offset == 104


def test_zstd_claim_that_no_frame_keeps_is_corruption() -> None:
    claim = b"\x28\xb5\x2f\xfd\xe0" + (2**40).to_bytes(8, "little") + bytes(20)
    assert_corrupt(raw_batch(claim, count=1, attributes=4))


def test_lz4_claim_that_no_frame_can_keep_is_corruption() -> None:
    claim = b"\x04\x22\x4d\x18\x68\x70" + (2**20).to_bytes(8, "little") + bytes(20)
    assert_corrupt(raw_batch(claim, count=1, attributes=3))


def zstd_claim(size: int, size_bytes: int, *, dictionary_bytes: int = 0, window: bool) -> bytes:
    """A frame whose header says that so much is in it, in a field of so many bytes."""
    flags = {1: 0, 2: 1, 4: 2, 8: 3}[size_bytes] << 6 | (0 if window else 0x20)
    flags |= {0: 0, 1: 1, 2: 2, 4: 3}[dictionary_bytes]
    field = (size - 256 if size_bytes == 2 else size).to_bytes(size_bytes, "little")
    header = bytes([flags]) + b"\x50" * window + bytes(dictionary_bytes) + field
    return b"\x28\xb5\x2f\xfd" + header + b"\xff" * 8


def lz4_claim(size: int) -> bytes:
    return b"\x04\x22\x4d\x18\x68\x70" + size.to_bytes(8, "little") + b"?"


GZIPPED = gzip.compress(b"x" * 100, mtime=0)[:-4]
MOST_GZIPPED = 1032 * (len(GZIPPED) + 4)
# The largest that can be true, where a codec has one.
CLAIMS: dict[str, tuple[Codec, bytes, int]] = {
    "zstd, 1 byte": (Codec.ZSTD, zstd_claim(200, 1, window=False), 200),
    "zstd, 2 bytes": (Codec.ZSTD, zstd_claim(300, 2, window=True), 300),
    "zstd, dictionary 1": (Codec.ZSTD, zstd_claim(300, 2, dictionary_bytes=1, window=False), 300),
    "zstd, 4 bytes": (Codec.ZSTD, zstd_claim(70_000, 4, dictionary_bytes=2, window=True), 70_000),
    "zstd, 8 bytes": (Codec.ZSTD, zstd_claim(70_000, 8, dictionary_bytes=4, window=False), 70_000),
    "lz4": (Codec.LZ4, lz4_claim(255 * 15), 255 * 15),
    "snappy": (Codec.SNAPPY, b"\x6e" + b"\xff" * 4, 22 * 5),
    "gzip": (Codec.GZIP, GZIPPED + MOST_GZIPPED.to_bytes(4, "little"), MOST_GZIPPED),
}


@for_each(CLAIMS)
def test_size_that_a_stream_tells_is_compared_with_the_cap_before_it_is_read(name: str) -> None:
    codec, stream, size = CLAIMS[name]
    with pytest.raises(DecompressionLimitError):
        inflate(codec, memoryview(stream), size - 1)
    with pytest.raises(CorruptRecordException):
        inflate(codec, memoryview(stream), size)


@for_each(
    [
        (Codec.LZ4, lz4_claim(255 * 15 + 1), 255 * 15),
        (Codec.SNAPPY, b"\x6f" + b"\xff" * 4, 22 * 5),
        (Codec.GZIP, GZIPPED + (MOST_GZIPPED + 1).to_bytes(4, "little"), MOST_GZIPPED),
    ]
)
def test_size_that_no_stream_of_that_length_can_have_is_not_believed(
    codec: Codec, stream: bytes, cap: int
) -> None:
    with pytest.raises(CorruptRecordException):
        inflate(codec, memoryview(stream), cap)


def test_gzip_trailer_that_lies_is_not_believed() -> None:
    stream = bytearray(gzip.compress(record(0)))
    stream[-4:] = b"\xff\xff\xff\x7f"
    tracemalloc.start()
    try:
        assert_corrupt(raw_batch(bytes(stream), count=1, attributes=1))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MIB


def test_snappy_inside_snappy_is_decompressed_once() -> None:
    content = raw_batch(nested_xerial(), count=1, attributes=2)
    with pytest.raises((CorruptRecordException, DecompressionLimitError)):
        take(record_set(content, max_batch_bytes=CAP), 1)


@for_each(COMPRESSED)
def test_batch_of_exactly_the_cap_is_allowed(codec: Codec) -> None:
    plain = bytes(100_000)
    stream = memoryview(compress(codec, plain))
    assert inflate(codec, stream, 100_000) == plain
    with pytest.raises(DecompressionLimitError):
        inflate(codec, stream, 99_999)


def test_few_buffers_are_kept_and_lent_again_where_they_are_large_enough() -> None:
    scratch._kept.clear()
    lent = [scratch.lend(10) for _ in range(6)]
    for buffer in lent:
        scratch.give_back(memoryview(buffer))
    assert scratch._kept == lent[:4]
    assert scratch.lend(10) is lent[3]
    assert len(scratch.lend(11)) == 11
    scratch._kept.clear()
    scratch.give_back(memoryview(largest := bytearray(scratch.LARGEST_KEPT_BYTES)))
    assert scratch._kept.pop() is largest


@for_each([Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_the_buffer_of_a_broken_stream_is_kept(codec: Codec) -> None:
    scratch._kept[:] = [buffer := bytearray(MIB)]
    with pytest.raises(CorruptRecordException):
        inflate(codec, memoryview(b"of no codec at all"), 10_000)
    assert [id(kept) for kept in scratch._kept] == [id(buffer)]


def test_nothing_is_kept_of_a_bombs_buffer() -> None:
    scratch._kept.clear()
    large = records.build_batch([(0, None, bytes(6 * MIB), ())], codec="zstd")
    assert len(take(record_set(large, max_batch_bytes=8 * MIB), 1)) == 1
    assert scratch._kept == []
