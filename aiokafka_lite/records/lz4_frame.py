"""LZ4 frames in Kafka's variant: independent blocks, and an old header checksum.

Kafka's Java client rejects linked blocks, the default of cramjam. Producers of magic 0 included the
magic number in the header checksum (KAFKA-3160), which other decoders reject.

Format: https://github.com/lz4/lz4/blob/dev/doc/lz4_Frame_format.md
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Final

import cramjam

from aiokafka_lite.errors import CorruptRecordException

_MAGIC: Final = b"\x04\x22\x4d\x18"
# Version 1, independent blocks, no options: the frames of Kafka's and librdkafka's producers.
_PLAIN_FLAGS: Final = 0x60
_HEADER_BYTES: Final = 7
_BLOCK_SIZES: Final = {0x40: 1 << 16, 0x50: 1 << 18, 0x60: 1 << 20, 0x70: 1 << 22}
_IS_STORED: Final = 1 << 31

_MAX_RATIO: Final = 255  # of an LZ4 block: one byte more of match length for each 255 bytes

_VERSION: Final = 0x40
_IS_INDEPENDENT: Final = 0x20
_HAS_BLOCK_CHECKSUMS: Final = 0x10
_HAS_CONTENT_SIZE: Final = 0x08
_HAS_CONTENT_CHECKSUM: Final = 0x04
_HAS_DICTIONARY_ID: Final = 0x01
_FLAGS_OF_BLOCKS: Final = 0xC0 | _IS_INDEPENDENT | _HAS_BLOCK_CHECKSUMS | _HAS_DICTIONARY_ID
_END: Final = bytes(4)


def compress_frame(records: bytes) -> bytes:
    """Compress into one frame that Kafka's Java client reads."""
    compressor = cramjam.lz4.Compressor(content_checksum=False, block_linked=False)
    compressor.compress(records)
    return bytes(compressor.finish())


def content_size(view: memoryview) -> int:
    """Return the size in the first frame's header, or 0. Impossible sizes raise."""
    if len(view) < 15 or bytes(view[:4]) != _MAGIC or not view[4] & _HAS_CONTENT_SIZE:
        return 0
    size = int.from_bytes(view[6:14], "little")
    if size > _MAX_RATIO * len(view):
        raise CorruptRecordException(
            f"an LZ4 frame of {len(view)} bytes cannot decompress to {size} bytes, the size in its "
            "header"
        )
    return size


def inflate_plain(view: memoryview, room: memoryview) -> int | None:
    """Decompress a frame with the usual flags block by block, which is faster than as a stream.

    Returns the decompressed size, or None if decompressing it as a stream finds the reason.
    """
    if len(view) < _HEADER_BYTES or bytes(view[:5]) != _PLAIN_START:
        return None
    most = _BLOCK_SIZES.get(view[5])
    if most is None or view[6] != _header_checksum(bytes(view[4:6])):
        return None
    pos, end = _HEADER_BYTES, 0
    try:
        while True:
            size = int.from_bytes(view[pos : pos + 4], "little")
            if not size:
                return end if pos + 4 == len(view) else None
            pos += 4
            stored = size & ~_IS_STORED
            if stored > min(most, len(view) - pos):
                return None
            if size & _IS_STORED:
                room[end : end + stored] = view[pos : pos + stored]
                end += stored
            else:
                block = room[end : end + most]
                compressed = view[pos : pos + stored]
                end += cramjam.lz4.decompress_block_into(compressed, block, len(block))
            pos += stored
    except (cramjam.DecompressionError, ValueError):
        return None


def blocks(view: memoryview) -> Iterator[memoryview] | None:
    """Return an iterator that decompresses frames block by block, or None for linked blocks.

    An item is valid until the next. The checksum of a frame's content is not checked.
    """
    return None if _header_of_block(view) is None else _blocks(view)


