"""Frames out of a byte stream: a 4-byte size, then a buffer of exactly that size.

Whoever owns the socket asks ``missing`` for the memory the next bytes belong into, so that the
kernel writes an answer to its final place: one copy, and none in Python. Record sets stay slices
of that buffer.

Sans-IO. The size is checked before anything is allocated: a peer that does not speak Kafka
(a web server, a TLS listener) mostly shows itself in those four bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from aiokafka_lite.errors import FrameTooLargeError, KafkaProtocolError

SIZE: Final = struct.Struct(">i")
SMALLEST_FRAME_BYTES: Final = 4  # a correlation id
# Up to here a frame is taken from anyone; beyond it the owner says what it expects.
UNCHECKED_BYTES: Final = 64 * 1024
REUSE_FROM_BYTES: Final = 256 * 1024
FORGET_AFTER_SMALL_FRAMES: Final = 8


class FrameBuffers:
    """Memory for frames; large buffers are used again once nobody looks at them.

    Fresh memory of a few MiB costs about as much in page faults as receiving the bytes does.
    A bytearray refuses to change its size while a memoryview looks at it, so the buffer itself
    tells whether a slice of an earlier frame is still alive: it is never overwritten then.
    """

    __slots__ = ("_large", "_small_frames")

    def __init__(self) -> None:
        self._large: list[bytearray] = []
        self._small_frames = 0

    def take(self, size: int) -> memoryview:
        """Return memory of exactly this size that nobody else looks at."""
        if size < REUSE_FROM_BYTES:
            self._small_frames += 1
            if self._small_frames >= FORGET_AFTER_SMALL_FRAMES:
                self._large.clear()  # the flood is over: give the memory back
            return memoryview(bytearray(size))
        self._small_frames = 0
        for buffer in self._large:
            if size <= len(buffer) <= 4 * size and _is_unused(buffer):
                return memoryview(buffer)[:size]
        # Some room to spare, so that the next frame, of about this size, fits as well. Two are
        # kept: one answer is being received while the one before it is decoded.
        buffer = bytearray(size + size // 8)
        self._large.append(buffer)
        del self._large[:-2]
        return memoryview(buffer)[:size]

    def clear(self) -> None:
        self._large.clear()


def _is_unused(buffer: bytearray) -> bool:
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True


class FrameReader:
    """Assembles frames from whatever pieces arrive."""

    __slots__ = ("_buffers", "_frame", "_limit_bytes", "_peer", "_size_view", "missing")

    def __init__(self, peer: str, limit_bytes: Callable[[], int]) -> None:
        self._peer = peer
        self._limit_bytes = limit_bytes
        self._buffers = FrameBuffers()
        self._size_view = memoryview(bytearray(SIZE.size))
        self._frame: memoryview | None = None
        #: Where the next bytes belong; never empty.
        self.missing = self._size_view

    def received(self, count: int) -> memoryview | None:
        """Take note that ``count`` bytes were written to ``missing``.

        Returns:
            The frame, without its size, when these bytes completed it.

        Raises:
            FrameTooLargeError: The frame claims more than the owner's limit.
            KafkaProtocolError: The size is impossible.
        """
        if count < len(self.missing):
            self.missing = self.missing[count:]
            return None
        frame = self._frame
        if frame is None:
            size: int = SIZE.unpack(self._size_view)[0]
            if not SMALLEST_FRAME_BYTES <= size <= UNCHECKED_BYTES:
                self._check_size(size)
            self._frame = self.missing = self._buffers.take(size)
            return None
        self._frame = None
        self.missing = self._size_view
        return frame

    def clear(self) -> None:
        """Let go of all memory; the reader can be used again from the start of a frame."""
        self._frame = None
        self.missing = self._size_view
        self._buffers.clear()

    def _check_size(self, size: int) -> None:
        if size < SMALLEST_FRAME_BYTES:
            raise KafkaProtocolError(
                f"{self._peer} announces an answer of {size} bytes: it does not speak Kafka's "
                "protocol, or the stream is broken"
            )
        limit_bytes = self._limit_bytes()
        if size > limit_bytes:
            if guess := guess_peer(bytes(self._size_view)):
                raise FrameTooLargeError(f"{self._peer} does not answer as a Kafka broker: {guess}")
            raise FrameTooLargeError(
                f"{self._peer} announces an answer of {size} bytes, the limit is {limit_bytes}: "
                "check that this is a Kafka broker, or fetch less at once"
            )


def guess_peer(head: bytes) -> str | None:
    """Say what a peer may be whose first four bytes are no frame size, None without an idea."""
    if head == b"HTTP":
        return "it looks like an HTTP server: check host and port"
    # A TLS record: content type 20 to 23, then version 3.x.
    if 0x14 <= head[0] <= 0x17 and head[1] == 3 and head[2] <= 4:
        return "it looks like a TLS listener: use security_protocol='SSL' with an ssl_context"
    if head[:4] == b"SSH-":
        return "it looks like an SSH server: check host and port"
    return None
