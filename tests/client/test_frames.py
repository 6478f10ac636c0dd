from __future__ import annotations

import struct
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokafka_lite.client.frames import (
    FORGET_AFTER_SMALL_FRAMES,
    HEAD_BYTES,
    MOST_SPARE_HEADS,
    PIECE_BYTES,
    PIECES_FROM_BYTES,
    REUSE_FROM_BYTES,
    Frame,
    FrameBuffers,
    FrameReader,
    guess_peer,
)
from aiokafka_lite.errors import FrameTooLargeError, KafkaProtocolError
from tests.support.for_each import for_each

LIMIT = 1 << 20


def new_reader(limit: int = LIMIT) -> FrameReader:
    return FrameReader("host:9092", lambda: limit)


def read(reader: FrameReader, stream: bytes) -> tuple[int, list[Frame]]:
    """Let a socket that holds these bytes be read once; return the bytes read, and the frames."""
    count = min(len(reader.missing()), len(stream))
    assert count > 0
    reader.missing()[:count] = stream[:count]
    frames = []
    frame = reader.next_frame(count)
    while frame is not None:
        frames.append(frame)
        frame = reader.next_frame()
    assert 1 <= reader.wanted_bytes <= len(reader.missing())  # else it would be waited for in vain
    return count, frames


def feed(reader: FrameReader, stream: bytes, pieces: Iterable[int] = ()) -> list[Frame]:
    """Let a stream arrive in pieces of these sizes, at last the rest."""
    frames: list[Frame] = []
    sizes = iter(pieces)
    while stream:
        piece = stream[: next(sizes, len(stream))]
        stream = stream[len(piece) :]
        while piece:
            count, complete = read(reader, piece)
            piece = piece[count:]
            frames += complete
    return frames


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


# Around the largest frame that fits the head, and beyond it.
SIZES = st.one_of(
    st.integers(4, 100),
    st.integers(HEAD_BYTES - 12, HEAD_BYTES + 8),
    st.integers(4, 3 * HEAD_BYTES),
)


@given(st.lists(SIZES, max_size=6), st.lists(st.integers(1, 2 * HEAD_BYTES), max_size=20))
def test_frames_come_out_whole_however_they_arrive(sizes: list[int], pieces: list[int]) -> None:
    bodies = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    assert feed(new_reader(), b"".join(map(framed, bodies)), pieces) == bodies


def test_split_at_every_byte_boundary_gives_the_same_frames() -> None:
    bodies = [b"0123456789", b"abcd", b"efghijk"]
    stream = b"".join(map(framed, bodies))
    for first in range(1, len(stream)):
        for second in range(1, len(stream) - first + 1):
            assert feed(new_reader(), stream, [first, second]) == bodies


def test_small_frame_takes_one_read() -> None:
    reader = new_reader()
    for body in (b"first", bytes(HEAD_BYTES - 4), b"other"):
        stream = framed(body)
        assert read(reader, stream) == (len(stream), [body])


def test_small_frames_that_are_there_together_take_one_read() -> None:
    bodies = [b"first", b"second", b"the third"]
    stream = b"".join(map(framed, bodies))
    assert read(new_reader(), stream + b"\0\0") == (len(stream) + 2, bodies)


def memory_of(reader: FrameReader) -> int:
    return id(reader.missing().obj)


def test_readers_that_wait_share_a_buffer() -> None:
    readers = [new_reader() for _ in range(100)]
    seen = set()
    stream = framed(b"first") + framed(b"second")
    for reader in readers * 2:
        seen.add(memory_of(reader))
        reader.missing()[: len(stream)] = stream
        assert reader.next_frame(len(stream)) == b"first"
        assert reader.next_frame() == b"second"
        assert reader.next_frame() is None
    assert len(seen) == 1


def test_buffer_with_a_piece_of_a_frame_is_left_alone() -> None:
    readers = [new_reader() for _ in range(2 * MOST_SPARE_HEADS)]
    for number, reader in enumerate(readers):
        read(reader, framed(bytes([number]) * 9)[:7])
    assert len({memory_of(reader) for reader in readers}) == len(readers)
    for number, reader in enumerate(readers):
        assert feed(reader, framed(bytes([number]) * 9)[7:]) == [bytes([number]) * 9]


def test_buffer_is_given_back_once_by_a_reader_that_is_cleared() -> None:
    reader, others = new_reader(), [new_reader(), new_reader()]
    read(reader, framed(b"first")[:6])
    reader.clear()
    reader.clear()
    for other in others:
        read(other, framed(b"other")[:6])
    assert memory_of(others[0]) != memory_of(others[1])


def test_few_buffers_are_kept_that_no_reader_has() -> None:
    readers = [new_reader() for _ in range(2 * MOST_SPARE_HEADS)]
    memories = [reader.missing().obj for reader in readers]
    for reader in readers:
        reader.clear()
    others = [new_reader().missing().obj for _ in readers]
    kept = [other for other in others if any(other is memory for memory in memories)]
    assert len(kept) == MOST_SPARE_HEADS


def test_large_frame_is_received_in_place() -> None:
    reader = new_reader()
    body = bytes(range(256)) * 256
    first = framed(b"first")
    count, frames = read(reader, first + framed(body))
    assert (count, frames) == (HEAD_BYTES, [b"first"])
    place = reader.missing().obj
    rest = framed(body)[count - len(first) :]
    assert len(reader.missing()) == len(rest)
    (frame,) = feed(reader, rest)
    assert frame == body
    assert memoryview(frame).obj is place


