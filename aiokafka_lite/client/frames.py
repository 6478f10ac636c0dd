"""Cuts a byte stream into frames: a 4-byte size, then as many bytes.

Whoever owns the socket asks ``missing`` for the memory the next bytes belong into, tells
``next_frame`` how many came, and calls it until nothing more is complete.

Where a frame may begin, ``missing`` is a buffer of some KiB that serves again and again: a small
answer comes whole with one read, and so do several. What is handed out is a copy. A frame that
does not fit there gets a buffer of exactly its size: what came of it is moved over, the rest is
written to its final place by the kernel. Either way record sets stay slices of a frame, which
nobody writes to any more.

A reader has that buffer from when it is asked where bytes belong until it has handed out all that
came. Most connections wait most of the time, and thousands of them share a few buffers.

Sans-IO. The size is checked before anything is allocated: a peer that does not speak Kafka
(a web server, a TLS listener) mostly shows itself in those four bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from aiokafka_lite.errors import FrameTooLargeError, KafkaProtocolError

SIZE_BYTES: Final = 4
SMALLEST_FRAME_BYTES: Final = 4  # a correlation id
# What is read at once where a frame may begin, and so the largest frame that is copied.
HEAD_BYTES: Final = 64 * 1024
# Up to here a frame is taken from anyone; beyond it the owner says what it expects.
UNCHECKED_BYTES: Final = 64 * 1024
# Pieces in which a large frame is worth being read, and from where on it is worth saying so.
PIECE_BYTES: Final = 256 * 1024
PIECES_FROM_BYTES: Final = 128 * 1024
REUSE_FROM_BYTES: Final = 256 * 1024
FORGET_AFTER_SMALL_FRAMES: Final = 8
# How many buffers for heads are kept that no reader has just now.
MOST_SPARE_HEADS: Final = 4

_read_size: Final = struct.Struct(">i").unpack_from


# A buffer is here or a reader's: threads may take and give back at the same time.
_spare_heads: Final[list[memoryview]] = []


class FrameBuffers:
    """Lends memory for frames; large buffers are used again once nobody looks at them.

    Fresh memory of a few MiB costs about as much in page faults as receiving the bytes does.
    A bytearray refuses to change its size while a memoryview looks at it, so the buffer itself
    tells whether a slice of an earlier frame is still alive: it is never overwritten then.

    Attributes:
        large: The buffers that are kept.
    """

    __slots__ = ("_small_frames", "large")

    def __init__(self) -> None:
        self.large: list[bytearray] = []
        self._small_frames = 0

    def take(self, size: int) -> memoryview:
        """Return memory of exactly this size that nobody else looks at."""
        if size < REUSE_FROM_BYTES:
            self.note_small()
            return memoryview(bytearray(size))
        self._small_frames = 0
        for buffer in self.large:
            if size <= len(buffer) <= 4 * size and _is_unused(buffer):
                return memoryview(buffer)[:size]
        # Some room to spare, so that the next frame, of about this size, fits as well. Two are
        # kept: one answer is being received while the one before it is decoded.
        buffer = bytearray(size + size // 8)
        self.large.append(buffer)
        del self.large[:-2]
        return memoryview(buffer)[:size]

    def note_small(self) -> None:
        """Take note of a small frame, wherever its memory is from."""
        self._small_frames += 1
        if self._small_frames >= FORGET_AFTER_SMALL_FRAMES:
            self.large.clear()  # the flood is over: give the memory back

    def clear(self) -> None:
        self.large.clear()


def _is_unused(buffer: bytearray) -> bool:
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True


class FrameReader:
    """Assembles frames from whatever pieces arrive.

    Frames come one at a time, so that those ahead of a broken one are out before it raises, and
    so that whoever takes one may ``clear`` the reader.
    """

    __slots__ = (
        "_buffers",
        "_end",
        "_large",
        "_limit_bytes",
        "_missing",
        "_start",
        "head",
        "peer",
        "rest",
        "wanted_bytes",
    )

    def __init__(self, peer: str, limit_bytes: Callable[[], int]) -> None:
        #: Who it is, for messages.
        self.peer = peer
        self._limit_bytes = limit_bytes
        self._buffers = FrameBuffers()
        #: Where a frame may begin, what came and was not handed out; None: nothing is there.
        self.head: memoryview | None = None
        self._start = 0  # of that, in the head
        self._end = 0
        self._large: memoryview | None = None  # the frame that is being received in place
        #: Where the rest of that frame belongs, None where a frame may begin.
        self.rest: memoryview | None = None
        self._missing: memoryview | None = None  # where a head is taken as soon as one is needed
        #: How many bytes are worth being read: of a large frame a good piece or the rest, else 1.
        self.wanted_bytes = 1

    @property
    def missing(self) -> memoryview:
        """Where the next bytes belong; never empty once ``next_frame`` has returned None."""
        if self.rest is not None:
            return self.rest
        missing = self._missing
        if missing is None:
            try:
                missing = _spare_heads.pop()
            except IndexError:
                missing = memoryview(bytearray(HEAD_BYTES))
            self.head = self._missing = missing
        return missing

    @property
    def received_bytes(self) -> int:
        """How many bytes came of the frame that is being received."""
        if self.rest is None:
            return self._end - self._start
        return len(self._large or ()) - len(self.rest)

    def next_frame(self, count: int = 0) -> memoryview | None:
        """Return the next complete frame without its size, None when more bytes are needed.

        Args:
            count: How many bytes were written to ``missing`` since the last call.

        Raises:
            FrameTooLargeError: The frame claims more than the owner's limit.
            KafkaProtocolError: The size is impossible.
        """
        rest = self.rest
        if rest is not None:
            if count < len(rest):
                self.rest = rest = rest[count:]
                self.wanted_bytes = min(self.wanted_bytes, len(rest))
                return None
            frame, self._large, self.rest = self._large, None, None
            self.wanted_bytes = 1
            return frame
        head, start = self.head, self._start
        if head is None:
            return None
        self._end = end = self._end + count
        there = end - start
        if there >= SIZE_BYTES:
            size: int = _read_size(head, start)[0]
            if not SMALLEST_FRAME_BYTES <= size <= UNCHECKED_BYTES:
                self._check_size(size)
            stop = start + SIZE_BYTES + size
            if stop <= end:
                frame = memoryview(head[stop - size : stop].tobytes())
                if self._buffers.large:
                    self._buffers.note_small()
                if stop == end:
                    self._give_head_back()
                else:
                    self._start = stop
                return frame
            if size > HEAD_BYTES - SIZE_BYTES:
                self._receive_in_place(size, head)
                return None
        if there == 0:
            self._give_head_back()
        else:
            if start:  # to the front, so that the rest of it fits as well
                head[:there] = bytes(head[start : self._end])
                self._start, self._end = 0, there
            self._missing = head[there:]
        return None

    def _give_head_back(self) -> None:
        """Leave the buffer to others: none of its bytes are needed any more."""
        head, self.head = self.head, None
        self._missing = None
        self._start = self._end = 0
        if head is not None and len(_spare_heads) < MOST_SPARE_HEADS:
            _spare_heads.append(head)

    def _receive_in_place(self, size: int, head: memoryview) -> None:
        """Get memory for a frame that does not fit the head, and move there what came of it."""
        came = head[self._start + SIZE_BYTES : self._end]
        frame = self._large = self._buffers.take(size)
        frame[: len(came)] = came
        self.rest = rest = frame[len(came) :]
        if len(rest) >= PIECES_FROM_BYTES:
            self.wanted_bytes = min(len(rest), PIECE_BYTES)
        self._give_head_back()

    def clear(self) -> None:
        """Drop what came, and large memory; what comes next is the start of a frame."""
        self._give_head_back()
        self._large = self.rest = None
        self.wanted_bytes = 1
        self._buffers.clear()

    def _check_size(self, size: int) -> None:
        if size < SMALLEST_FRAME_BYTES:
            raise KafkaProtocolError(
                f"{self.peer} announces a response of {size} bytes, which is too short for Kafka's "
                f"protocol: check that {self.peer} is a Kafka broker"
            )
        limit_bytes = self._limit_bytes()
        if size > limit_bytes:
            prefix = struct.pack(">i", size)
            if guess := guess_peer(prefix):
                raise FrameTooLargeError(
                    f"{self.peer} does not answer like a Kafka broker: {guess}"
                )
            error = FrameTooLargeError(
                f"{self.peer} announces a response of {size} bytes, but the limit is "
                f"{limit_bytes}: check that {self.peer} is a Kafka broker, or fetch fewer "
                "bytes per request"
            )
            error.size_bytes, error.limit_bytes = size, limit_bytes
            raise error


def guess_peer(head: bytes) -> str | None:
    """Say what a peer may be whose first four bytes are no frame size, None without an idea."""
    if head == b"HTTP":
        return "the peer looks like an HTTP server: check host and port"
    # A TLS record: content type 20 to 23, then version 3.x.
    if 0x14 <= head[0] <= 0x17 and head[1] == 3 and head[2] <= 4:
        return "the peer looks like a TLS listener: use security_protocol='SSL' with an ssl_context"
    if head == b"SSH-":
        return "the peer looks like an SSH server: check host and port"
    return None
