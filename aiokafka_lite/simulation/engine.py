"""simloop's event loop and network, with the faults that it lacks. Only this imports simloop.

| fault | here |
|---|---|
| a hang of a process, a blocked loop | `freeze`, `thaw`: neither callbacks run nor packets arrive |
| a signal | `send_signal`: the handler of the host runs, if it has one |
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
import errno
import gc
import hashlib
import inspect
import random
import signal
import socket
import sys
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from contextvars import Context, copy_context
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, NamedTuple, TypeAlias

try:
    import simloop
    from simloop import _loop, _net, _transports
except ImportError as error:
    raise ImportError(
        "simulated tests need the package simloop, and Python 3.12 or newer: "
        "pip install 'aiokafka-lite[simulation]'"
    ) from error
# The engine extends private classes.
if simloop.__version__ != "0.2.2":
    raise ImportError(f"simulated tests need simloop 0.2.2, not {simloop.__version__}")

from aiokafka_lite._virtual import START_MS, simulate, simulation_of
from aiokafka_lite.simulation.schedule import Order

# The folder of simloop.
SIMLOOP: Final = simloop.__path__[0]
Packet: Final = _net._Packet
# A callback takes some time, or a wait below the clock's resolution would never end.
CALLBACK_S: Final = 1e-6
STEPS_OF_A_RUN: Final = 15_000
# A run with more is not going to end.
MOST_STEPS: Final = 200_000
# How often the order "nearly" is FIFO.
NEARLY: Final = 0.95
LATENCY_S: Final = (0.0005, 0.005)
# The latency to and from a slow host.
SLOW_S: Final = (0.2, 1.5)
UNCATCHABLE: Final = ("SIGKILL", "SIGSTOP")
# Addresses that mean the machine itself.
LOCAL: Final = (None, "", "0.0.0.0", "127.0.0.1", "localhost", "::", "::1")  # noqa: S104
# How many events the timeline draws.
DRAWN: Final = 20_000
# How often a coroutine is closed that awaits in a `finally`.
CLOSED_TIMES: Final = 100


Links: TypeAlias = frozenset[tuple[str, str]]


class LivelockError(Exception):
    """Callbacks run without an end."""


class SimulatedHandle(asyncio.TimerHandle):
    """A callback that is ready, or a timer."""

    __slots__ = ("number",)

    def __init__(
        self,
        number: int,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
        when: float = 0.0,
    ) -> None:
        self.number = number
        self._callback = callback
        self._args = args
        self._context = copy_context() if context is None else context
        self._when = when
        self._cancelled = False

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<SimulatedHandle {self.number} {self.label}>"

    @property
    def label(self) -> str:
        return "cancelled" if self._cancelled else str(_loop._label(self._callback))

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]


class _SignalHandler(NamedTuple):
    """A handler, and `given`, which `signal.getsignal` returns."""

    callback: Callable[..., object]
    args: tuple[Any, ...]
    context: Context
    given: Any


def _ignore(*_: object) -> None:
    pass


Choose: TypeAlias = Callable[[list[SimulatedHandle]], int]
PCT_CHANGES: Final = 2


class _Pct:
    """Runs the callback whose task has the highest priority.

    A task draws its priority when it is first ready. A callback of no task has one of its own.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._priorities: dict[object, float] = {}
        self._change_at = set(rng.sample(range(STEPS_OF_A_RUN), PCT_CHANGES))
        self._changes = self._choices = 0

    def _chain(self, entry: SimulatedHandle) -> object:
        task = getattr(entry._callback, "__self__", None)
        return task if isinstance(task, asyncio.Task) else entry

    def _priority(self, entry: SimulatedHandle) -> float:
        chain = self._chain(entry)
        if chain not in self._priorities:
            self._priorities[chain] = self._rng.random()
        return self._priorities[chain]

    def choose(self, ready: list[SimulatedHandle]) -> int:
        priorities = [self._priority(entry) for entry in ready]
        index = priorities.index(max(priorities))
        if self._choices in self._change_at:
            self._changes += 1
            self._priorities[self._chain(ready[index])] = -self._changes
        self._choices += 1
        return index


