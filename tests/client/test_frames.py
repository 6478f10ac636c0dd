from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokafka_lite.client.frames import (
    FORGET_AFTER_SMALL_FRAMES,
    REUSE_FROM_BYTES,
    FrameBuffers,
    FrameReader,
    guess_peer,
)
from aiokafka_lite.errors import FrameTooLargeError, KafkaProtocolError

LIMIT = 1 << 20


def new_reader(limit: int = LIMIT) -> FrameReader:
    return FrameReader("host:9092", lambda: limit)


def feed(reader: FrameReader, stream: bytes, piece: int = 1 << 30) -> list[bytes]:
    """Write a stream as a socket would: never more than is missing, nor than a piece."""
    frames: list[bytes] = []
    while stream:
        count = min(len(reader.missing), piece, len(stream))
        reader.missing[:count] = stream[:count]
        stream = stream[count:]
        frame = reader.received(count)
        if frame is not None:
            frames.append(bytes(frame))
    return frames


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


@given(st.lists(st.binary(min_size=4, max_size=50), max_size=5), st.integers(1, 60))
def test_frames_come_out_whole_however_they_arrive(bodies: list[bytes], piece: int) -> None:
    assert feed(new_reader(), b"".join(map(framed, bodies)), piece) == bodies


def test_split_at_every_byte_boundary_gives_the_same_frames() -> None:
    bodies = [b"0123456789", b"abcd"]
    stream = b"".join(map(framed, bodies))
    for cut in range(len(stream) + 1):
        reader = new_reader()
        assert feed(reader, stream[:cut]) + feed(reader, stream[cut:]) == bodies


def test_frames_do_not_share_memory() -> None:
    reader = new_reader()
    frames: list[memoryview] = []
    for body in (b"first", b"other"):
        for part in (struct.pack(">i", 5), body):
            reader.missing[:] = part
            frame = reader.received(len(part))
        assert frame is not None
        frames.append(frame)
    assert [bytes(frame) for frame in frames] == [b"first", b"other"]


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 3])
def test_impossible_size_is_a_protocol_error(size: int) -> None:
    with pytest.raises(KafkaProtocolError, match=f"host:9092 announces an answer of {size} bytes"):
        feed(new_reader(), struct.pack(">i", size))


@pytest.mark.parametrize("size", [LIMIT + 1, 2**31 - 1])
def test_frame_beyond_the_limit_is_refused_before_memory_is_taken(size: int) -> None:
    with pytest.raises(FrameTooLargeError, match=f"{size} bytes, the limit is {LIMIT}"):
        feed(new_reader(), struct.pack(">i", size))


def test_frame_of_exactly_the_limit_is_taken() -> None:
    assert feed(new_reader(), framed(bytes(LIMIT))) == [bytes(LIMIT)]


@pytest.mark.parametrize(
    ("head", "guess"),
    [
        (b"HTTP", "HTTP server"),
        (b"\x15\x03\x03\x00", "TLS listener"),
        (b"\x16\x03\x01\x02", "TLS listener"),
        (b"SSH-", "SSH server"),
    ],
)
def test_known_strangers_are_named(head: bytes, guess: str) -> None:
    with pytest.raises(FrameTooLargeError, match=f"host:9092.*{guess}"):
        feed(new_reader(), head)


def test_no_guess_for_an_ordinary_size() -> None:
    assert guess_peer(struct.pack(">i", 1000)) is None


def test_large_buffer_is_used_again_once_nobody_looks_at_it() -> None:
    buffers = FrameBuffers()
    first = buffers.take(REUSE_FROM_BYTES)
    first_memory = first.obj
    del first
    assert buffers.take(REUSE_FROM_BYTES + 1).obj is first_memory


def test_large_buffer_is_left_alone_while_a_slice_of_it_lives() -> None:
    buffers = FrameBuffers()
    first = buffers.take(REUSE_FROM_BYTES)
    value = first[10:20]
    value[:] = b"0123456789"
    first_memory = first.obj
    del first
    for _ in range(4):
        other = buffers.take(REUSE_FROM_BYTES)
        assert other.obj is not first_memory
        other[:] = b"x" * len(other)
    assert bytes(value) == b"0123456789"


def test_large_buffer_is_not_kept_for_much_smaller_frames() -> None:
    buffers = FrameBuffers()
    large = buffers.take(REUSE_FROM_BYTES * 10).obj
    assert buffers.take(REUSE_FROM_BYTES).obj is not large


def test_large_buffers_are_given_back_when_only_small_frames_come() -> None:
    buffers = FrameBuffers()
    large = buffers.take(REUSE_FROM_BYTES).obj
    for _ in range(FORGET_AFTER_SMALL_FRAMES):
        buffers.take(100)
    assert buffers.take(REUSE_FROM_BYTES).obj is not large
