"""The faults of the simulated network and its hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import pytest

from aiokafka_lite._sockets import discard_unacknowledged

if TYPE_CHECKING:
    from aiokafka_lite.simulation.engine import Loop

pytest.importorskip("simloop", reason="simloop is not installed")
# Killed processes end nothing themselves.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


class Pair:
    """A server on the host `b`, and a client on the host `c`, which write down what arrives."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.got: list[bytes] = []
        self.ends: list[str] = []
        self.writers: list[asyncio.StreamWriter] = []
        self._has_connection = asyncio.Event()

    async def open(self) -> asyncio.StreamWriter:
        self.loop.net.host("c")
        self.loop.net.host("b")
        await self.loop.start("b", self._serve())
        reader: asyncio.StreamReader
        writer: asyncio.StreamWriter
        reader, writer = await self.loop.start("c", self._connect())
        self._reading = self.loop.start("c", self._watch("c", reader))
        await self._has_connection.wait()
        return writer

    async def _serve(self) -> None:
        await asyncio.start_server(self._accept, self.loop.net.address("b"), 1)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.loop.net.address("b"), 1)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        self._has_connection.set()
        await self._watch("b", reader)

    async def _watch(self, name: str, reader: asyncio.StreamReader) -> None:
        try:
            while data := await reader.read(100):
                if name == "b":
                    self.got.append(data)
            self.ends.append(f"{name}: end")
        except ConnectionResetError:
            self.ends.append(f"{name}: reset")


def run(course: Callable[[Loop, Pair], Coroutine[Any, Any, None]]) -> None:
    from aiokafka_lite.simulation.engine import Loop
    from aiokafka_lite.simulation.schedule import Order

    loop = Loop(1, Order.ANY)
    asyncio.set_event_loop(loop)
    pair = Pair(loop)
    try:
        loop.run(course(loop, pair))
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def test_frozen_host_receives_all_when_it_thaws() -> None:
    async def course(loop: Loop, pair: Pair) -> None:
        writer = await pair.open()
        loop.freeze("b")
        writer.write(b"1")
        await asyncio.sleep(5)
        loop.freeze("b")  # two faults at once
        await asyncio.sleep(5)
        assert not pair.got
        loop.thaw("b")
        await asyncio.sleep(1)
        assert pair.got == [b"1"]

    run(course)


def test_frozen_host_is_reset_when_it_thaws_after_it_has_received_all() -> None:
    async def course(loop: Loop, pair: Pair) -> None:
        writer = await pair.open()
        loop.freeze("b")
        writer.write(b"1")
        await asyncio.sleep(1)
        loop.kill("c", is_silent=False)
        await asyncio.sleep(5)
        loop.thaw("b")
        await asyncio.sleep(1)
        assert pair.got == [b"1"]
        assert pair.ends == ["b: reset"]

    run(course)


def test_timer_of_a_frozen_host_fires_when_it_thaws() -> None:
    async def course(loop: Loop, pair: Pair) -> None:
        loop.net.host("b")
        sleeping = loop.start("b", asyncio.sleep(1))
        await asyncio.sleep(0.5)
        loop.freeze("b")
        await asyncio.sleep(5)
        assert not sleeping.done()
        loop.thaw("b")
        await asyncio.sleep(0.1)
        assert sleeping.done()

    run(course)


@pytest.mark.parametrize("is_silent", [False, True])
def test_killed_process_ends_nothing_itself(*, is_silent: bool) -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            ended.append("finally")

    async def course(loop: Loop, pair: Pair) -> None:
        writer = await pair.open()
        loop.start("b", work())
        await asyncio.sleep(0.5)
        loop.kill("b", is_silent=is_silent)
        writer.write(b"1")
        await asyncio.sleep(5)
        assert not ended
        assert pair.ends == ([] if is_silent else ["c: reset"])

    run(course)


def test_cut_link_holds_what_is_sent_one_way() -> None:
    async def course(loop: Loop, pair: Pair) -> None:
        writer = await pair.open()
        links = loop.net.cut(["c"], ["b"], both_ways=False)
        writer.write(b"1")
        pair.writers[0].write_eof()
        await asyncio.sleep(5)
        assert not pair.got
        assert pair.ends == ["c: end"]
        writer.transport.abort()
        loop.net.heal(links)
        await asyncio.sleep(1)
        assert pair.got == [b"1"]

    run(course)


def test_what_is_discarded_by_the_end_of_a_connection_does_not_arrive() -> None:
    async def course(loop: Loop, pair: Pair) -> None:
        writer = await pair.open()
        writer.write(b"1")
        await asyncio.sleep(1)
        links = loop.net.cut(["c"], ["b"])
        writer.write(b"2")
        discard_unacknowledged(writer.transport)
        writer.transport.abort()
        await asyncio.sleep(1)
        loop.net.heal(links)
        await asyncio.sleep(1)
        pair.writers[0].write(b"3")
        await asyncio.sleep(1)
        assert pair.got == [b"1"]
        assert "b: reset" in pair.ends

    run(course)


def test_reset_loses_what_is_in_flight() -> None:
    async def course(loop: Loop, pair: Pair) -> None:
        writer = await pair.open()
        writer.write(b"1")
        port = writer.get_extra_info("sockname")[1]
        assert loop.net.addresses_of("c") == {f"c:{port}"}
        assert loop.net.reset("b", "c") == 1
        assert not loop.net.addresses_of("c")
        await asyncio.sleep(1)
        assert not pair.got
        assert sorted(pair.ends) == ["b: reset", "c: reset"]

    run(course)


def test_writes_arrive_in_pieces() -> None:
    async def course(loop: Loop, pair: Pair) -> None:
        writer = await pair.open()
        loop.net.deliver_in_pieces(most=4)
        for _ in range(20):
            writer.write(b"0123456789")
            await asyncio.sleep(1)
        assert b"".join(pair.got) == b"0123456789" * 20
        assert len(pair.got) > 30

    run(course)


def test_error_of_a_forgotten_task_is_reported() -> None:

    async def fail() -> None:
        raise LookupError

    async def course(loop: Loop, pair: Pair) -> None:
        loop.create_task(fail())
        await asyncio.sleep(1)
        loops.append(loop)

    loops: list[Loop] = []
    run(course)
    assert [type(error) for error in loops[0].unhandled] == [LookupError]
