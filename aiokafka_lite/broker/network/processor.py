"""One client's connection.

    read a frame → decode → RequestChannel → handler → encode → write → read the next frame

One request is in flight at a time (the connection is muted until its response), so responses are
sent in the order of requests. At most one buffer, or one large frame, is read ahead, which notices
closed connections during long polls.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, cast

from aiokafka_lite._sockets import real_socket
from aiokafka_lite.broker.cluster import ClusterNode, EmbeddedCluster
from aiokafka_lite.broker.handlers.base import HANDLERS, HandlerEntry, RequestContext
from aiokafka_lite.broker.network import frames
from aiokafka_lite.broker.network.dispatcher import (
    BareToken,
    FaultPort,
    RequestChannel,
    RequestWork,
)
from aiokafka_lite.broker.network.frames import FrameReceiver
from aiokafka_lite.broker.network.request_log import RequestLog
from aiokafka_lite.broker.refusals import NO_ERRORS, error_codes, error_codes_in_steps
from aiokafka_lite.broker.security.listener import ANONYMOUS, Listener, principal_of
from aiokafka_lite.broker.security.session import Verdict
from aiokafka_lite.broker.slices import run_in_slices
from aiokafka_lite.errors import (
    KafkaError,
    KafkaProtocolError,
    KafkaStorageError,
    UnsupportedVersionError,
)
from aiokafka_lite.protocol import codec, framing
from aiokafka_lite.protocol.encoding import Part
from aiokafka_lite.protocol.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from aiokafka_lite.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from aiokafka_lite.protocol.schema import Request, Response
from aiokafka_lite.protocol.source import ELEMENTS_PER_STEP, Steps, run_to_end

log = logging.getLogger(__name__)


NEWEST_UNDERSTOOD_BY_ALL: Final = 0

NO_CORRELATION_ID: Final = -1

# From this size on, a frame may have so many elements that decoding takes milliseconds.
DECODED_IN_STEPS_FROM_BYTES: Final = 1 << 10

# SO_LINGER with a time of 0: closing resets the connection.
_NO_LINGER: Final = struct.pack("ii", 1, 0)


class Host(ClusterNode, Protocol):
    """The node of a connection. `BrokerNode` implements it."""

    cluster: EmbeddedCluster
    channel: RequestChannel[RequestWork]
    faults: FaultPort
    requests: RequestLog
    # Reports an exception that a handler has raised.
    on_bug: Callable[[str, BaseException], None]

    @property
    def has_room(self) -> bool: ...
    def admit(self, processor: Processor) -> bool: ...
    def dismiss(self, processor: Processor) -> None: ...


class Processor(asyncio.BufferedProtocol):
    """The protocol of one connection. It alone writes its fields."""

    def __init__(self, node: Host, listener: Listener, loop: asyncio.AbstractEventLoop) -> None:
        self._node = node
        self._listener = listener
        self._loop = loop
        self.sasl = node.cluster.security.new_session(listener)
        self._receiver = FrameReceiver(self._max_frame_bytes)
        self._transport: asyncio.Transport | None = None
        self._fd: int | None = None
        self._outgoing: deque[Part] = deque()
        self._is_muted = False
        self._is_reading_paused = False
        self._is_waiting_for_room = False
        self._is_writable = True
        self._on_closed: Callable[[], None] | None = None
        self._throttle_s = 0.0
        self._unmute_timer: asyncio.TimerHandle | None = None
        # A fault closes the connection after this number of bytes.
        self._bytes_left: int | None = None
        self._certified_name = ANONYMOUS
        self.peer_host = ""
        self.peer = ""
        self.last_active_at = loop.time()

    # The transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        # The peer name is missing if the client left before it was accepted.
        peer = transport.get_extra_info("peername") or ("unknown", 0)
        self.peer_host, self.peer = f"/{peer[0]}", f"{peer[0]}:{peer[1]}"
        self._fd = frames.socket_of(self._transport)
        high = frames.HIGH_WATER_BYTES if self._fd is None else 0
        self._transport.set_write_buffer_limits(high=high)
        if not self._node.admit(self):
            log.warning(
                "connection from %s is refused: max_connections or max_connections_per_ip is "
                "reached, or the node is stopping",
                self.peer,
            )
            self.abort()
            return
        if self.sasl is not None:
            self.sasl.opened(self._authentication_overdue)
        else:
            self._certified_name = principal_of(transport.get_extra_info("peercert"))
        if self._node.faults.is_armed_for_connections:
            self._apply_fault()

    def _apply_fault(self) -> None:
        try:
            self._node.faults.connected(self, self._node.id)
        except Exception as error:  # noqa: BLE001 — reported: the test's own function may fail
            self._node.on_bug(f"a rule for connections failed for {self.peer}", error)
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._transport.abort()  # or Python 3.10 warns of an unclosed TLS transport
        self._transport = None
        if self.sasl is not None:
            self.sasl.closed()
        on_closed, self._on_closed = self._on_closed, None
        if on_closed is not None:
            on_closed()
        self._node.dismiss(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.last_active_at = self._loop.time()
        try:
            self._receiver.received(nbytes)
            self._advance()
        except KafkaProtocolError as error:
            self.refuse(error)

    def eof_received(self) -> bool:
        return False  # close: clients that stop sending do not wait for responses

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self._write_more()
        self._next()

    # Authentication

    @property
    def listener_name(self) -> str:
        return self._listener.name

    @property
    def principal(self) -> str:
        """The client's name in Kafka: "User:alice", "User:ANONYMOUS"."""
        name = None if self.sasl is None else self.sasl.username
        return f"User:{name or self._certified_name}"

    @property
    def _max_frame_bytes(self) -> int:
        config = self._node.cluster.config
        is_trusted = self.sasl is None or self.sasl.username is not None
        return config.max_frame_bytes if is_trusted else config.sasl_server_max_receive_bytes

    def _may_be_handled(self, api_key: int) -> bool:
        """Return whether the SASL session permits a request. If not, the connection closes."""
        if self.sasl is None:
            return True
        verdict = self.sasl.judge(api_key)
        if verdict is Verdict.CLOSE:
            raise KafkaProtocolError(
                f"the client sent a request with API key {api_key} before its SASL "
                f"authentication was complete, or after its SASL session expired"
            )
        if verdict is Verdict.FAIL:
            self._fail_later([])
        return verdict is Verdict.HANDLE

    def _fail_later(self, parts: list[Part]) -> None:
        """Report a failed authentication after a delay, and close."""
        self._is_muted = True
        delay_ms = self._node.cluster.config.connection_failed_authentication_delay_ms
        self._loop.call_later(delay_ms / 1_000, self._fail, parts)

    def _fail(self, parts: list[Part]) -> None:
        if self._transport is not None:
            log.warning("connection from %s is closed: authentication failed", self.peer)
            self._write(parts)
            self.close()

    def _authentication_overdue(self) -> None:
        log.warning(
            "connection from %s is closed: the client did not authenticate within "
            "sasl_authentication_timeout_s",
            self.peer,
        )
        self.abort()

    # Reading

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    @property
    def is_idle(self) -> bool:
        return not self._is_muted

    @property
    def _is_ready(self) -> bool:
        """Whether the last response was written completely."""
        is_busy = self._is_muted or self._outgoing or not self._is_writable
        return self._transport is not None and not is_busy

    def _advance(self) -> None:
        channel = self._node.channel
        while self._is_ready and self._receiver.has_frame:
            if not channel.has_room:
                if not self._is_waiting_for_room:
                    self._is_waiting_for_room = True
                    channel.call_when_room(self._room_made)
                break
            self._submit(self._receiver.next_frame())
        self._adjust_reading()

    def _room_made(self) -> None:
        self._is_waiting_for_room = False
        self._next()

    def _adjust_reading(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        should_pause = not self._receiver.has_room
        if should_pause != self._is_reading_paused:
            self._is_reading_paused = should_pause
            if should_pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _submit(self, frame: memoryview) -> None:
        if self.sasl is not None and self.sasl.expects_bare_token:
            self._submit_token(frame)
            return
        header = framing.decode_request(frame)
        if not self._may_be_handled(header.api_key):
            return
        entry = HANDLERS.get(header.api_key)
        if entry is None or not (
            entry.request.min_version <= header.version <= entry.request.max_version
        ):
            self._refuse(header.api_key, header.version, header.correlation_id)
            return
        self._is_muted = True
        # Bytes after the request are ignored, as in Kafka, because librdkafka sends some.
        if len(frame) < DECODED_IN_STEPS_FROM_BYTES:
            request = codec.decoder(entry.request, header.version)(header.body, True)
            self._put(entry, header, request.from_version(header.version), len(frame))
            return
        steps = codec.decoder_in_steps(entry.request, header.version)(header.body, True)
        try:
            next(steps)
        except StopIteration as end:  # it has few elements
            self._put(entry, header, end.value.from_version(header.version), len(frame))
        else:
            self._node.cluster.scope.spawn(
                self._submit_in_slices(steps, entry, header, len(frame)), name="decoding"
            )

    async def _submit_in_slices(
        self,
        steps: Steps[Request[Response]],
        entry: HandlerEntry,
        header: framing.RequestFrame,
        size_bytes: int,
    ) -> None:
        try:
            decoded = await run_in_slices(steps)
            request = await run_in_slices(decoded.from_version_in_steps(header.version))
        except KafkaProtocolError as error:
            self.refuse(error)
            return
        channel = self._node.channel
        while not channel.has_room:
            room = asyncio.Event()
            channel.call_when_room(room.set)
            await room.wait()
        if self._transport is not None:
            self._put(entry, header, request, size_bytes)

    def _put(
        self,
        entry: HandlerEntry,
        header: framing.RequestFrame,
        request: Request[Response],
        size_bytes: int,
    ) -> None:
        context = self._context(header.version, header.client_id)
        work = RequestWork(self, entry, context, header.correlation_id, request, size_bytes)
        requests = self._node.requests
        if requests.is_on:
            work.seen = requests.arrived(
                context, self.peer, request, size_bytes, self.last_active_at
            )
        self._node.channel.put(work)

    def _context(self, version: int, client_id: str | None) -> RequestContext:
        return RequestContext(self._node.cluster, self._node, version, client_id, self)

    def _submit_token(self, frame: memoryview) -> None:
        """Submit a token after SaslHandshake v0 as if it was in a request."""
        entry = HANDLERS[SaslAuthenticateRequest.api_key]
        request = SaslAuthenticateRequest(auth_bytes=bytes(frame))
        context = self._context(SaslAuthenticateRequest.min_version, None)
        self._is_muted = True
        work = BareToken(self, entry, context, NO_CORRELATION_ID, request, len(frame))
        self._node.channel.put(work)

    def _refuse(self, api_key: int, version: int, correlation_id: int) -> None:
        """Refuse an unsupported version. Only for ApiVersions can all clients read a response."""
        if api_key != ApiVersionsRequest.api_key:
            raise KafkaProtocolError(
                f"the broker does not support version {version} of API key {api_key}"
            )
        supported = ApiVersion(
            api_key=api_key,
            min_version=ApiVersionsRequest.min_version,
            max_version=ApiVersionsRequest.max_version,
        )
        response = ApiVersionsResponse(
            error_code=UnsupportedVersionError.errno, api_keys=[supported]
        )
        self._write(
            framing.encode_response_parts(response, NEWEST_UNDERSTOOD_BY_ALL, correlation_id)
        )

    # Answering

    def call_when_closed(self, callback: Callable[[], None] | None) -> None:
        """Call a function if the client disconnects before its response is sent."""
        self._on_closed = callback

    def answer(self, work: RequestWork, response: Response | None) -> None:
        """Answer the request in flight. None is for a request without a response."""
        self._on_closed = None
        if self._transport is None:
            return
        if work.rule is not None:
            work.rule.answer(work, response)
        else:
            self.send(work, response)

    def send(self, work: RequestWork, response: Response | None) -> None:
        """Send the response, bypassing the request's fault, and continue with the next request."""
        if response is None:
            if work.seen is not None:
                self._node.requests.answered(work.seen, NO_ERRORS, self._loop.time())
            self._unmute()
            return
        codes = error_codes(response)
        if codes is None:
            self._node.cluster.scope.spawn(self._send_in_slices(work, response), name="encoding")
            return
        if work.seen is not None:
            self._node.requests.answered(work.seen, codes, self._loop.time())
        version = work.context.api_version
        parts = framing.encode_response_parts(response, version, work.correlation_id)
        self._send_parts(work, response, parts)

    async def _send_in_slices(self, work: RequestWork, response: Response) -> None:
        version = work.context.api_version
        try:
            if work.seen is not None:
                codes = await run_in_slices(error_codes_in_steps(response))
                self._node.requests.answered(work.seen, codes, self._loop.time())
            parts = await run_in_slices(
                framing.encode_response_in_steps(response, version, work.correlation_id)
            )
            if self._transport is not None:
                self._send_parts(work, response, parts)
            if work.rule is None:  # a fault may keep the response
                await run_in_slices(_dropped(response))
        except Exception as error:  # noqa: BLE001 — reported
            self.fail(work, error)

    def _send_parts(self, work: RequestWork, response: Response, parts: list[Part]) -> None:
        if self.sasl is not None:
            if isinstance(work, BareToken) and isinstance(response, SaslAuthenticateResponse):
                token = response.auth_bytes
                parts = [] if self.sasl.has_failed else [len(token).to_bytes(4, "big") + token]
            if self.sasl.has_failed:
                self._fail_later(parts)
                return
            self._receiver.max_frame_bytes = self._max_frame_bytes
        self._write(parts)

    def _write(self, parts: list[Part]) -> None:
        self._outgoing.extend(parts)
        self._write_more()

    def _write_more(self) -> None:
        transport, outgoing = self._transport, self._outgoing
        if transport is None:
            return
        if self._bytes_left is not None:
            self._write_last(transport)
            return
        try:
            while outgoing and self._is_writable and not transport.is_closing():
                if self._fd is None:
                    transport.write(frames.take(outgoing, frames.WRITE_BYTES))
                elif not frames.write(self._fd, outgoing):  # the transport has nothing to write
                    transport.write(frames.take(outgoing, frames.PIECE_BYTES))
        except OSError:  # the connection is lost
            transport.abort()
        if self._is_muted and not outgoing and self._is_writable:
            self._unmute()

    def mute(self) -> None:
        self._is_muted = True

    def mute_for(self, throttle_s: float) -> None:
        """Mute the connection for this time after the response in flight (KIP-219)."""
        self._throttle_s = max(self._throttle_s, throttle_s)

    def _unmute(self) -> None:
        if self._unmute_timer is not None:
            return
        if self._throttle_s:
            self._unmute_timer = self._loop.call_later(self._throttle_s, self._throttled)
            self._throttle_s = 0.0
            return
        self._is_muted = False
        self.last_active_at = self._loop.time()
        if self._receiver.has_frame:
            # Not in the loop's next iteration, so that several requests of a client are handled
            # without a system call in between. This only queues the next one.
            self._next()

    def _throttled(self) -> None:
        self._unmute_timer = None
        self._unmute()

    def _next(self) -> None:
        try:
            self._advance()
        except KafkaProtocolError as error:
            self.refuse(error)

    # Responses of faults

    def encode(self, work: RequestWork, response: Response) -> bytes:
        return framing.encode_response(response, work.context.api_version, work.correlation_id)

    def write_now(self, piece: bytes) -> None:
        if self._transport is not None:
            self._outgoing.append(piece)
            is_muted, self._is_muted = self._is_muted, False
            self._write_more()
            self._is_muted = is_muted

    def write_rest(self, work: RequestWork, response: Response, rest: bytes) -> None:
        """Write the last piece of the response in flight, and continue with the next request."""
        if self._transport is None:
            return
        if work.seen is not None:
            codes = run_to_end(error_codes_in_steps(response))
            self._node.requests.answered(work.seen, codes, self._loop.time())
        self._write([rest])

    def _write_last(self, transport: asyncio.Transport) -> None:
        outgoing = self._outgoing
        while outgoing and self._bytes_left:
            part = outgoing.popleft()[: self._bytes_left]
            self._bytes_left -= len(part)
            transport.write(part)
        if self._bytes_left:
            self._unmute()
        else:
            transport.close()

    # The end

    def fail(self, work: RequestWork, error: BaseException) -> None:
        # Handlers raise the first to close the connection. After a failed write to the disk, a
        # response would promise data that a restart loses.
        if isinstance(error, KafkaProtocolError | KafkaStorageError):
            self.refuse(error)
            return
        context = work.context
        self._node.on_bug(
            f"the broker could not handle {work.entry.request.__name__} v{context.api_version} "
            f"from {self.peer} (client id {context.client_id!r})",
            error,
        )
        self.abort()

    def refuse(self, error: KafkaError) -> None:
        log.warning("connection from %s is closed: %s", self.peer, error)
        self.close()

    def close(self) -> None:
        """Close after the bytes that are being written."""
        if self._transport is not None:
            self._transport.close()

    def close_after(self, sent_bytes: int) -> None:
        self._bytes_left = sent_bytes
        self._write_more()

    def reset(self) -> None:
        if self._transport is not None:
            sock = real_socket(self._transport)
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            self._transport.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _dropped(response: Response) -> Steps[None]:
    """Empty the lists of a response, because freeing a million objects at once takes long."""
    for field in response.schema:
        items = getattr(response, field.slot)
        while isinstance(items, list) and items:
            del items[-ELEMENTS_PER_STEP:]
            yield
