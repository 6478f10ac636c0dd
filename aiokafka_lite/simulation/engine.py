"""simloop's event loop and network, with the faults that it lacks. Only this imports simloop.

| fault | here |
|---|---|
| a hang of a process, a blocked loop | `freeze`, `thaw`: neither callbacks run nor packets arrive |
| a killed process | `kill`: nothing of it runs again, not even a `finally`; peers get a reset |
| a machine without power | the same, and peers get nothing |
| a cut network | `cut`, `heal`: one way or both; packets are held, as TCP sends them again |
| a lost connection | `reset`: both ends get a reset, bytes in flight are lost |
| an end that sends no more | `half_close` |
| a slow network | `slow_down` |
| partial delivery | `pieces`: writes arrive in several pieces |

The order of callbacks that are ready at the same time is `Order`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import operator
import random
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import simloop
from simloop import _net, _policy, _transports

from aiokafka_lite._virtual import START_MS, simulate, simulation_of
from aiokafka_lite.simulation.schedule import Order

# Python 3.11 lacks it. simloop needs nothing else of 3.12.
if not hasattr(asyncio.Handle, "get_context"):
    asyncio.Handle.get_context = lambda self: self._context  # type: ignore[attr-defined]

RUN: Final = operator.methodcaller("_run")
# A callback takes some time, or a wait below the clock's resolution would never end.
CALLBACK_S: Final = 1e-6
STEPS_OF_A_RUN: Final = 15_000
# A run with more is not going to end.
MOST_STEPS: Final = 200_000
LATENCY_S: Final = (0.0005, 0.005)
# The latency to and from a slow host.
SLOW_S: Final = (0.2, 1.5)


Links: TypeAlias = frozenset[tuple[str, str]]


class LivelockError(Exception):
    """Callbacks run without an end."""


class _Fifo:
    diverged_at = None

    def choose(self, ready: Sequence[object]) -> int:
        return 0


class _Nearly:
    diverged_at = None

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"{seed}:nearly")

    def choose(self, ready: Sequence[object]) -> int:
        count = len(ready)
        return 0 if count == 1 or self._rng.random() < 0.95 else self._rng.randrange(count)


def _policy_of(order: Order, seed: int) -> Any:
    if order is Order.FIFO:
        return _Fifo()
    if order is Order.NEARLY:
        return _Nearly(seed)
    if order is Order.PCT:
        return _policy.PCTPolicy(seed, 3, STEPS_OF_A_RUN)
    return _policy.SeededPolicy(seed)


class _NoTrace:
    """Records nothing: a trace is needed for a timeline only."""

    events = ()

    def record(self, *event: object) -> None:
        pass

    def __len__(self) -> int:
        return 0


class Transport(_transports._SimStreamTransport):
    """A transport that treats the time after `close` as asyncio's own does."""

    def write(self, data: Any) -> None:
        if self._closing or self._closed:
            return
        pieces = self._net.pieces
        if pieces is None or len(data) < 2:
            super().write(data)
            return
        view, start = bytes(data), 0
        for end in pieces(len(view)):
            super().write(view[start:end])
            start = end

    def _data_arrived(self, data: bytes) -> None:
        if not self._closing:
            super()._data_arrived(data)

    def _eof_arrived(self) -> None:
        if not self._closing:
            super()._eof_arrived()

    def _deliver(self, data: bytes) -> None:
        if not self._buffered:
            self._protocol.data_received(data)
            return
        view = memoryview(data)
        while view:
            if self._closing:
                return
            if self._read_paused:
                self._backlog.insert(0, bytes(view))
                return
            buffer = self._protocol.get_buffer(len(view))
            taken = min(len(buffer), len(view))
            buffer[:taken] = view[:taken]
            self._protocol.buffer_updated(taken)
            view = view[taken:]

    def end_without_word(self) -> None:
        """Be gone, as the process that it belonged to."""
        self._closed = self._closing = True
        self._net._drop_stream(self._conn, *self._local)

    def send_end(self) -> None:
        """Send the end of this direction only."""
        if not self._closing:
            self._send("fin")

    def reset_now(self) -> None:
        self._reset_arrived()


_net._SimStreamTransport = Transport


