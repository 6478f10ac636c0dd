"""Frames out of a stream, however it is cut."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from aiokafka_lite.broker.network.frames import (
    FIRST_SCRATCH_BYTES,
    MAPPED_FROM_BYTES,
    SCRATCH_BYTES,
    FrameReceiver,
)
from aiokafka_lite.errors import KafkaProtocolError
from tests.support.for_each import for_each

LIMIT = MAPPED_FROM_BYTES


def frame_of(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def on_wire(*frames: bytes) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


def received(stream: bytes, pieces: list[int]) -> list[bytes]:
    """Feed a stream in pieces of the given sizes, in turn; take frames as soon as there are."""
    receiver, frames, position, turn = FrameReceiver(LIMIT), [], 0, 0
    while position < len(stream):
        room = receiver.buffer()
        count = min(pieces[turn % len(pieces)], len(room), len(stream) - position)
        room[:count] = stream[position : position + count]
        receiver.received(count)
        position, turn = position + count, turn + 1
        while receiver.has_frame:
            frames.append(bytes(receiver.next_frame()))
    return frames


@for_each([1, 100, FIRST_SCRATCH_BYTES - 5, FIRST_SCRATCH_BYTES - 4, FIRST_SCRATCH_BYTES - 3,
     SCRATCH_BYTES - 5, SCRATCH_BYTES - 4, SCRATCH_BYTES - 3, SCRATCH_BYTES,
     MAPPED_FROM_BYTES - 1, MAPPED_FROM_BYTES])  # fmt: skip
def test_frame_of_any_size_arrives_whole(size: int) -> None:
    frames = [frame_of(size, 1), frame_of(3, 2), frame_of(size, 3)]
    for pieces in ([1 << 30], [1, 4000], [7919]):
        assert received(on_wire(*frames), pieces) == frames


def test_split_at_every_byte_gives_the_same_frames() -> None:
    frames = [frame_of(9), frame_of(1), frame_of(20)]
    stream = on_wire(*frames)
    for cut in range(1, len(stream)):
        assert received(stream, [cut, len(stream)]) == frames
    assert received(stream, [1]) == frames


def test_random_frames_in_random_pieces_arrive_in_order() -> None:
    rng = random.Random(7)
    frames = [frame_of(int(2 ** rng.uniform(0, 17)), seed) for seed in range(60)]
    pieces = [int(2 ** rng.uniform(0, 16)) for _ in range(50)]
    assert received(on_wire(*frames), pieces) == frames


def test_frame_keeps_its_bytes_when_more_arrive() -> None:
    receiver = FrameReceiver(LIMIT)
    room = receiver.buffer()
    stream = on_wire(b"first", b"second")
    room[: len(stream)] = stream
    receiver.received(len(stream))
    first = receiver.next_frame()
    second = receiver.next_frame()
    receiver.buffer()[:50] = b"\xff" * 50
    assert (bytes(first), bytes(second)) == (b"first", b"second")
    with pytest.raises(RuntimeError, match="no request has arrived"):
        receiver.next_frame()


@for_each(
    [
        (b"\0\0\0\0", "of 0 bytes"),
        (b"\xff\xff\xff\xff", "of -1 bytes"),
        (b"\x7f\xff\xff\xff", "of 2147483647 bytes"),
        ((LIMIT + 1).to_bytes(4, "big"), f"accepts 1 to {LIMIT} bytes"),
        (b"GET ", "look like HTTP"),
        (b"\x16\x03\x01\x02", "look like TLS"),
    ]
)
def test_impossible_size_is_refused_before_memory_is_taken(prefix: bytes, message: str) -> None:
    receiver = FrameReceiver(LIMIT)
    receiver.buffer()[:4] = prefix
    with pytest.raises(KafkaProtocolError, match=message):
        receiver.received(4)


def test_buffer_grows_only_for_a_connection_that_sends_much() -> None:
    receiver = FrameReceiver(LIMIT)
    quiet = on_wire(*[frame_of(200)] * 3)
    for _ in range(100):
        receiver.buffer()[: len(quiet)] = quiet
        receiver.received(len(quiet))
        while receiver.has_frame:
            receiver.next_frame()
    assert len(receiver.buffer()) == FIRST_SCRATCH_BYTES
    busy = on_wire(*[frame_of(1020)] * (SCRATCH_BYTES // 1024))
    position = 0
    while receiver.has_room and position < len(busy):
        room = receiver.buffer()
        count = min(len(room), len(busy) - position)
        room[:count] = busy[position : position + count]
        receiver.received(count)
        position += count
    assert not receiver.has_room
    assert position == SCRATCH_BYTES
    while receiver.has_frame:
        assert bytes(receiver.next_frame()) == frame_of(1020)
    assert receiver.has_room


@for_each(
    [
        (FIRST_SCRATCH_BYTES - 4, FIRST_SCRATCH_BYTES - 4),
        (FIRST_SCRATCH_BYTES - 3, 4 * FIRST_SCRATCH_BYTES - 4),
        (4 * FIRST_SCRATCH_BYTES - 4, 4 * FIRST_SCRATCH_BYTES - 4),
        (SCRATCH_BYTES - 4, SCRATCH_BYTES - 4),
        (SCRATCH_BYTES - 3, FIRST_SCRATCH_BYTES),  # in memory of its own, which grows
        (MAPPED_FROM_BYTES - 1, FIRST_SCRATCH_BYTES),
        (MAPPED_FROM_BYTES, MAPPED_FROM_BYTES),
    ]
)
def test_buffer_has_room_for_the_frame_that_is_announced(size: int, room: int) -> None:
    receiver = FrameReceiver(LIMIT)
    feed(receiver, size.to_bytes(4, "big"))
    assert len(receiver.buffer()) == room


def test_impossible_size_behind_a_good_frame_is_refused() -> None:
    receiver = FrameReceiver(LIMIT)
    stream = on_wire(b"good") + b"\xff\xff\xff\xff"
    receiver.buffer()[: len(stream)] = stream
    receiver.received(len(stream))
    with pytest.raises(KafkaProtocolError):
        receiver.next_frame()


def test_bytes_that_come_when_there_is_no_room_are_kept() -> None:
    # As asyncio's TLS hands them out before Python 3.11, although it was paused.
    frames = [frame_of(300_000), *(frame_of(1_000, number) for number in range(600))]
    stream = on_wire(*frames)
    receiver = FrameReceiver(1 << 20)
    at = 0
    while at < len(stream):
        room = receiver.buffer()
        taken = min(len(room), len(stream) - at, 16_384)
        room[:taken] = stream[at : at + taken]
        receiver.received(taken)
        at += taken
    taken_out = []
    while receiver.has_frame:
        taken_out.append(bytes(receiver.next_frame()))
    assert taken_out == frames


@pytest.mark.parametrize("size", [SCRATCH_BYTES * 2, MAPPED_FROM_BYTES - 1])
def test_announced_size_costs_nothing(size: int) -> None:
    receivers = [FrameReceiver(LIMIT) for _ in range(20)]
    tracemalloc.start()
    try:
        for receiver in receivers:
            feed(receiver, size.to_bytes(4, "big") + b"x")
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert taken < len(receivers) * 3 * FIRST_SCRATCH_BYTES


def test_memory_grows_with_what_comes_of_a_large_frame() -> None:
    size = MAPPED_FROM_BYTES - 1
    receiver, sent = FrameReceiver(LIMIT), 0
    feed(receiver, size.to_bytes(4, "big"))
    while not receiver.has_frame:
        assert len(receiver.buffer()) <= max(4 * sent, FIRST_SCRATCH_BYTES)
        sent += feed(receiver, b"y" * min(10_000, size - sent))
    assert bytes(receiver.next_frame()) == b"y" * size


def test_next_frame_of_the_size_of_the_last_is_received_in_one_piece() -> None:
    size = 1 << 20
    receiver = FrameReceiver(LIMIT)
    feed(receiver, size.to_bytes(4, "big") + bytes(size))
    receiver.next_frame()
    feed(receiver, size.to_bytes(4, "big") + b"x")
    assert len(receiver.buffer()) == size - 1


def feed(receiver: FrameReceiver, data: bytes) -> int:
    """Give a receiver bytes, as many at a time as it has room for; return how many."""
    left = memoryview(data)
    while left:
        room = receiver.buffer()
        count = min(len(room), len(left))
        room[:count] = left[:count]
        receiver.received(count)
        left = left[count:]
    return len(data)