def _blocks(view: memoryview) -> Iterator[memoryview]:
    while view:
        header = _header_of_block(view)
        if header is None:
            raise CorruptRecordException("the bytes after an LZ4 frame are not another LZ4 frame")
        room = memoryview(bytearray(_BLOCK_SIZES[header[5]]))
        checksum_bytes = 4 if header[4] & _HAS_BLOCK_CHECKSUMS else 0
        pos = _end_of_descriptor(view) + 1
        while size := int.from_bytes(view[pos : pos + 4], "little"):
            end = pos + 4 + (size & ~_IS_STORED) + checksum_bytes
            if end > len(view):
                break
            # In a frame of its own, so that cramjam checks it.
            frame = b"".join((header, view[pos:end], _END))
            try:
                inflated_bytes = cramjam.lz4.decompress_into(frame, room)
            except cramjam.DecompressionError as error:
                raise CorruptRecordException(f"a batch cannot be decompressed: {error}") from error
            if inflated_bytes:
                yield room[:inflated_bytes]
            pos = end
        pos += 8 if view[4] & _HAS_CONTENT_CHECKSUM else 4
        if size or pos > len(view):
            raise CorruptRecordException("an LZ4 frame in a batch is incomplete")
        view = view[pos:]


def _header_of_block(view: memoryview) -> bytes | None:
    """Return a header for a frame with a single block, or None if the blocks are linked."""
    end = _end_of_descriptor(view)
    if not end or view[end] != _header_checksum(bytes(view[4:end])) or view[5] not in _BLOCK_SIZES:
        return None
    descriptor = bytes((view[4] & _FLAGS_OF_BLOCKS, view[5]))
    if descriptor[0] & ~_HAS_BLOCK_CHECKSUMS != _VERSION | _IS_INDEPENDENT:
        return None
    return _MAGIC + descriptor + bytes((_header_checksum(descriptor),))


def _end_of_descriptor(view: memoryview) -> int:
    """Return the position of the header checksum, 0 if there is no frame."""
    if len(view) < _HEADER_BYTES or bytes(view[:4]) != _MAGIC:
        return 0
    end = _HEADER_BYTES - 1
    if view[4] & _HAS_CONTENT_SIZE:
        end += 8
    if view[4] & _HAS_DICTIONARY_ID:
        end += 4
    return end if end < len(view) else 0


def with_correct_checksum(view: memoryview) -> memoryview:
    end = _end_of_descriptor(view)
    if not end:
        return view
    checksum = _header_checksum(bytes(view[4:end]))
    if view[end] == checksum:
        return view
    fixed = bytearray(view)
    fixed[end] = checksum
    return memoryview(fixed)


_PLAIN_START: Final = _MAGIC + bytes([_PLAIN_FLAGS])


@cache
def _header_checksum(descriptor: bytes) -> int:
    return _xxh32_of_few(descriptor) >> 8 & 0xFF


_PRIME_2: Final = 0x85EBCA77
_PRIME_3: Final = 0xC2B2AE3D
_PRIME_4: Final = 0x27D4EB2F
_PRIME_5: Final = 0x165667B1


def _xxh32_of_few(text: bytes) -> int:
    """Return xxHash32 with seed 0 of fewer than 16 bytes, the limit of frame descriptors."""
    mask = 0xFFFFFFFF
    state = _PRIME_5 + len(text)
    pos = 0
    while len(text) - pos >= 4:
        state = state + int.from_bytes(text[pos : pos + 4], "little") * _PRIME_3 & mask
        state = (state << 17 | state >> 15) * _PRIME_4 & mask
        pos += 4
    for byte in text[pos:]:
        state = state + byte * _PRIME_5 & mask
        state = (state << 11 | state >> 21) * 0x9E3779B1 & mask
    state = (state ^ state >> 15) * _PRIME_2 & mask
    state = (state ^ state >> 13) * _PRIME_3 & mask
    return state ^ state >> 16
