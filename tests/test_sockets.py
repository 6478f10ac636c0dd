"""Tests of transports without the operating system's sockets, as of simulated networks."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable
from typing import Any

import pytest

from aiokafka_lite import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka_lite._sockets import is_real, plain_socket, real_socket
from aiokafka_lite.broker import Broker
from aiokafka_lite.protocol.messages.metadata import MetadataRequest
from aiokafka_lite.simulation import simulate


class LookAlike:
    """A socket without the operating system's."""

    family, type, proto = socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} of a socket that is not real")


class Pipe(asyncio.Transport):
    """One end of a connection in memory."""

    def __init__(self, loop: asyncio.AbstractEventLoop, names: dict[str, object]) -> None:
        super().__init__(names | {"socket": LookAlike()})
        self._loop = loop
        self._is_closing = False
        self.peer: Pipe
        self.protocol: Any

    def write(self, data: Any) -> None:
        self._loop.call_later(0.001, self.peer.receive, bytes(data))

    def receive(self, data: bytes) -> None:
        if isinstance(self.protocol, asyncio.BufferedProtocol):
            while data and not self._is_closing:
                room = memoryview(self.protocol.get_buffer(-1))
                count = min(len(room), len(data))
                room[:count] = data[:count]
                self.protocol.buffer_updated(count)
                data = data[count:]
        elif not self._is_closing:
            self.protocol.data_received(data)

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_soon(self.protocol.connection_lost, None)
            self._loop.call_later(0.001, self.peer.close)

    abort = close

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


class Listening:
    def __init__(self, loop: Loop, port: int) -> None:
        self._loop, self._port = loop, port
        self.sockets = loop.listening_sockets

    def close(self) -> None:
        self._loop.listeners.pop(self._port, None)

    def get_loop(self) -> Loop:
        return self._loop


class Loop(asyncio.SelectorEventLoop):
    """A loop whose network is in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.listeners: dict[int, Callable[[], asyncio.BaseProtocol]] = {}
        self.listening_sockets: tuple[Any, ...] = ()
        self.tls: dict[int, tuple[object, object]] = {}

    async def create_server(  # type: ignore[override]
        self,
        factory: Any,
        host: str,
        port: int,
        *,
        backlog: int,
        ssl: object = None,
        ssl_handshake_timeout: object = None,
    ) -> Listening:
        if port in self.listeners:
            raise OSError(errno.EADDRINUSE, "in use")
        self.listeners[port] = factory
        self.tls[port] = ssl, ssl_handshake_timeout
        return Listening(self, port)

    async def create_connection(self, factory: Any, host: str, port: int, **tls: Any) -> Any:  # type: ignore[override]
        ends = [Pipe(self, {"peername": (host, port), "sockname": (host, 1)}) for _ in "12"]
        for end, other, make in zip(
            ends, reversed(ends), (factory, self.listeners[port]), strict=True
        ):
            end.peer, end.protocol = other, make()
        for end in ends:
            end.protocol.connection_made(end)
        return ends[0], ends[0].protocol

    def remove_reader(self, fd: Any) -> Any:
        if fd != self._ssock.fileno():  # type: ignore[attr-defined]
            raise AssertionError("a simulated loop has no readers")
        return super().remove_reader(fd)


def run(main: Any, sockets: tuple[object, ...] = ()) -> None:
    loop = Loop()
    loop.listening_sockets = sockets
    simulate(loop, 1)
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


@pytest.mark.parametrize("sockets", [(), (LookAlike(),)])
def test_clients_and_brokers_need_no_descriptor(
    monkeypatch: pytest.MonkeyPatch, sockets: tuple[object, ...]
) -> None:
    def writev(fd: int, buffers: object) -> int:
        raise AssertionError("written past the transport")

    monkeypatch.setattr(os, "writev", writev, raising=False)

    async def main() -> None:
        async with Broker(nodes=2) as broker, Broker() as another:
            ports = [each.rpartition(":")[2] for each in broker.bootstrap_servers.split(",")]
            assert [*ports, another.bootstrap_servers.rpartition(":")[2]] == [
                "9092", "9093", "9094",
            ]  # fmt: skip
            broker.create_topic("t", 2)
            async with (
                AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer,
                AIOKafkaConsumer(
                    "t",
                    bootstrap_servers=broker.bootstrap_servers,
                    group_id="g",
                    auto_offset_reset="earliest",
                ) as consumer,
            ):
                large = bytes(900_000)  # larger than a buffer of the connection
                for partition in (0, 1):
                    await producer.send_and_wait("t", large, partition=partition)
                for _ in "12":
                    assert (await consumer.getone()).value == large
                broker.on(MetadataRequest).disconnect(reset=True)
                await producer.partitions_for("u")

    run(main, sockets)


def test_a_stop_does_not_wait_for_transports_of_a_crashed_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        broker = Broker(stop_timeout_s=0.05)
        await broker.start()
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        await producer.start()
        monkeypatch.setattr(Pipe, "close", lambda pipe: None)
        monkeypatch.setattr(Pipe, "abort", lambda pipe: None)
        await asyncio.wait_for(broker.stop(), 5)
        monkeypatch.undo()
        await producer.stop()

    run(main)


def test_the_loop_shakes_hands() -> None:
    async def main() -> None:
        async with Broker(security_protocol="SSL", sasl_authentication_timeout_s=7.0, port=9500):
            loop = asyncio.get_running_loop()
            assert isinstance(loop, Loop)
            context, timeout_s = loop.tls[9500]
            assert isinstance(context, ssl.SSLContext)
            assert timeout_s == 7.0

    run(main)


@pytest.mark.every_loop
async def test_only_sockets_of_the_system_are_real() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
    assert all(map(is_real, server.sockets))
    address = server.sockets[0].getsockname()
    transport, _ = await loop.create_connection(asyncio.Protocol, *address)
    try:
        assert real_socket(transport) is plain_socket(transport) is not None
    finally:
        transport.abort()
        server.close()
        await asyncio.sleep(0.01)
    assert not is_real(LookAlike())
    assert not is_real(None)
    assert real_socket(Pipe(loop, {})) is None
