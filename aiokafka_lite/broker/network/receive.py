"""Frames out of a stream of bytes, with as few system calls and as little fresh memory as can be.

Most requests are small: they arrive whole, often several with one read, in a buffer that serves
again and again, and are copied out of it. The buffer begins small, as most connections stay idle,
and grows with what a connection sends. A frame that is larger than it ever gets has memory of its
own, in the end of exactly its size, and the socket is read straight into that.

A size that is announced costs nothing: memory is there for what has come, and for a few times as
much. Only a connection that has sent a frame is believed that the next one will be as large.
"""

from __future__ import annotations

import struct
from typing import Final

from aiokafka_lite.broker.log.memory import anonymous_memory
from aiokafka_lite.errors import KafkaProtocolError

FIRST_SCRATCH_BYTES: Final = 4 << 10
SCRATCH_BYTES: Final = 128 << 10
GROWTH: Final = 4
# Memory from here on comes page by page as it is filled. Below it is cheaper to clear memory that
# the process has had before than to be given fresh pages; that grows with what has come.
MAPPED_FROM_BYTES: Final = 4 << 20

_SIZE: Final = struct.Struct(">i")


class FrameReceiver:
    """Collects frames: `buffer`, read into it, `received`, `next_frame` while `has_frame`.

    Attributes:
        has_frame: There is a whole frame that was not handed out.
        max_frame_bytes: Largest frame that may begin; its owner may change it.
    """

    __slots__ = (
        "_end",
        "_large",
        "_large_end",
        "_large_size",
        "_proven_size",
        "_scratch",
        "_size",
        "_start",
        "has_frame",
        "max_frame_bytes",
    )

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._scratch = memoryview(bytearray(FIRST_SCRATCH_BYTES))
        self._start = 0  # of what has not been handed out
        self._end = 0  # of what was received
        self._size = 0  # of the frame at the start, as it announces itself
        # A large frame: the memory that there is for it, how much of that is filled, and how much
        # it is to be; and the size of the one before, which is believed without any growing.
        self._large: memoryview | None = None
        self._large_end = 0
        self._large_size = 0
        self._proven_size = 0
        self.has_frame = False

    @property
    def has_room(self) -> bool:
        """More may be read. Whoever pauses when there is none may still be told of what was."""
        if self._large is not None:
            return bool(self._large_missing)
        return self._end - self._start < len(self._scratch)

    def buffer(self) -> memoryview:
        """Return where the next bytes go; never empty."""
        if missing := self._large_missing:
            return missing
        if self._start:
            rest = self._end - self._start
            if rest:
                self._scratch[:rest] = bytes(self._scratch[self._start : self._end])
            self._start, self._end = 0, rest
        if self._end == len(self._scratch):
            # asyncio's TLS before Python 3.11 hands out all it has decrypted, paused or not.
            self._enlarge(2 * self._end)
        return self._scratch[self._end :]

    def received(self, count: int) -> None:
        """Note that the first `count` bytes of `buffer()` were filled.

        Raises:
            KafkaProtocolError: The peer announces a frame that is too large, or no frame.
        """
        if self._large_missing:
            self._large_end += count
            if self._large_end == len(self._large or b""):
                self._continue_large()
            return
        self._end += count
        if self._large is not None:  # it is complete: this is after it
            return
        if self._end == len(self._scratch):  # there may be more where this came from
            self._grow(GROWTH * len(self._scratch))
        self._look()

    def next_frame(self) -> memoryview:
        """Return the frame that there is, in memory of its own.

        Raises:
            KafkaProtocolError: What follows in the buffer announces no proper frame.
            RuntimeError: There is no whole frame.
        """
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
        """Where the rest of a large frame goes; None or empty without one that is not complete."""
        return None if self._large is None else self._large[self._large_end :]

    def _look(self) -> None:
        """Check the announced size, and make room for the frame if it is not all there."""
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
        """Move a frame that will not fit the scratch out of it."""
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
        """Make room for more of a large frame that has filled its buffer, or note that it ends."""
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
