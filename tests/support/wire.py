"""The smallest Kafka client: one blocking-order connection on plain streams.

Tests use it to create topics, to produce, and to ask for exactly one version of one message;
it shares the codecs with the package and nothing else.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from types import TracebackType
from typing import TypeVar

from aiokafka_lite._compat import Self
from aiokafka_lite.protocol import framing
from aiokafka_lite.protocol.schema import Request, Response
from tests.support.frames import correlation_id_of

R = TypeVar("R", bound=Response)


class RawClient:
    """One connection; requests are answered one at a time, in the version asked for.

    Args:
        address: "host:port"; of several, the first is used.
        ssl_context: The client's side of TLS, to a listener that has it.
    """

    def __init__(
        self, address: str, *, client_id: str = "raw", ssl_context: ssl.SSLContext | None = None
    ) -> None:
        host, _, port = address.split(",")[0].rpartition(":")
        self._host, self._port = host, int(port)
        self._client_id = client_id
        self._ssl_context = ssl_context
        self._correlation_id = 0
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def __aenter__(self) -> Self:
        self._streams = await asyncio.open_connection(self._host, self._port, ssl=self._ssl_context)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._streams is not None
        _, writer = self._streams
        writer.close()
        try:
            await writer.wait_closed()
        except (ConnectionError, ssl.SSLError):
            pass  # the broker was first

    async def request(self, request: Request[R], version: int | None = None) -> R:
        """Send a request, the newest stable version by default, and return its answer."""
        (answer,) = await self.requests(request, version=version)
        return answer

    async def requests(self, *requests: Request[R], version: int | None = None) -> list[R]:
        """Send requests at once and return their answers, in order."""
        sent: list[tuple[Request[R], int, int]] = []
        frames: list[bytes] = []
        for request in requests:
            chosen = type(request).max_version if version is None else version
            self._correlation_id += 1
            sent.append((request, chosen, self._correlation_id))
            frames.append(framing.encode_request(request, chosen, sent[-1][2], self._client_id))
        answers: list[R] = []
        for (request, chosen, correlation_id), answer in zip(
            sent, await self.pipeline(frames), strict=True
        ):
            assert correlation_id_of(answer) == correlation_id
            answers.append(framing.response_decoder(type(request), chosen)(answer))
        return answers

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        assert self._streams is not None
        _, writer = self._streams
        writer.write(data)
        await writer.drain()

    @property
    def local_address(self) -> tuple[str, int]:
        """The host and the port of this end."""
        assert self._streams is not None
        host, port = self._streams[1].get_extra_info("sockname")[:2]
        return host, port

    async def read(self, count: int) -> bytes:
        """Return so many bytes as they come, fewer when the broker closes the connection."""
        assert self._streams is not None
        try:
            return await self._streams[0].readexactly(count)
        except asyncio.IncompleteReadError as error:
            return error.partial

    async def receive(self) -> memoryview:
        """Return the next frame, without its size."""
        assert self._streams is not None
        reader, _ = self._streams
        size = int.from_bytes(await reader.readexactly(4), "big")
        return memoryview(await reader.readexactly(size))

    async def exchange(self, data: bytes) -> memoryview:
        """Send bytes as they are and return the next frame."""
        await self.send(data)
        return await self.receive()

    async def pipeline(self, frames: Sequence[bytes]) -> list[memoryview]:
        """Send several requests at once and return as many frames, as they come."""
        await self.send(b"".join(frames))
        return [await self.receive() for _ in frames]