def test_large_frame_is_wanted_in_pieces_and_then_the_rest() -> None:
    reader = new_reader()
    stream = framed(bytes(HEAD_BYTES + PIECE_BYTES + 10))
    wanted = []
    for piece in (HEAD_BYTES, 4, PIECE_BYTES - 90, 50, 50):
        read(reader, stream[:piece])
        stream = stream[piece:]
        wanted.append(reader.wanted_bytes)
    assert wanted == [PIECE_BYTES, PIECE_BYTES, 100, 50, 1]
    assert not stream


def test_frame_that_one_or_two_reads_bring_is_wanted_as_it_comes() -> None:
    reader = new_reader()
    read(reader, framed(bytes(PIECES_FROM_BYTES + HEAD_BYTES - 5))[:HEAD_BYTES])
    assert reader.wanted_bytes == 1
    reader.clear()
    read(reader, framed(bytes(PIECES_FROM_BYTES + HEAD_BYTES - 4))[:HEAD_BYTES])
    assert reader.wanted_bytes == PIECES_FROM_BYTES
    reader.clear()
    assert reader.wanted_bytes == 1


@pytest.mark.parametrize("size", [5, HEAD_BYTES + 1])
def test_frames_own_their_memory(size: int) -> None:
    reader = new_reader()
    bodies = [bytes([number]) * size for number in range(4)]
    frames = feed(reader, framed(bodies[0]))
    slices = [frames[0][1:3]]
    for body in bodies[1:]:
        frames += feed(reader, framed(body))
        slices.append(frames[-1][1:3])
    assert frames == bodies
    assert slices == [body[1:3] for body in bodies]


def test_frames_ahead_of_a_broken_one_come_out() -> None:
    reader = new_reader()
    stream = framed(b"whole") + struct.pack(">i", -1)
    reader.missing()[: len(stream)] = stream
    assert reader.next_frame(len(stream)) == b"whole"
    with pytest.raises(KafkaProtocolError):
        reader.next_frame()


@pytest.mark.parametrize("there", [3, 6, HEAD_BYTES])
def test_cleared_reader_begins_with_a_new_frame(there: int) -> None:
    reader = new_reader()
    read(reader, framed(bytes(HEAD_BYTES))[:there])
    reader.clear()
    assert feed(reader, framed(b"other")) == [b"other"]


def test_reader_may_be_cleared_between_frames() -> None:
    reader = new_reader()
    stream = framed(b"first") + framed(b"second")
    reader.missing()[: len(stream)] = stream
    assert reader.next_frame(len(stream)) == b"first"
    reader.clear()
    assert reader.next_frame() is None


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 3])
def test_impossible_size_is_a_protocol_error(size: int) -> None:
    with pytest.raises(KafkaProtocolError, match=f"host:9092 announces a response of {size} bytes"):
        feed(new_reader(), struct.pack(">i", size))


@pytest.mark.parametrize("size", [LIMIT + 1, 2**31 - 1])
def test_frame_beyond_the_limit_is_refused_before_memory_is_taken(size: int) -> None:
    with pytest.raises(FrameTooLargeError, match=f"{size} bytes, but the limit is {LIMIT}"):
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


@for_each(
    [
        (b"\x13\x03\x03\x00", False),
        (b"\x14\x03\x00\x00", True),
        (b"\x17\x03\x04\x00", True),
        (b"\x18\x03\x03\x00", False),
        (b"\x16\x02\x03\x00", False),
        (b"\x16\x03\x05\x00", False),
        (struct.pack(">i", 1000), False),
    ]
)
def test_a_tls_record_is_known_by_its_type_and_version(head: bytes, is_tls: bool) -> None:
    assert ("TLS" in (guess_peer(head) or "")) == is_tls


def test_large_buffer_is_used_again_once_nobody_looks_at_it() -> None:
    buffers = FrameBuffers()
    first = buffers.take(REUSE_FROM_BYTES)
    first_memory = first.obj
    del first
    assert buffers.take(REUSE_FROM_BYTES + 1).obj is first_memory


def test_large_buffer_is_used_again_for_a_frame_an_eighth_larger_or_a_quarter_as_large() -> None:
    buffers = FrameBuffers()
    largest = 4 * REUSE_FROM_BYTES
    memory = buffers.take(largest).obj
    for size in (largest + largest // 8, (largest + largest // 8) // 4):
        assert buffers.take(size).obj is memory
    assert buffers.take(REUSE_FROM_BYTES).obj is not memory


def test_two_large_buffers_are_kept() -> None:
    buffers = FrameBuffers()
    frames = [buffers.take(REUSE_FROM_BYTES) for _ in range(3)]
    assert buffers.large == [frame.obj for frame in frames[1:]]


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
    for _ in range(FORGET_AFTER_SMALL_FRAMES - 1):
        buffers.note_small()
    assert buffers.take(REUSE_FROM_BYTES).obj is large
    for _ in range(FORGET_AFTER_SMALL_FRAMES // 2):
        buffers.take(HEAD_BYTES)
        buffers.note_small()
    assert buffers.take(REUSE_FROM_BYTES).obj is not large


@pytest.mark.parametrize("end", ["small frames", "clear"])
def test_reader_gives_large_memory_back(end: str) -> None:
    reader = new_reader()
    large = framed(bytes(REUSE_FROM_BYTES))
    memories = []
    for small_frames in (0, FORGET_AFTER_SMALL_FRAMES - 1, FORGET_AFTER_SMALL_FRAMES):
        if end == "small frames":
            feed(reader, framed(b"small") * small_frames)
        elif small_frames == FORGET_AFTER_SMALL_FRAMES:
            reader.clear()
        (frame,) = feed(reader, large)
        memories.append(memoryview(frame).obj)
        del frame
    assert memories[0] is memories[1]
    assert memories[2] is not memories[0]
