"""The four compression codecs, into a buffer that is capped or a piece at a time.

A compressed batch is a stranger's claim about how much memory to use. Every codec writes into a
buffer of ours that grows up to the cap and no further, so that a decompression bomb costs its cap
and not its claim. What would not fit is decompressed as a stream, for which other libraries are
needed: cramjam's decompress whole frames. All release the GIL: they may run in an executor thread.

Imported when the first compressed batch comes: cramjam is a large part of what importing costs.
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

__all__ = ["compress", "inflate", "inflate_stream"]


# What one compressed byte can at most become. A claimed size beyond it is a lie that can be told
# without decompressing. (zstd's run-length blocks: 128 KiB from 4 bytes, so no bound worth having.)
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
# Bytes that go into a stream and come out of it at a time.
_FED_BYTES: Final = 64 * 1024
_INFLATED_BYTES: Final = 256 * 1024

_int32 = struct.Struct(">i")


def inflate(codec: Codec, view: memoryview, cap: int, *, magic: int = 2) -> memoryview:
    """Decompress the records of one batch and return them in a buffer lent from the scratch pool.

    Args:
        codec: Any but NONE.
        view: The compressed bytes, without the batch's header.
        cap: The most bytes that may come out.
        magic: Of the batch: producers of magic 0 and 1 wrote another LZ4 header checksum.

    Raises:
        CorruptRecordException: The bytes are not of that codec, or they are cut short.
        DecompressionLimitError: More than `cap` bytes would come out.
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
    """Return an iterator that decompresses the records of a batch of magic 2, some at a time.

    Each of its items is valid until the next, and some hundred KiB long; a block of LZ4 or snappy
    has up to 4 MiB. The iterator raises CorruptRecordException where `inflate` does.

    Returns:
        None if that cannot be done: snappy without blocks, LZ4 with blocks that need others.
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
    """Compress the records of one batch as Kafka's own producer frames them."""
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
    """Decompress into a buffer that starts at `guess` bytes (0: unknown) and grows up to the cap.

    The stream is decompressed anew after each growth. With the pool's buffers warmed up the first
    one is nearly always large enough; growing by a factor bounds what a liar can cost.
    """
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
    """Return the size in the trailer if it can be true, else 0. It is of the last member only."""
    if len(view) < 18:
        return 0
    size = int.from_bytes(view[-4:], "little")
    return size if size <= _GZIP_MAX_RATIO * len(view) else 0


def _zstd_size(view: memoryview) -> int:
    """Return the content size of the first frame's header, 0 if it tells none (RFC 8878, 3.1.1)."""
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
