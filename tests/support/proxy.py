"""A TCP proxy in front of a broker that breaks connections as networks do, byte by byte.

It knows nothing of Kafka but where a request names its API, so that a test can break the
connection that fetches and leave the one that heartbeats. What may be done is set on the proxy,
for connections to come and for those that are there: hold back a direction (the peer is there,
and silent), delay it, let it trickle, split it, cut it after so many bytes with or without a
reset, end every connection after a while, refuse new ones.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Callable, Sequence
from types import TracebackType

import pytest

from aiokafka_lite._compat import Self
from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.broker.node import close_server
from aiokafka_lite.client.config import Address
from aiokafka_lite.client.connection import dial
from tests.support import tuning

CHUNK_BYTES = 64 * 1024
RESET = struct.pack("ii", 1, 0)  # SO_LINGER that sends RST instead of FIN


class Direction:
    """What happens to the bytes that go one way.

    Attributes:
        delay_s: How late each piece is.
        piece_bytes: How many bytes are written at once; None: as they come.
        pause_s: How long to wait between pieces.
        cut_after_bytes: Each connection ends when so many have passed; None: never.
        split: Told the size of what came, where to split it; it is written in two.
    """

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.piece_bytes: int | None = None
        self.pause_s = 0.0
        self.cut_after_bytes: int | None = None
        self.split: Callable[[int], int] | None = None
        self._is_open = asyncio.Event()
        self._is_open.set()

    def hold(self) -> None:
        """Let nothing through until `release`."""
        self._is_open.clear()

    def release(self) -> None:
        """Let everything through that was held back, and what comes."""
        self._is_open.set()

    async def wait_open(self) -> None:
        await self._is_open.wait()

    def pieces(self, chunk: bytes) -> Sequence[bytes]:
        if self.split is not None:
            at = self.split(len(chunk))
            return [chunk[:at], chunk[at:]]
        size = self.piece_bytes or len(chunk)
        return [chunk[start : start + size] for start in range(0, len(chunk), size)]


class Link:
    """One connection through the proxy: both of its ends.

    Attributes:
        api_keys: The APIs of the requests that came in one piece, as they do.
        is_held: Whether this connection lets nothing through to the client.
    """

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.api_keys: set[int] = set()
        self.held = Direction()
        self._ends = (client, server)

    def end(self, *, reset: bool = False) -> None:
        """Close both ends; a reset takes what was sent and has not arrived."""
        for writer in self._ends:
            sock: socket.socket | None = writer.get_extra_info("socket")
            if reset and sock is not None and sock.fileno() >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                writer.transport.abort()
            else:
                writer.close()


class Proxy:
    """A proxy to one address. Use it in an `async with`.

    Attributes:
        to_server, to_client: What happens to what goes there.
        lifetime_s: Each new connection ends after a time between these; None: never.
        resets: Whether connections end with a reset.
        refuses: Whether new connections are closed at once.
        accepted_at: Loop times at which connections came.
        links: Those that are there.
    """

    def __init__(
        self, target: Address, *, host: str = "127.0.0.1", port: int = 0, seed: int = 1
    ) -> None:
        self.target = target
        self.host = host
        self.port = port
        self.to_server, self.to_client = Direction(), Direction()
        self.lifetime_s: tuple[float, float] | None = None
        self.resets = False
        self.refuses = False
        self.accepted_at: list[float] = []
        self.links: list[Link] = []
        self._loop = asyncio.get_running_loop()
        self._rng = random.Random(seed)
        self._scope = TaskScope("proxy")
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> Address:
        return Address(self.host, self.port)

    def links_of(self, api_key: int) -> list[Link]:
        """The connections on which an API was asked."""
        return [link for link in self.links if api_key in link.api_keys]

    def end_all(self, *, reset: bool = False) -> None:
        """End every connection."""
        for link in tuple(self.links):
            link.end(reset=reset)

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def listen(self) -> None:
        """Take connections, at the port of the time before if there was one."""
        self._server = await asyncio.start_server(self._accepted, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop_listening(self) -> None:
        """Take no connections any more: they are refused."""
        server, self._server = self._server, None
        if server is not None:
            await close_server(server)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop_listening()
        await self._scope.close()
        self.end_all()
        await asyncio.sleep(0)
        self._scope.raise_if_failed()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted_at.append(self._loop.time())
        if self.refuses:
            writer.transport.abort()
        else:
            self._scope.spawn(self._serve(reader, writer), name="link")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_server, server = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            return
        for end in (writer, server):
            sock: socket.socket = end.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = Link(writer, server)
        self.links.append(link)
        timer = None
        if self.lifetime_s is not None:
            timer = self._loop.call_later(
                self._rng.uniform(*self.lifetime_s), lambda: link.end(reset=self.resets)
            )
        pumps = (
            self._scope.spawn(self._pump(link, reader, server, self.to_server), name="to server"),
            self._scope.spawn(
                self._pump(link, from_server, writer, self.to_client), name="to client"
            ),
        )
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if timer is not None:
                timer.cancel()
            for pump in pumps:
                self._scope.cancel(pump)
            link.end(reset=self.resets)
            self.links.remove(link)

    async def _pump(
        self,
        link: Link,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        way: Direction,
    ) -> None:
        passed_bytes = 0
        try:
            while chunk := await reader.read(CHUNK_BYTES):
                if way is self.to_server and len(chunk) >= 6:
                    link.api_keys.add(int.from_bytes(chunk[4:6], "big"))
                if way is self.to_client:
                    await link.held.wait_open()
                if way.delay_s:
                    await asyncio.sleep(way.delay_s)
                for piece in way.pieces(chunk):
                    await way.wait_open()
                    limit = way.cut_after_bytes
                    writer.write(piece if limit is None else piece[: limit - passed_bytes])
                    await writer.drain()
                    passed_bytes += len(piece)
                    if limit is not None and passed_bytes >= limit:
                        return
                    if way.pause_s or len(piece) < len(chunk):
                        await asyncio.sleep(way.pause_s)
        except (OSError, RuntimeError):
            pass  # one end is gone (uvloop: RuntimeError): so is the other


def send_through(monkeypatch: pytest.MonkeyPatch, *proxies: Proxy) -> None:
    """Have every connection to a proxy's target made to the proxy, whatever brokers advertise."""
    places = {proxy.target: proxy for proxy in proxies}

    async def dial_proxy(make: object, address: Address, **settings: object) -> object:
        proxy = places.get(address)
        return await dial(make, address if proxy is None else proxy.address, **settings)  # type: ignore[arg-type]

    tuning.dial_by(monkeypatch, dial_proxy)
