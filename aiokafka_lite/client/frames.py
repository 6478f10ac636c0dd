"""Splits a byte stream into frames: a 4-byte size, then as many bytes.

The owner of the socket writes bytes to ``missing``, passes their number to ``next_frame``, and
calls that until no complete frame is left.

At the start of a frame, ``missing`` is a reusable buffer of 64 KiB, for one or several small
frames, which are copied out of it. A frame that does not fit gets memory of its size; the kernel
writes the rest of it in place. In both cases record sets are slices of a frame that is not written
any more.

A reader uses that buffer until all received frames are returned, so thousands of idle connections
share a few. The size is checked before memory is allocated: a peer without Kafka's protocol (a web
server, a TLS listener) mostly shows in these four bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeAlias

from aiokafka_lite.errors import FrameTooLargeError, KafkaProtocolError

SIZE_BYTES: Final = 4
SMALLEST_FRAME_BYTES: Final = 4  # a correlation id
# Read at once at the start of a frame, and so the largest frame that is copied.
HEAD_BYTES: Final = 64 * 1024
# Larger frames are checked against the owner's limit.
UNCHECKED_BYTES: Final = 64 * 1024
# The pieces in which a large frame is read, and the least rest for which that is worthwhile.
PIECE_BYTES: Final = 256 * 1024
PIECES_FROM_BYTES: Final = 128 * 1024
REUSE_FROM_BYTES: Final = 256 * 1024
FORGET_AFTER_SMALL_FRAMES: Final = 8
# The number of unused head buffers that are kept.
MOST_SPARE_HEADS: Final = 4

Frame: TypeAlias = bytearray | memoryview

# A buffer is here or a reader's: threads may take and return buffers at the same time.
_spare_heads: Final[list[memoryview]] = []


class FrameBuffers:
    """Memory for frames; large buffers are reused, because page faults cost as much as receiving.

    A bytearray with a memoryview refuses to change its size, so slices of an earlier frame are
    never overwritten.
    """

    def __init__(self) -> None:
        self.large: list[bytearray] = []
        self._small_frames = 0

    def take(self, size: int) -> memoryview:
        if size < REUSE_FROM_BYTES:
            self.note_small()
            return memoryview(bytearray(size))
        self._small_frames = 0
        for buffer in self.large:
            if size <= len(buffer) <= 4 * size and _is_unused(buffer):
                return memoryview(buffer)[:size]
        # Somewhat larger, so that the next frame of about this size fits. Two are kept: one
        # response is received while the previous one is decoded.
        buffer = bytearray(size + size // 8)
        self.large.append(buffer)
        del self.large[:-2]
        return memoryview(buffer)[:size]

    def note_small(self) -> None:
        """Note a small frame; several in a row free the large buffers."""
        self._small_frames += 1
        if self._small_frames >= FORGET_AFTER_SMALL_FRAMES:
            self.large.clear()

    def clear(self) -> None:
        self.large.clear()


def _is_unused(buffer: bytearray) -> bool:
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True


class FrameReader:
    """Assembles frames. Those before a broken one are returned before that raises."""

    def __init__(self, peer: str, limit_bytes: Callable[[], int]) -> None:
        #: For messages.
        self.peer = peer
        self._limit_bytes = limit_bytes
        self._buffers = FrameBuffers()
        #: Buffer for small frames, with received bytes; None: not in use.
        self.head: memoryview | None = None
        self._head_bytes: bytearray | None = None  # its memory
        self._start = 0  # of received bytes in the head
        self._end = 0
        self._large: memoryview | None = None  # the frame that is being received in place
        #: Memory for the rest of that frame, None at the start of a frame.
        self.rest: memoryview | None = None
        self._missing: memoryview | None = None  # the free part of the head
        #: The least useful read: for a large frame a large piece or the rest, else 1.
        self.wanted_bytes = 1

    def missing(self) -> memoryview:
        """Return memory for the next bytes; not empty after ``next_frame`` has returned None."""
        if self.rest is not None:
            return self.rest
        missing = self._missing
        if missing is None:
            try:
                missing = _spare_heads.pop()
            except IndexError:
                missing = memoryview(bytearray(HEAD_BYTES))
            self.head = self._missing = missing
            self._head_bytes = missing.obj  # type: ignore[assignment] # see above
        return missing

    @property
    def received_bytes(self) -> int:
        if self.rest is None:
            return self._end - self._start
        return len(self._large or ()) - len(self.rest)

    def next_frame(self, count: int = 0) -> Frame | None:
        """Return the next complete frame without its size, after `count` more bytes, or None."""
        rest = self.rest
        if rest is not None:
            if count < len(rest):
                self.rest = rest = rest[count:]
                self.wanted_bytes = min(self.wanted_bytes, len(rest))
                return None
            frame, self._large, self.rest = self._large, None, None
            self.wanted_bytes = 1
            return frame
        head, start = self._head_bytes, self._start
        if head is None:
            return None
        self._end = end = self._end + count
        there = end - start
        if there >= SIZE_BYTES:
            first = head[start]
            size = first << 24 | head[start + 1] << 16 | head[start + 2] << 8 | head[start + 3]
            if first >= 0x80:  # the size is a signed number
                size -= 1 << 32
            if not SMALLEST_FRAME_BYTES <= size <= UNCHECKED_BYTES:
                self._check_size(size)
            stop = start + SIZE_BYTES + size
            if stop <= end:
                small = head[stop - size : stop]
                if self._buffers.large:
                    self._buffers.note_small()
                if stop == end:
                    self._give_head_back()
                else:
                    self._start = stop
                return small
            if size > HEAD_BYTES - SIZE_BYTES:
                self._receive_in_place(size, memoryview(head))
                return None
        if there == 0:
            self._give_head_back()
        else:
            if start:  # move to the front, so that the rest of the frame fits
                head[:there] = head[start : self._end]
                self._start, self._end = 0, there
            self._missing = memoryview(head)[there:]
        return None

    def _give_head_back(self) -> None:
        head, self.head = self.head, None
        self._missing = self._head_bytes = None
        self._start = self._end = 0
        if head is not None and len(_spare_heads) < MOST_SPARE_HEADS:
            _spare_heads.append(head)

    def _receive_in_place(self, size: int, head: memoryview) -> None:
        """Allocate a frame that does not fit the head."""
        came = head[self._start + SIZE_BYTES : self._end]
        frame = self._large = self._buffers.take(size)
        frame[: len(came)] = came
        self.rest = rest = frame[len(came) :]
        if len(rest) >= PIECES_FROM_BYTES:
            self.wanted_bytes = min(len(rest), PIECE_BYTES)
        self._give_head_back()

    def clear(self) -> None:
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
    if head == b"HTTP":
        return "the peer looks like an HTTP server: check host and port"
    # A TLS record: content type 20 to 23, then version 3.x.
    if 0x14 <= head[0] <= 0x17 and head[1] == 3 and head[2] <= 4:
        return "the peer looks like a TLS listener: use security_protocol='SSL' with an ssl_context"
    if head == b"SSH-":
        return "the peer looks like an SSH server: check host and port"
    return None
