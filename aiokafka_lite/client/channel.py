"""The part of a connection that moves bytes; compiled in place (channel.pxd)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiokafka_lite.errors import KafkaError, KafkaProtocolError

if TYPE_CHECKING:
    import asyncio

    from aiokafka_lite._compat import Buffer
    from aiokafka_lite.client.frames import FrameReader
    from aiokafka_lite.client.low_water import LowWaterMark
    from aiokafka_lite.client.wire import Wire


class Channel:
    """A base of `Connection`, which sets the fields: writes requests, passes on responses."""

    wire: Wire
    _reader: FrameReader
    _low_water: LowWaterMark
    _is_draining: bool
    _timer_at: float
    _transport: asyncio.Transport | None
    _wanted_bytes: int

    def write(self, encoded: bytes, deadline: float) -> None:
        """Write a request in flight, and check its deadline then. Ignore a lost connection."""
        if self._transport is None or self.wire.error is not None:
            return
        if deadline < self._timer_at:
            self._set_timer(deadline)
        try:
            self._transport.write(encoded)
        except (OSError, RuntimeError) as error:  # uvloop: RuntimeError once the transport closed
            self._fail(self.wire.lost(error, is_sending=True))

    # --- asyncio.BufferedProtocol ----------------------------------------------------------
    def get_buffer(self, sizehint: int) -> Buffer:
        try:
            return self._reader.missing()
        except Exception as error:  # noqa: BLE001 -- reported, see callback_failed
            self.callback_failed(error)
            return bytearray(1)

    def buffer_updated(self, nbytes: int) -> None:
        wire, reader = self.wire, self._reader
        try:
            while True:
                try:
                    exchange = wire.receive(nbytes)
                except KafkaProtocolError as error:
                    self._fail(error)
                    return
                if exchange is not None:
                    exchange.answered()
                    if self._is_draining and not wire.in_flight:
                        self._last_answer_arrived()
                    if reader.head is not None:
                        nbytes = 0  # the next response arrived with this one
                        continue
                if reader.wanted_bytes != self._wanted_bytes:
                    self._want(reader.wanted_bytes)
                return
        except Exception as error:  # noqa: BLE001 -- reported, see callback_failed
            self.callback_failed(error)

    def _want(self, count: int) -> None:
        """Be called when so many bytes have arrived."""
        self._wanted_bytes = count
        self._low_water.want(count)

    # --- Implemented by the connection -----------------------------------------------------
    def callback_failed(self, error: BaseException) -> None:
        """Close the connection because of a bug that the event loop would only log."""
        raise NotImplementedError

    def _fail(self, error: KafkaError) -> None:
        raise NotImplementedError

    def _set_timer(self, when: float) -> None:
        raise NotImplementedError

    def _last_answer_arrived(self) -> None:
        raise NotImplementedError