def _choice(order: Order, seed: int) -> Choose:
    rng = random.Random(f"{seed}:{order.value}")
    draw = rng.random
    if order is Order.FIFO:
        return lambda ready: 0
    if order is Order.NEARLY:
        return lambda ready: 0 if draw() < NEARLY else int(draw() * len(ready))
    if order is Order.PCT:
        return _Pct(rng).choose
    return lambda ready: int(draw() * len(ready))


class _Socket(_transports._SimSocket):
    """A socket with the option SO_LINGER, which clients set for no time only."""

    def setsockopt(self, *args: Any) -> None:
        if args[1] == socket.SO_LINGER:
            self._transport.lingers = False


class Transport(_transports._SimStreamTransport):
    """A transport that treats the time after `close` as asyncio's own does."""

    _out_seq: int
    _closed: bool
    _extra_socket: Any
    lingers = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "socket" and self._extra_socket is None and not self._closed:
            self._extra_socket = _Socket(self)
        return super().get_extra_info(name, default)

    def _force_close(self, exc: Exception | None) -> None:
        if self.lingers or self._closed:
            super()._force_close(exc)
            return
        self._closing = True
        net, (host, port) = self._net, self._local
        sender = self._conn, host, port
        net._held = [p for p in net._held if (p.conn, p.src, p.src_port) != sender]
        net._reset_later(host, self._remote[0], self._conn, self._remote)
        net._loop.call_soon(self._finish, exc)

    def write(self, data: Any) -> None:
        if self._closing:
            return
        pieces = self._net.pieces
        if pieces is None or len(data) < 2:
            if not data or self._eof_sent or self._net._flow_control:
                super().write(data)
            else:
                self._send("data", bytes(data))
            return
        view, start = bytes(data), 0
        for end in pieces(len(view)):
            super().write(view[start:end])
            start = end

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def _send(self, kind: str, payload: bytes = b"") -> None:
        number, self._out_seq = self._out_seq, self._out_seq + 1
        net, (host, port), (peer, peer_port) = self._net, self._local, self._remote
        uid, net._next_uid = net._next_uid, net._next_uid + 1
        net._transmit(Packet(kind, host, peer, port, peer_port, self._conn, number, payload, uid))

    def _data_arrived(self, data: bytes) -> None:
        if self._closing:
            return
        if self._read_paused or self._net._flow_control:
            super()._data_arrived(data)
        else:
            self._deliver(data)

    def _eof_arrived(self) -> None:
        if not self._closing:
            super()._eof_arrived()

    def _deliver(self, data: bytes) -> None:
        if not self._buffered:
            self._protocol.data_received(data)
            return
        while data and not self._closing:
            if self._read_paused:
                self._backlog.insert(0, data)
                return
            protocol, size = self._protocol, len(data)
            buffer = protocol.get_buffer(size)
            if len(buffer) >= size:
                buffer[:size] = data
                protocol.buffer_updated(size)
                return
            taken = len(buffer)
            buffer[:] = data[:taken]
            protocol.buffer_updated(taken)
            data = data[taken:]

    def end_without_word(self) -> None:
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
        # Each attempt to connect: when, from which host, to which.
        self.attempts: list[tuple[float, str, str]] = []
        # Packets are nobody's while they are under way.
        self._wire = _net._wire_context()
        self._contexts: dict[str, Context] = {}
        self.set_defaults(latency=LATENCY_S)

    # Faults

    def cut(self, ones: Iterable[str], others: Iterable[str], *, both_ways: bool = True) -> Links:
        """Return the links, for `heal`."""
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
        """Return the number of connections."""
        ends = [end for end in self._ends() if {end._local[0], end._remote[0]} == {one, other}]
        for end in ends:
            with self.on(end._local[0]):
                end.reset_now()
        return len(ends) // 2

    def half_close(self, one: str, other: str) -> None:
        for end in self._ends():
            if (end._local[0], end._remote[0]) == (one, other):
                with self.on(one):
                    end.send_end()

    def slow_down(self, host: str, *, is_slow: bool = True) -> None:
        (self._slow.add if is_slow else self._slow.discard)(host)

    def deliver_in_pieces(self, *, most: int | None) -> None:
        """Deliver each write in up to `most` pieces. None delivers it whole."""
        if most is None:
            self.pieces = None
            return

        def ends(size: int) -> Iterable[int]:
            count = self._pieces_rng.randint(1, most)
            inner = {self._pieces_rng.randrange(1, size) for _ in range(count - 1)}
            return [*sorted(inner), size]

        self.pieces = ends

    # Hosts

    @property
    def here(self) -> str:
        """The host that runs now."""
        return _net._current_host.get()

    @contextlib.contextmanager
    def on(self, host: str) -> Iterator[None]:
        """Run what is called here on a host."""
        token = _net._current_host.set(host)
        try:
            yield
        finally:
            _net._current_host.reset(token)

    def _on_host(self, host: str) -> Context:
        context = self._contexts.get(host)
        if context is None:
            with self.on(host):
                context = self._contexts[host] = copy_context()
        return context

    def freeze(self, host: str) -> None:
        self._frozen_packets.setdefault(host, [])

    def thaw(self, host: str) -> None:
        for packet in self._frozen_packets.pop(host):
            self._loop.call_soon(self._deliver, packet, context=self._wire)

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
        return [task.get_name() for task in self.unfinished_tasks(host)]

    def unfinished_tasks(self, host: str) -> list[asyncio.Task[Any]]:
        # Of finished tasks, `lost_errors` needs those whose error nobody has looked at.
        kept = [task for task in self._tasks[host] if not task.done() or task._log_traceback]
        self._tasks[host] = kept
        return [task for task in kept if not task.done()]

    def connections_of(self, host: str) -> int:
        return sum(end._local[0] == host for end in self._ends())

    def addresses_of(self, host: str) -> set[str]:
        """Return the host's ends of its open connections, as "host:port"."""
        return {
            f"{host}:{end._local[1]}"
            for end in self._ends()
            if end._local[0] == host and not end._closing
        }

    def has_received(self, host: str, sender: str) -> bool:
        """Whether all that another host has sent on open connections has arrived at a host."""
        return all(
            (arrived := self._inbound.get((end._conn, *end._remote))) is not None
            and arrived._next == end._out_seq
            for end in self._ends()
            if (end._local[0], end._remote[0]) == (sender, host)
        )

    def _ends(self) -> list[Any]:
        return [*self._streams.values()]

    # What simloop does otherwise, or takes longer for

    async def _open_connection(self, protocol_factory: Any, host: Any, port: Any) -> Any:
        attempt = (self._loop.now, _net._current_host.get(), self._resolve(host))
        self.attempts.append(attempt)
        return await super()._open_connection(protocol_factory, host, port)

    def is_local(self, host: object) -> bool:
        """Whether an address or a name means the machine that uses it."""
        return host in LOCAL

    def _resolve(self, host: Any) -> str:
        if self.is_local(host):
            return self.here
        try:
            return str(super()._resolve(host))
        except OSError:
            raise OSError(
                f"the simulation has no host {host!r}. Kafka is at kafka.bootstrap_servers, and a "
                "process can connect to its own host as localhost"
            ) from None

    def _is_cut(self, a: str, b: str) -> bool:
        return bool(self._cut_links) and any((a, b) in links for links in self._cut_links)

    def _resolved(self, src: str, dst: str) -> Any:
        if self._is_slow(src, dst):
            return SLOW_S, 0.0, 0.0
        return super()._resolved(src, dst)

    def _is_slow(self, src: str, dst: str) -> bool:
        return bool(self._slow) and (src in self._slow or dst in self._slow)

    def _trace(self, verb: str, packet: Any) -> None:
        if self._loop.is_traced:
            super()._trace(verb, packet)

    def _register_task(self, task: asyncio.Task[Any]) -> None:
        self._tasks[_net._current_host.get()].append(task)

    def _transmit(self, packet: Any) -> None:
        src, dst = packet.src, packet.dst
        if packet.kind == "dgram" or self._links:
            super()._transmit(packet)
        elif self._cut_links and self._is_cut(src, dst):
            self._blackhole(packet)
        elif self._slow and self._is_slow(src, dst):
            self._schedule(packet, SLOW_S)
        else:
            self._schedule(packet, self._default_latency)

    def _schedule(self, packet: Any, latency: tuple[float, float]) -> None:
        loop = self._loop
        if loop.is_traced:
            self._trace("send", packet)
        least_s, most_s = latency
        delay_s = least_s + (most_s - least_s) * self._rng.random()
        loop.add_timer(loop._now + delay_s, self._deliver, (packet,), self._wire)

    def _deliver(self, packet: Any) -> None:
        frozen = self._frozen_packets
        if frozen and packet.dst in frozen:
            frozen[packet.dst].append(packet)
        elif not (self._alive[packet.src] and self._alive[packet.dst]):
            self._trace("lost", packet)
        elif self._cut_links and self._is_cut(packet.src, packet.dst):
            self._blackhole(packet)
        else:
            if self._loop.is_traced:
                self._trace("deliver", packet)
            self._on_host(packet.dst).run(self._dispatch_stream, packet)

    def _dispatch_stream(self, packet: Any) -> None:
        key = (packet.conn, packet.dst, packet.dst_port)
        order = self._inbound.get(key)
        if order is None:
            order = self._inbound[key] = _net._InOrder(self)
        if packet.seq != order._next or order._early:
            order.push(packet)
            return
        order._next += 1
        end = self._streams.get(key) if packet.kind == "data" else None
        if end is None:
            self._dispatch_ready(packet)
        else:
            end._data_arrived(packet.payload)

    def _dispatch_ready(self, packet: Any) -> None:
        if packet.kind == "data":
            end = self._streams.get((packet.conn, packet.dst, packet.dst_port))
            is_known = end is not None
            if is_known:
                end._data_arrived(packet.payload)
        else:
            is_known = packet.kind != "accept" or packet.conn in self._pending
            if is_known:
                super()._dispatch_ready(packet)
        if not is_known:
            # Nobody has this connection (any more): a machine answers with a reset.
            remote = (packet.src, packet.src_port)
            self._reset_later(packet.dst, packet.src, packet.conn, remote)

    def _reset_later(self, src: str, dst: str, conn: int, remote: tuple[str, int]) -> None:
        delay_s = self._rng.uniform(*self._resolved(src, dst)[0])
        self._loop.call_later(delay_s, self._reset_end, src, (conn, *remote), context=self._wire)

    def _reset_end(self, src: str, key: tuple[int, str, int]) -> None:
        end = self._streams.get(key)
        if (
            end is None
            or self._is_cut(src, key[1])
            or not (self._alive[src] and self._alive[key[1]])
        ):
            return
        if key[1] in self._frozen_packets:
            self._loop.call_later(0.05, self._reset_end, src, key, context=self._wire)
            return
        with self.on(key[1]):
            end.reset_now()


