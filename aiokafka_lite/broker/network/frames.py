"""Frames from a socket's bytes, and responses written to a socket without copies.

Small requests are copied out of a reused buffer, which grows with the traffic of its connection. A
larger frame gets memory of its own, which the socket fills directly. An announced size alone costs
no memory, unless the connection has sent a frame of this size before.

A transport copies the bytes that its socket does not accept. So responses are written to the socket
itself. If it is full, a small piece is written to the transport, which reports when the socket is
writable.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections import deque
from itertools import islice
from typing import Final

from aiokafka_lite._sockets import plain_socket
from aiokafka_lite.broker.log.segment import anonymous_memory
from aiokafka_lite.errors import KafkaProtocolError
from aiokafka_lite.protocol.encoding import Part

FIRST_SCRATCH_BYTES: Final = 4 << 10
SCRATCH_BYTES: Final = 128 << 10
GROWTH: Final = 4
# From this size on, a frame gets mapped memory, whose pages are allocated as they are filled. For
# smaller frames it is cheaper to clear memory that the process already has.
MAPPED_FROM_BYTES: Final = 4 << 20

_SIZE: Final = struct.Struct(">i")


class FrameReceiver:
    """Collects frames: `buffer`, read into it, `received`, then `next_frame` while `has_frame`."""

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._scratch = memoryview(bytearray(FIRST_SCRATCH_BYTES))
        self._start = 0  # of the bytes that were not returned
        self._end = 0  # of the bytes that were received
        self._size = 0  # the announced size of the frame at the start
        # A large frame: its memory, the bytes in it, its announced size. And the size of the
        # previous large frame, up to which memory is allocated at once.
        self._large: memoryview | None = None
        self._large_end = 0
        self._large_size = 0
        self._proven_size = 0
        self.has_frame = False

    @property
    def has_room(self) -> bool:
        """Whether more may be read. After a pause, asyncio may still deliver some bytes."""
        if self._large is not None:
            return bool(self._large_missing)
        return self._end - self._start < len(self._scratch)

    def buffer(self) -> memoryview:
        """Return the memory for the next bytes, which is never empty."""
        if missing := self._large_missing:
            return missing
        if self._start:
            rest = self._end - self._start
            if rest:
                self._scratch[:rest] = bytes(self._scratch[self._start : self._end])
            self._start, self._end = 0, rest
        if self._end == len(self._scratch):
            # asyncio's TLS before Python 3.11 delivers all decrypted bytes, even if paused.
            self._enlarge(2 * self._end)
        return self._scratch[self._end :]

    def received(self, count: int) -> None:
        """Add the first `count` bytes of `buffer()`. Raises KafkaProtocolError for a wrong size."""
        if self._large_missing:
            self._large_end += count
            if self._large_end == len(self._large or b""):
                self._continue_large()
            return
        self._end += count
        if self._large is not None:  # it is complete, and the bytes follow it
            return
        if self._end == len(self._scratch):  # the socket may have more
            self._grow(GROWTH * len(self._scratch))
        self._look()

    def next_frame(self) -> memoryview:
        """Return the complete frame, in memory of its own. Raises as `received`."""
        if not self.has_frame:
            raise RuntimeError("no request has arrived completely")
        if self._large is not None:
            frame, self._large = self._large, None
            self._look()
            return frame
        first = self._start + _SIZE.size
        self._start = first + self._size
        frame = memoryview(bytearray(self._scratch[first : self._start]))
        self._look()
        return frame

    @property
    def _large_missing(self) -> memoryview | None:
        """The memory for the rest of a large frame, empty if it is complete."""
        return None if self._large is None else self._large[self._large_end :]

    def _look(self) -> None:
        there = self._end - self._start - _SIZE.size
        if there < 0:
            self.has_frame = False
            return
        size = self._size = _SIZE.unpack_from(self._scratch, self._start)[0]
        if not 0 < size <= self.max_frame_bytes:
            prefix = bytes(self._scratch[self._start : self._start + _SIZE.size])
            raise KafkaProtocolError(
                f"the client announces a request of {size} bytes ({prefix!r}), but the broker "
                f"accepts 1 to {self.max_frame_bytes} bytes{_guess(prefix)}"
            )
        self.has_frame = there >= size
        if not self.has_frame:
            if _SIZE.size + size > SCRATCH_BYTES:
                self._begin_large(size)
            else:
                self._grow(_SIZE.size + size)

    def _grow(self, needed: int) -> None:
        size = len(self._scratch)
        while size < min(needed, SCRATCH_BYTES):
            size *= GROWTH
        if size > len(self._scratch):
            self._enlarge(min(size, SCRATCH_BYTES))

    def _enlarge(self, size: int) -> None:
        larger = memoryview(bytearray(size))
        larger[: self._end] = self._scratch[: self._end]
        self._scratch = larger

    def _begin_large(self, size: int) -> None:
        head = self._scratch[self._start + _SIZE.size : self._end]
        if size >= MAPPED_FROM_BYTES:
            self._large = anonymous_memory(size)
        else:
            room = max(GROWTH * len(head), len(self._scratch), self._proven_size)
            self._large = memoryview(bytearray(min(room, size)))
        self._large[: len(head)] = head
        self._large_end = len(head)
        self._large_size = size
        self._start = self._end = 0

    def _continue_large(self) -> None:
        if self._large_end == self._large_size:
            self.has_frame = True
            self._proven_size = self._large_size
            return
        larger = memoryview(bytearray(min(GROWTH * self._large_end, self._large_size)))
        larger[: self._large_end] = self._large or b""
        self._large = larger


def _guess(prefix: bytes) -> str:
    if prefix[0] == 0x16:
        return ". The bytes look like TLS, but this listener does not use TLS"
    if prefix in (b"GET ", b"POST", b"HEAD", b"PUT "):
        return ". The bytes look like HTTP, but this is a Kafka listener"
    return ""


# A transport without a descriptor, such as TLS, gets this much at once.
WRITE_BYTES: Final = 256 << 10
# Its high-water mark. Not 0, because asyncio's TLS would then pause without anything to write, and
# would never resume.
HIGH_WATER_BYTES: Final = 64 << 10
# The piece for the transport of a full socket. A small one, because the transport copies it.
PIECE_BYTES: Final = 4 << 10
PARTS_AT_ONCE: Final = 64


def socket_of(transport: asyncio.Transport) -> int | None:
    """Return a descriptor to write to. None: only the transport can (TLS, simulated, no writev)."""
    socket = plain_socket(transport)
    return socket.fileno() if socket is not None and hasattr(os, "writev") else None


def write(fd: int, parts: deque[Part]) -> bool:
    """Write parts to a socket, remove the written ones, and return whether all were written."""
    while parts:
        batch = list(islice(parts, PARTS_AT_ONCE))
        try:
            taken = os.writev(fd, batch)
        except BlockingIOError:
            return False
        for part in batch:
            if taken < len(part):
                parts[0] = memoryview(part)[taken:]
                return False
            taken -= len(part)
            parts.popleft()
    return True


def take(parts: deque[Part], size: int) -> Part:
    first = parts.popleft()
    if len(first) > size:
        view = memoryview(first)
        parts.appendleft(view[size:])
        return view[:size]
    return first
