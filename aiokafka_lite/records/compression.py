"""The four compression codecs, with a limited buffer or in pieces.

A compressed batch may claim any size. Each codec writes into a buffer that grows up to the limit,
so a decompression bomb costs at most the limit. Larger batches are decompressed as a stream, by
other libraries than cramjam. All codecs release the GIL, so they may run in an executor thread.

This module is imported with the first compressed batch, because importing cramjam is slow.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Final

import cramjam

from aiokafka_lite import _compat
from aiokafka_lite.errors import CorruptRecordException, DecompressionLimitError
from aiokafka_lite.records import lz4_frame
from aiokafka_lite.records.codec import Codec
from aiokafka_lite.records.scratch import give_back, lend

# The most bytes of one compressed byte. A larger claimed size is false. zstd has no useful bound,
# because its run-length blocks turn 4 bytes into 128 KiB.
_GZIP_MAX_RATIO: Final = 1032
_SNAPPY_MAX_RATIO: Final = 22

_FIRST_GUESS_RATIO: Final = 4
_SMALLEST_BUFFER: Final = 16 * 1024
_GROWTH: Final = 4

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = struct.Struct(">8sii")
_XERIAL_BLOCK_BYTES: Final = 32 * 1024  # what snappy-java writes
_LARGEST_STREAMED_BLOCK: Final = 4 * 1024 * 1024

_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"

_WINDOW_BITS_OF_GZIP: Final = 31
# The input and output of a stream at a time, in bytes.
_FED_BYTES: Final = 64 * 1024
_INFLATED_BYTES: Final = 256 * 1024

_int32 = struct.Struct(">i")


def inflate(codec: Codec, view: memoryview, cap: int, *, magic: int = 2) -> memoryview:
    """Decompress the records of one batch into a buffer of the scratch pool, and return them.

    `cap` limits the decompressed bytes (DecompressionLimitError). Magic 0 and 1 have another LZ4
    header checksum.
    """
    if codec is Codec.GZIP:
        guess = _refuse_claim_above(cap, _gzip_size(view))
        return _inflate_growing(cramjam.gzip.decompress_into, view, guess, cap)
    if codec is Codec.SNAPPY:
        return _inflate_snappy(view, cap)
    if codec is Codec.LZ4:
        if magic < 2:
            view = lz4_frame.with_correct_checksum(view)
        guess = _refuse_claim_above(cap, lz4_frame.content_size(view))
        if (inflated := _inflate_plain_lz4(view, cap)) is not None:
            return inflated
        return _inflate_growing(cramjam.lz4.decompress_into, view, guess, cap)
    if codec is Codec.ZSTD:
        guess = _refuse_claim_above(cap, _zstd_size(view))
        return _inflate_growing(cramjam.zstd.decompress_into, view, guess, cap)
    raise ValueError(f"cannot decompress a batch with codec {codec.name.lower()}")


def inflate_stream(codec: Codec, view: memoryview) -> Iterator[bytes | memoryview] | None:
    """Return an iterator of the pieces of a batch of magic 2, or None if it has no usable blocks.

    An item is valid until the next. It has some hundred KiB, or a block of at most 4 MiB.
    """
    if codec is Codec.GZIP:
        return _gzip_stream(view)
    if codec is Codec.SNAPPY:
        return _snappy_stream(view)
    if codec is Codec.LZ4:
        return lz4_frame.blocks(view)
    if codec is Codec.ZSTD:
        return _zstd_stream(view)
    raise ValueError(f"cannot decompress a batch with codec {codec.name.lower()}")


def compress(codec: Codec, records: bytes) -> bytes:
    """Compress the records of one batch with the framing of Kafka's producer."""
    if codec is Codec.NONE:
        return records
    if codec is Codec.GZIP:
        return bytes(cramjam.gzip.compress(records))
    if codec is Codec.SNAPPY:
        return _compress_xerial(records)
    if codec is Codec.LZ4:
        return lz4_frame.compress_frame(records)
    if codec is Codec.ZSTD:
        return bytes(cramjam.zstd.compress(records))
    raise ValueError(f"compression with codec {codec.name.lower()} is not supported")


def _refuse_claim_above(cap: int, claim: int) -> int:
    if claim > cap:
        raise _over(cap)
    return claim


def _over(cap: int) -> DecompressionLimitError:
    return DecompressionLimitError(
        f"a batch has more than {cap} bytes after decompression. The limit protects against "
        "malicious producers. If you trust the producer, raise the consumer's max_batch_bytes"
    )


def _inflate_plain_lz4(view: memoryview, cap: int) -> memoryview | None:
    room = memoryview(lend(min(max(_FIRST_GUESS_RATIO * len(view), _SMALLEST_BUFFER), cap)))[:cap]
    size = lz4_frame.inflate_plain(view, room)
    if size is None:
        give_back(room)
        return None
    return room[:size]


def _inflate_growing(
    decompress_into: Callable[[memoryview, memoryview], int],
    view: memoryview,
    guess: int,
    cap: int,
) -> memoryview:
    """Decompress into a buffer that grows from `guess` bytes (0: unknown), and begin again then."""
    size = guess or max(_FIRST_GUESS_RATIO * len(view), _SMALLEST_BUFFER)
    while True:
        room = memoryview(lend(min(size, cap)))[:cap]
        try:
            return room[: decompress_into(view, room)]
        except cramjam.DecompressionError as error:
            give_back(room)
            # Rust's own words for a full buffer; they are all that tells it from broken input.
            if "failed to write whole buffer" not in str(error):
                raise CorruptRecordException(f"a batch cannot be decompressed: {error}") from error
            if len(room) >= cap:
                raise _over(cap) from error
            size = _GROWTH * len(room)