class Network(_net.SimNetwork):
    """simloop's network with more faults. Hosts are named."""

    def __init__(self, loop: Loop, seed: int) -> None:
        super().__init__(loop)
        self._cut_links: list[Links] = []
        self._frozen_packets: dict[str, list[Any]] = {}
        self._slow: set[str] = set()
        self._pieces_rng = random.Random(f"{seed}:pieces")
        self.pieces: Callable[[int], Iterable[int]] | None = None
        self.set_defaults(latency=LATENCY_S)

    # Faults

    def cut(self, ones: Iterable[str], others: Iterable[str], *, both_ways: bool = True) -> Links:
        """Cut the links from some hosts to others. Return the links, for `heal`."""
        there = frozenset((one, other) for one in ones for other in others if one != other)
        back = frozenset((dst, src) for src, dst in there) if both_ways else frozenset()
        self._cut_links.append(there | back)
        return self._cut_links[-1]

    def heal(self, links: Links | None = None) -> None:
        """End one cut, or all, and send the packets that were held."""
        if links is None:
            self._cut_links.clear()
        elif links in self._cut_links:
            self._cut_links.remove(links)
        super().heal()

    def reset(self, one: str, other: str) -> int:
        """Reset the connections between two hosts. Return how many there were."""
        ends = [end for end in self._ends() if {end._local[0], end._remote[0]} == {one, other}]
        for end in ends:
            with self.on(end._local[0]):
                end.reset_now()
        return len(ends) // 2

    def half_close(self, one: str, other: str) -> None:
        """Have one host send no more to another on their connections."""
        for end in self._ends():
            if (end._local[0], end._remote[0]) == (one, other):
                with self.on(one):
                    end.send_end()

    def slow_down(self, host: str, *, is_slow: bool = True) -> None:
        (self._slow.add if is_slow else self._slow.discard)(host)

    def deliver_in_pieces(self, *, most: int | None) -> None:
        """Deliver each write in up to so many pieces; None: whole."""
        if most is None:
            self.pieces = None
            return

        def ends(size: int) -> Iterable[int]:
            count = self._pieces_rng.randint(1, most)
            inner = {self._pieces_rng.randrange(1, size) for _ in range(count - 1)}
            return [*sorted(inner), size]

        self.pieces = ends

    # Hosts

    @contextlib.contextmanager
    def on(self, host: str) -> Iterator[None]:
        """Run what is called here on a host."""
        token = _net._current_host.set(host)
        try:
            yield
        finally:
            _net._current_host.reset(token)

    def freeze(self, host: str) -> None:
        self._frozen_packets.setdefault(host, [])

    def thaw(self, host: str) -> None:
        for packet in self._frozen_packets.pop(host):
            self._loop.call_soon(self._deliver, packet, context=_net._wire_context())

    def cut_power(self, host: str) -> None:
        """Have a host neither send nor receive, until `give_power`."""
        self._alive[host] = False

    def give_power(self, host: str) -> None:
        self._alive[host] = True

    def end_host(self, host: str, *, is_silent: bool) -> None:
        """End the connections of a host, whose process is gone."""
        for end in self._ends():
            if end._local[0] == host:
                peer = end._remote[0]
                end.end_without_word()
                if not is_silent:
                    self._reset_later(host, peer, end._conn, end._remote)
        for bind in [bind for bind in self._listeners if bind[0] == host]:
            del self._listeners[bind]
        self._frozen_packets.pop(host, None)
        if is_silent:
            self._alive[host] = False

    def tasks_on(self, host: str) -> list[str]:
        """Return the names of the unfinished tasks of a host."""
        return [task.get_name() for task in self._tasks[host] if not task.done()]

    def connections_of(self, host: str) -> int:
        return sum(end._local[0] == host for end in self._ends())

    def _ends(self) -> list[Any]:
        return [*self._streams.values()]

    # What simloop does otherwise

    def _is_cut(self, a: str, b: str) -> bool:
        return any((a, b) in links for links in self._cut_links)

    def _resolved(self, src: str, dst: str) -> Any:
        if src in self._slow or dst in self._slow:
            return SLOW_S, 0.0, 0.0
        return super()._resolved(src, dst)

    def _deliver(self, packet: Any) -> None:
        frozen = self._frozen_packets.get(packet.dst)
        if frozen is not None:
            frozen.append(packet)
        else:
            super()._deliver(packet)

    def _dispatch_ready(self, packet: Any) -> None:
        is_unknown = (
            packet.conn not in self._pending
            if packet.kind == "accept"
            else (packet.conn, packet.dst, packet.dst_port) not in self._streams
        )
        if is_unknown and packet.kind in ("accept", "data"):
            # Nobody has this connection (any more): a machine answers with a reset.
            remote = (packet.src, packet.src_port)
            self._reset_later(packet.dst, packet.src, packet.conn, remote)
            return
        super()._dispatch_ready(packet)

    def _reset_later(self, src: str, dst: str, conn: int, remote: tuple[str, int]) -> None:
        delay_s = self._rng.uniform(*self._resolved(src, dst)[0])
        context = _net._wire_context()
        self._loop.call_later(delay_s, self._reset_end, src, (conn, *remote), context=context)

    def _reset_end(self, src: str, key: tuple[int, str, int]) -> None:
        end = self._streams.get(key)
        if (
            end is None
            or self._is_cut(src, key[1])
            or not (self._alive[src] and self._alive[key[1]])
        ):
            return
        if key[1] in self._frozen_packets:
            self._loop.call_later(0.05, self._reset_end, src, key, context=_net._wire_context())
            return
        with self.on(key[1]):
            end.reset_now()


