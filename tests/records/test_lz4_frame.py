"""LZ4 frames taken apart into blocks: what the stream's decoder makes of them, or left to it."""

from __future__ import annotations

import os

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokafka_lite.errors import KafkaError
from aiokafka_lite.records.codec import Codec
from aiokafka_lite.records.compression import inflate
from aiokafka_lite.records.lz4_frame import (
    compress_frame,
    inflate_plain,
    with_correct_checksum,
)
from tests.support.for_each import for_each

CAP = 1 << 20
CONTENTS = {
    "empty": b"",
    "small": b"carrier" * 20,
    "several blocks": bytes(range(256)) * 1500,
    "stored blocks": os.urandom(300_000),
    "mixed": b"x" * 70_000 + os.urandom(70_000) + b"y" * 70_000,
}


def plain_frame(content: bytes) -> bytes:
    """A frame as librdkafka and Kafka's Java producer write it, with blocks of up to 64 KiB."""
    frame = b"\x04\x22\x4d\x18\x60\x40\x82"
    for start in range(0, len(content), 1 << 16):
        block = content[start : start + (1 << 16)]
        compressed = bytes(cramjam.lz4.compress_block(block, store_size=False))
        if len(compressed) < len(block):
            frame += len(compressed).to_bytes(4, "little") + compressed
        else:
            frame += (len(block) | 1 << 31).to_bytes(4, "little") + block
    return frame + bytes(4)


def blocks(frame: bytes) -> bytes | None:
    room = memoryview(bytearray(CAP))
    size = inflate_plain(memoryview(frame), room)
    return None if size is None else bytes(room[:size])


def stream(frame: bytes) -> bytes | None:
    room = bytearray(CAP)
    try:
        return bytes(room[: cramjam.lz4.decompress_into(frame, room)])
    except cramjam.DecompressionError:
        return None


@for_each(CONTENTS)
def test_frames_of_producers_are_taken_apart(name: str) -> None:
    content = CONTENTS[name]
    frame = plain_frame(content)
    assert stream(frame) == content
    assert blocks(frame) == content
    assert bytes(inflate(Codec.LZ4, memoryview(frame), CAP)) == content


def test_other_frames_are_left_to_the_stream() -> None:
    frame = plain_frame(b"carrier" * 100)
    checked = cramjam.lz4.Compressor(content_checksum=True, block_linked=False)
    checked.compress(b"carrier" * 100)
    linked = cramjam.lz4.Compressor(content_checksum=False, block_linked=True)
    linked.compress(b"carrier" * 100)
    ours = compress_frame(b"carrier")
    for other in (
        ours,
        bytes(checked.finish()),
        bytes(linked.finish()),
        frame + frame,
        frame[:-1],
        frame[:6] + b"\x83" + frame[7:],
        bytes(with_correct_checksum(memoryview(frame[:5] + b"\x30" + frame[6:]))),
        b"",
    ):
        assert blocks(other) is None
    assert inflate_plain(memoryview(frame), memoryview(bytearray(699))) is None


@pytest.mark.parametrize(("flags", "at"), [(0x60, 6), (0x68, 14), (0x61, 10), (0x69, 18)])
def test_only_the_checksum_of_a_header_is_corrected_wherever_it_is(flags: int, at: int) -> None:
    frame = b"\x04\x22\x4d\x18" + bytes([flags, 0x40]) + b"?" * 20
    corrected = with_correct_checksum(memoryview(frame))
    assert [n for n, byte in enumerate(frame) if byte != corrected[n]] == [at]
    assert with_correct_checksum(corrected) == corrected
    cut = memoryview(frame)[:at]
    assert with_correct_checksum(cut) == cut


@given(at=st.integers(0, 10_000), byte=st.integers(1, 255))
def test_broken_frames_come_to_the_same(at: int, byte: int) -> None:
    broken = bytearray(plain_frame(b"0123456789abcdef" * 30 + bytes(range(200)) * 3))
    broken[at % len(broken)] ^= byte
    wanted = stream(bytes(broken))
    if (taken := blocks(bytes(broken))) is not None:
        assert taken == wanted
    try:
        inflated: bytes | None = bytes(inflate(Codec.LZ4, memoryview(bytes(broken)), CAP))
    except KafkaError:
        inflated = None
    assert inflated == wanted