# --- sizes told by the formats -------------------------------------------------------------------


def _gzip_size(view: memoryview) -> int:
    """Return the size in the trailer of the last member, 0 if it is impossible."""
    if len(view) < 18:
        return 0
    size = int.from_bytes(view[-4:], "little")
    return size if size <= _GZIP_MAX_RATIO * len(view) else 0


def _zstd_size(view: memoryview) -> int:
    """Return the content size in the first frame's header, or 0 (RFC 8878, 3.1.1)."""
    if len(view) < 6 or bytes(view[:4]) != _ZSTD_MAGIC:
        return 0
    descriptor = view[4]
    is_single_segment = bool(descriptor & 0x20)
    size_flag = descriptor >> 6
    size_bytes = (1 if is_single_segment else 0, 2, 4, 8)[size_flag]
    start = 5 + (not is_single_segment) + (0, 1, 2, 4)[descriptor & 0x03]
    size = int.from_bytes(view[start : start + size_bytes], "little")
    return size + 256 if size_bytes == 2 else size


# --- streams -------------------------------------------------------------------------------------


def _gzip_stream(view: memoryview) -> Iterator[bytes]:
    pos = 0
    while pos < len(view):
        member = zlib.decompressobj(_WINDOW_BITS_OF_GZIP)
        fed: memoryview | bytes = b""
        while not member.eof:
            if not fed:
                fed = view[pos : pos + _FED_BYTES]
                pos += len(fed)
            try:
                inflated = member.decompress(fed, _INFLATED_BYTES)
            except zlib.error as error:
                raise CorruptRecordException(f"a batch cannot be decompressed: {error}") from error
            if inflated:
                yield inflated
            elif not fed and not member.eof:
                raise CorruptRecordException("a gzip stream in a batch is incomplete")
            fed = member.unconsumed_tail
        pos -= len(member.unused_data)


def _zstd_stream(view: memoryview) -> Iterator[bytes]:
    zstd = _compat.zstd
    pos = 0
    while pos < len(view):
        frame = zstd.ZstdDecompressor()
        while not frame.eof:
            fed = view[pos : pos + _FED_BYTES if frame.needs_input else pos]
            pos += len(fed)
            if frame.needs_input and not fed:
                raise CorruptRecordException("a zstd frame in a batch is incomplete")
            try:
                inflated = frame.decompress(fed, _INFLATED_BYTES)
            except zstd.ZstdError as error:
                raise CorruptRecordException(f"a batch cannot be decompressed: {error}") from error
            if inflated:
                yield inflated
        pos -= len(frame.unused_data)


# --- snappy --------------------------------------------------------------------------------------


def _inflate_snappy(view: memoryview, cap: int) -> memoryview:
    is_xerial = bytes(view[:8]) == _XERIAL_MAGIC
    blocks = _xerial_blocks(view) if is_xerial else [view]
    sizes = [_snappy_size(block) for block in blocks]
    total = _refuse_claim_above(cap, sum(sizes))
    room = memoryview(lend(total))
    end = 0
    try:
        for block, size in zip(blocks, sizes, strict=True):
            written = cramjam.snappy.decompress_raw_into(block, room[end : end + size])
            end += written
    except cramjam.DecompressionError as error:
        raise CorruptRecordException(f"a batch cannot be decompressed: {error}") from error
    return room[:end]


def _snappy_stream(view: memoryview) -> Iterator[bytes] | None:
    if bytes(view[:8]) != _XERIAL_MAGIC:
        return None
    blocks = _xerial_blocks(view)
    if any(_snappy_size(block) > _LARGEST_STREAMED_BLOCK for block in blocks):
        return None
    return _inflated_blocks(blocks)


def _inflated_blocks(blocks: list[memoryview]) -> Iterator[bytes]:
    for block in blocks:
        try:
            inflated = bytes(cramjam.snappy.decompress_raw(block))
        except cramjam.DecompressionError as error:
            raise CorruptRecordException(f"a batch cannot be decompressed: {error}") from error
        if inflated:
            yield inflated


def _snappy_size(block: memoryview) -> int:
    """Return the size a raw block claims, after checking that it could be true."""
    try:
        size = int(cramjam.snappy.decompress_raw_len(block))
    except cramjam.DecompressionError as error:
        raise CorruptRecordException(f"a batch cannot be decompressed: {error}") from error
    if size > _SNAPPY_MAX_RATIO * len(block):
        raise CorruptRecordException(
            f"a snappy block of {len(block)} bytes cannot decompress to {size} bytes, the size in "
            "its header"
        )
    return size


def _xerial_blocks(view: memoryview) -> list[memoryview]:
    """Split snappy-java's stream: a header of 16 bytes, then blocks after their lengths."""
    if len(view) < _XERIAL_HEADER.size:
        raise CorruptRecordException("a snappy stream is incomplete: it ends inside its header")
    blocks: list[memoryview] = []
    pos = _XERIAL_HEADER.size
    while pos < len(view):
        if len(view) - pos < 4:
            raise CorruptRecordException(
                "a snappy stream is incomplete: it ends inside a length field"
            )
        (size,) = _int32.unpack_from(view, pos)
        pos += 4
        if size < 0 or size > len(view) - pos:
            raise CorruptRecordException(
                f"a snappy block of {size} bytes is longer than its stream"
            )
        blocks.append(view[pos : pos + size])
        pos += size
    return blocks


def _compress_xerial(records: bytes) -> bytes:
    parts = [_XERIAL_HEADER.pack(_XERIAL_MAGIC, 1, 1)]
    view = memoryview(records)
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_int32.pack(len(block)), block)
    return b"".join(parts)