class Loop(simloop.SimLoop):
    """One seed's loop.

    Args:
        seed: Decides the order of callbacks and the times of packets.
        order: How the next callback is chosen.
        is_traced: Whether to record what `timeline` shows.
    """

    def __init__(self, seed: int, order: Order = Order.ANY, *, is_traced: bool = False) -> None:
        super().__init__(seed)
        if not is_traced:
            self._recorder = _NoTrace()
        self._policy = _policy_of(order, seed)
        self._net = Network(self, seed)
        simulate(self, seed)
        # Entries of hosts that stand still, to run later; of dead ones, kept so that no `finally`
        # runs when they are collected.
        self._frozen: dict[str, list[Any]] = {}
        self._dead: set[str] = set()
        self._buried: list[Any] = []
        self.steps = 0

    @property
    def now(self) -> float:
        """The true time, without a host's clock skew."""
        return float(self._now)

    def time(self) -> float:
        return self._now + self._net._offset_now() if self._net._clock_offsets else self._now

    @property
    def net(self) -> Network:
        return self._net

    def jump_wall_clock(self, offset_s: float) -> None:
        """Have the time of day of all clients differ from the cluster's."""
        if (simulation := simulation_of(self)) is not None:
            simulation.start_ns = START_MS * 1_000_000 + round(offset_s * 1e9)

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **settings: Any
    ) -> Any:
        """Listen on the host that an address belongs to."""
        with self._net.on(self._net.hostname(host)):
            return await super().create_server(protocol_factory, host, port, **settings)

    def start(
        self, host: str, work: Coroutine[object, object, Any], *, name: str | None = None
    ) -> asyncio.Task[Any]:
        """Run a coroutine on a host."""
        with self._net.on(self._net.host(host).name):
            return self.create_task(work, name=name or host)

    def freeze(self, host: str) -> None:
        """Have nothing run on a host, as when its process is stopped or its loop blocked."""
        self._frozen.setdefault(host, [])
        self._net.freeze(host)

    def thaw(self, host: str) -> None:
        """Let a host go on, if it was frozen: with all that has become due."""
        if host in self._frozen:
            self._ready.extend(self._frozen.pop(host))
            self._net.thaw(host)

    def kill(self, host: str, *, is_silent: bool) -> None:
        """End a process: nothing of it runs again. `is_silent`: its machine has no power."""
        self._frozen.pop(host, None)
        self._dead.add(host)
        self._net.end_host(host, is_silent=is_silent)

    @property
    def unhandled(self) -> list[BaseException]:
        """The errors that nobody has caught."""
        return self._unhandled

    def _step(self) -> None:
        if not self._ready:
            self._advance_clock()
        index = self._policy.choose(self._ready_views)
        self._choice_log.append(index)
        entry = self._ready.pop(index)
        seq, label, handle, _ = entry
        if handle.cancelled():
            return
        host = handle.get_context().get(_net._current_host, _net.DRIVER)
        if host in self._frozen:
            self._frozen[host].append(entry)
            return
        if host in self._dead:
            self._buried.append(entry)
            return
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise LivelockError(
                f"{MOST_STEPS} callbacks by {self._now:.1f} virtual seconds: {label}"
            )
        self._recorder.record("run", self._now, seq, label, host)
        RUN(handle)
        self._now += CALLBACK_S

    def digest(self) -> str:
        """Return a digest of all choices so far. Equal runs have equal ones."""
        digest = hashlib.sha256(self._choice_log.tobytes())
        digest.update(f"{self._now!r} {self._next_seq} {self._net._next_uid}".encode())
        return digest.hexdigest()[:16]

    def timeline(self) -> str:
        """Return an HTML page of the traced run."""
        return str(simloop.timeline_html(self._recorder.events))

    def run(self, work: Coroutine[object, object, Any]) -> Any:
        """Run a coroutine; then end what is left, without a word."""
        gc.disable()
        task = self.create_task(work)
        task.add_done_callback(self._stop_when_done)
        try:
            self.run_forever()
        finally:
            self._abandon()
            gc.enable()
        if not task.done():
            raise simloop.SimulationDeadlockError("nothing is left to run, and the course waits")
        return task.result()

    def _abandon(self) -> None:
        for tasks in self._net._tasks.values():
            for task in tasks:
                if not task.done():
                    task._log_destroy_pending = False
        self._exception_handler = lambda loop, context: None