class Loop(simloop.SimLoop):
    """One seed's loop.

    Args:
        seed: Decides the order of callbacks and the times of packets.
        is_traced: Whether to record what `timeline` shows.
        most_steps: A run with more callbacks is not going to end.
    """

    _now: float

    def __init__(
        self,
        seed: int,
        order: Order = Order.ANY,
        *,
        is_traced: bool = False,
        most_steps: int = MOST_STEPS,
    ) -> None:
        super().__init__(seed)
        self._most_steps = most_steps
        self.is_traced = is_traced
        self._choose = _choice(order, seed)
        self._number = count().__next__
        self._net = Network(self, seed)
        simulate(self, seed)
        # Entries of hosts that stand still, to run later; of dead ones, kept so that no `finally`
        # runs when they are collected.
        self._frozen: dict[str, list[SimulatedHandle]] = {}
        self._frozen_by: dict[str, set[str]] = {}
        self._dead: set[str] = set()
        self._buried: list[SimulatedHandle] = []
        # Each host is a process, which has its own handlers, generators and threads.
        self._signal_handlers: dict[tuple[str, signal.Signals], _SignalHandler] = {}
        # By id, because a generator has no weak references when it is collected.
        self._generators: dict[int, tuple[weakref.ref[AsyncGenerator[Any, Any]], str]] = {}
        self._without_executor: set[str] = set()
        self.steps = 0

    @property
    def now(self) -> float:
        return self._now

    def time(self) -> float:
        return self._now

    @property
    def net(self) -> Network:
        return self._net

    async def end_tasks(self, host: str) -> None:
        """Cancel the tasks of a host but the current one, and wait for their end."""
        current = asyncio.current_task(self)
        others = [task for task in self._net.unfinished_tasks(host) if task is not current]
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others)

    def jump_wall_clock(self, offset_s: float) -> None:
        """Have the time of day of all clients differ from the cluster's."""
        if (simulation := simulation_of(self)) is not None:
            simulation.start_ns = START_MS * 1_000_000 + round(offset_s * 1e9)

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **settings: Any
    ) -> Any:
        """Listen on the host that an address belongs to. A local one is that of the caller."""
        net = self._net
        name = net.here if net.is_local(host) else net.hostname(host)
        with net.on(name):
            address = net.address(name)
            return await super().create_server(protocol_factory, address, port, **settings)

    def start(
        self, host: str, work: Coroutine[object, object, Any], *, name: str | None = None
    ) -> asyncio.Task[Any]:
        with self._net.on(self._net.host(host).name):
            return self.create_task(work, name=name or host)

    def freeze(self, host: str, *, by: str = "fault") -> None:
        self._frozen_by.setdefault(host, set()).add(by)
        self._frozen.setdefault(host, [])
        self._net.freeze(host)

    def thaw(self, host: str, *, by: str = "fault") -> None:
        """Let a frozen host run its callbacks that have become due, unless another froze it."""
        causes = self._frozen_by.get(host, set())
        causes.discard(by)
        if host in self._frozen and not causes:
            self._ready.extend(self._frozen.pop(host))
            self._net.thaw(host)

    def kill(self, host: str, *, is_silent: bool) -> None:
        """`is_silent`: the machine has no power, so peers get no reset."""
        self._frozen.pop(host, None)
        self._frozen_by.pop(host, None)
        self._dead.add(host)
        self._net.end_host(host, is_silent=is_silent)

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:
        """Set the handler of a signal on the host that runs now."""
        if asyncio.iscoroutine(callback) or inspect.iscoroutinefunction(callback):
            raise TypeError("coroutines cannot be used with add_signal_handler()")
        given = signal.Signals(sig)
        if given.name in UNCATCHABLE:
            raise RuntimeError(f"sig {sig} cannot be caught")
        handler = _SignalHandler(callback, args, copy_context(), _ignore)
        self._signal_handlers[self._net.here, given] = handler

    def remove_signal_handler(self, sig: int) -> bool:
        return self._signal_handlers.pop((self._net.here, signal.Signals(sig)), None) is not None

    def set_signal(self, sig: int, handler: Any) -> Any:
        """Do as `signal.signal` on the host that runs now."""
        given = signal.Signals(sig)
        if given.name in UNCATCHABLE:
            raise OSError(errno.EINVAL, f"{given.name} cannot be caught")
        if not callable(handler) and handler not in (signal.SIG_IGN, signal.SIG_DFL):
            raise TypeError("signal handler must be SIG_IGN, SIG_DFL, or a callable object")
        previous, key = self.get_signal(given), (self._net.here, given)
        if handler in (signal.SIG_DFL, signal.default_int_handler):
            self._signal_handlers.pop(key, None)
        else:
            callback = handler if callable(handler) else _ignore
            args = given, None  # no frame
            self._signal_handlers[key] = _SignalHandler(callback, args, copy_context(), handler)
        return previous

    def get_signal(self, sig: int) -> Any:
        """Do as `signal.getsignal` on the host that runs now."""
        given = signal.Signals(sig)
        if (handler := self._signal_handlers.get((self._net.here, given))) is not None:
            return handler.given
        return signal.default_int_handler if given is signal.SIGINT else signal.SIG_DFL

    def handles_signal(self, host: str, sig: signal.Signals) -> bool:
        return (host, sig) in self._signal_handlers

    def send_signal(self, host: str, sig: signal.Signals, interrupt: Callable[[], object]) -> None:
        """Run the handler that a host has for a signal.

        `interrupt` ends the host's process if the handler raises SystemExit or KeyboardInterrupt.
        """
        callback, args, context, _ = self._signal_handlers[host, sig]

        def handle() -> None:
            try:
                callback(*args)
            except (SystemExit, KeyboardInterrupt):
                interrupt()

        self.call_soon(handle, context=context)

    # What asyncio.run does at the end of a process

    def run_forever(self) -> None:
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(self._generator_began, self._generator_left)
        try:
            super().run_forever()
        finally:
            sys.set_asyncgen_hooks(*hooks)

    def _generator_began(self, generator: AsyncGenerator[Any, Any]) -> None:
        # Another one may have had its id. They stay in the order in which they began.
        self._generators.pop(id(generator), None)
        self._generators[id(generator)] = weakref.ref(generator), self._net.here

    def _generator_left(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Close a generator that nobody refers to, unless its process or the run has ended."""
        _, host = self._generators.pop(id(generator))
        if self._running and host not in self._dead:
            context = self._net._on_host(host)
            self.call_soon(self.create_task, generator.aclose(), context=context)

    async def shutdown_asyncgens(self) -> None:
        """Close the generators of the host that runs now."""
        here = self._net.here
        found = [ref() for ref, host in self._generators.values() if host == here]
        left = [each for each in found if each is not None]
        closing = (each.aclose() for each in left)
        for generator, error in zip(
            left, await asyncio.gather(*closing, return_exceptions=True), strict=True
        ):
            if isinstance(error, Exception):
                message = f"an error occurred during closing of asynchronous generator {generator}"
                self.call_exception_handler({"message": message, "exception": error})

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait until calls in threads of the host that runs now have run, and refuse others."""
        here = self._net.here
        self._without_executor.add(here)
        jobs = [
            entry._callback._future
            for entry in self._ready
            if isinstance(entry._callback, _loop._ExecutorJob)
            and entry._context.get(_net._current_host, _net.DRIVER) == here
        ]
        if jobs:
            await asyncio.wait(jobs)

    def set_default_executor(self, executor: object) -> None:
        """Do nothing, because calls in threads are steps of the loop."""

    def run_in_executor(
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        if executor is None and self._net.here in self._without_executor:
            raise RuntimeError("Executor shutdown has been called")
        future: asyncio.Future[Any] = super().run_in_executor(executor, func, *args)
        return future

    @property
    def unhandled(self) -> list[BaseException]:
        return self._unhandled

    # What simloop does as well: here without clocks that differ, and seldom with a trace

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        entry = SimulatedHandle(self._number(), callback, args, context)
        self._ready.append(entry)
        if self.is_traced:
            self._record("schedule", entry, _net._current_host.get())
        return entry

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.add_timer(self._now + delay, callback, args, context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.add_timer(when, callback, args, context)

    def add_timer(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
    ) -> SimulatedHandle:
        entry = SimulatedHandle(self._number(), callback, args, context, when)
        heappush(self._timers, (when, entry.number, entry))
        if self.is_traced:
            self._record("schedule", entry, _net._current_host.get())
        return entry

    def create_task(
        self, coro: Any, *, name: str | None = None, **settings: Any
    ) -> asyncio.Task[Any]:
        if settings or self._task_factory is not None:
            return super().create_task(coro, name=name, **settings)
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name)
        self._net._register_task(task)
        return task

    def _record(self, verb: str, entry: SimulatedHandle, host: str) -> None:
        self._recorder.record(verb, self._now, entry.number, entry.label, host)

    def _advance_clock(self) -> None:
        timers, ready = self._timers, self._ready
        while timers and timers[0][2]._cancelled:
            heappop(timers)
        if not timers:
            raise simloop.SimulationDeadlockError("nothing is left to run")
        self._now = now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= now:
            entry = heappop(timers)[2]
            if not entry._cancelled:
                ready.append(entry)

    def _step(self) -> None:
        """Run callbacks until the loop stops or has none: a call for each takes longer."""
        ready, timers, choose = self._ready, self._timers, self._choose
        note_choice = self._choice_log.append
        frozen, dead = self._frozen, self._dead
        while not self._stopping and (ready or timers):
            if not ready:
                self._advance_clock()
            index = choose(ready) if len(ready) > 1 else 0
            note_choice(index)
            entry = ready.pop(index)
            if entry._cancelled:
                continue
            context = entry._context
            if (frozen or dead or self.is_traced) and self._is_held(entry, context):
                continue
            self.steps += 1
            if self.steps > self._most_steps:
                raise LivelockError(
                    f"{self._most_steps} callbacks by {self._now:.1f} virtual seconds: "
                    f"{entry.label}"
                )
            try:
                context.run(entry._callback, *entry._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 — as asyncio's handles do
                self.call_exception_handler({"message": "a callback failed", "exception": error})
            self._now += CALLBACK_S

    def _is_held(self, entry: SimulatedHandle, context: Context) -> bool:
        """Keep a callback whose host stands still, or is dead."""
        host = context.get(_net._current_host, _net.DRIVER)
        if host in self._frozen:
            self._frozen[host].append(entry)
            return True
        if host in self._dead:
            self._buried.append(entry)
            return True
        if self.is_traced:
            self._record("run", entry, host)
        return False

    def digest(self) -> str:
        """Return a digest of all choices so far. Equal runs have equal ones."""
        digest = hashlib.sha256(self._choice_log.tobytes())
        digest.update(f"{self._now!r} {self._number()} {self._net._next_uid}".encode())
        return digest.hexdigest()[:16]

    def timeline(self) -> str:
        return str(simloop.timeline_html(self._recorder.events, limit=DRAWN))

    def run(self, work: Coroutine[object, object, Any]) -> Any:
        """Run a coroutine; then end what is left, without a word."""
        collects = gc.isenabled()
        gc.disable()
        task = self.create_task(work)
        task.add_done_callback(self._stop_when_done)
        try:
            self.run_forever()
        finally:
            self._abandon()
            if collects:
                gc.enable()
        if not task.done():
            raise simloop.SimulationDeadlockError("nothing is left to run, and the course waits")
        result = task.result()
        self._unhandled.extend(self.lost_errors())
        return result

    def lost_errors(self) -> Iterator[BaseException]:
        """Yield the errors of tasks that nobody has looked at."""
        for host, tasks in self._net._tasks.items():
            for task in tasks:
                if host not in self._dead and task.done() and task._log_traceback:
                    yield task.exception()

    def _abandon(self) -> None:
        for tasks in self._net._tasks.values():
            for task in tasks:
                if not task.done():
                    task._log_destroy_pending = False
        self._exception_handler = lambda loop, context: None

    def close(self) -> None:
        """Close the coroutines of unfinished tasks: nothing may run when they are collected."""
        for host in self._net._tasks:
            for task in self._net.unfinished_tasks(host):
                coro = task.get_coro()
                for _ in range(CLOSED_TIMES):
                    with contextlib.suppress(BaseException):
                        coro.close()
                        break
        super().close()
