"""Frames out of a stream of bytes, with no more copying than a connection's first kilobytes.

Most requests are small: they arrive whole in one read of a fixed buffer. A large one gets memory
of exactly its size, and the socket is read straight into that.
"""

from __future__ import annotations

import mmap
from typing import Final

from aiokafka_lite.errors import KafkaProtocolError

SIZE_BYTES: Final = 4
SCRATCH_BYTES: Final = 16 << 10
# Memory from here on comes page by page as it is filled: a claimed size costs nothing.
MAPPED_FROM_BYTES: Final = 256 << 10


class FrameReceiver:
    """Collects one frame after the other: `buffer`, read into it, `received`, `next_frame`."""

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._start = 0  # of what has not been handed out
        self._end = 0  # of what was received
        self._large: memoryview | None = None
        self._large_end = 0

    def buffer(self) -> memoryview:
        """Return where the next bytes go; never empty unless `has_frame`."""
        if self._large is not None:
            return self._large[self._large_end :]
        if self._start:
            rest = self._end - self._start
            self._scratch[:rest] = bytes(self._scratch[self._start : self._end])
            self._start, self._end = 0, rest
        return self._scratch[self._end :]

    def received(self, count: int) -> None:
        """Note that the first `count` bytes of `buffer()` were filled.

        Raises:
            KafkaProtocolError: The peer announces a frame that is too large, or no frame.
        """
        if self._large is not None:
            self._large_end += count
        else:
            self._end += count
            self._begin_large()

    @property
    def has_frame(self) -> bool:
        """There is a whole frame that was not handed out."""
        if self._large is not None:
            return self._large_end == len(self._large)
        size = self._announced()
        return size is not None and self._end - self._start - SIZE_BYTES >= size

    def next_frame(self) -> memoryview:
        """Return the frame that there is, in memory of its own.

        Raises:
            KafkaProtocolError: What follows in the buffer announces no proper frame.
            RuntimeError: There is no whole frame.
        """
        size = self._announced()
        if not self.has_frame:
            raise RuntimeError("no frame is complete yet")
        if self._large is not None:
            frame, self._large = self._large, None
            return frame
        first = self._start + SIZE_BYTES
        self._start = first + (size or 0)
        frame = memoryview(bytearray(self._scratch[first : self._start]))
        self._begin_large()
        return frame

    def _announced(self) -> int | None:
        if self._end - self._start < SIZE_BYTES:
            return None
        prefix = self._scratch[self._start : self._start + SIZE_BYTES]
        return int.from_bytes(prefix, "big", signed=True)

    def _begin_large(self) -> None:
        """Check the announced size; move a frame that does not fit the scratch out of it."""
        size = self._announced()
        if size is None:
            return
        if not 0 < size <= self._max_frame_bytes:
            prefix = bytes(self._scratch[self._start : self._start + SIZE_BYTES])
            raise KafkaProtocolError(
                f"the peer announces a request of {size} bytes ({prefix!r}); "
                f"1 to {self._max_frame_bytes} are accepted{_guess(prefix)}"
            )
        if size > SCRATCH_BYTES - SIZE_BYTES:
            head = self._scratch[self._start + SIZE_BYTES : self._end]
            is_mapped = size >= MAPPED_FROM_BYTES
            self._large = memoryview(mmap.mmap(-1, size) if is_mapped else bytearray(size))
            self._large[: len(head)] = head
            self._large_end = len(head)
            self._start = self._end = 0


def _guess(prefix: bytes) -> str:
    if prefix[0] == 0x16:
        return "; it looks like TLS, and this listener is plain"
    if prefix in (b"GET ", b"POST", b"HEAD", b"PUT "):
        return "; it looks like HTTP"
    return ""
