"""The way of requests to handlers: their queue, the task that calls handlers, and their waits."""

from __future__ import annotations

import asyncio
import types
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Protocol, TypeVar, cast

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.broker.handlers.base import Answer, Client, Delayed, HandlerEntry, RequestContext
from aiokafka_lite.broker.network.request_log import SeenRequest
from aiokafka_lite.broker.slices import TIME_SLICE_S, run_in_slices
from aiokafka_lite.protocol.schema import Request, Response
from aiokafka_lite.protocol.source import Steps, run_to_end


@dataclass(slots=True, eq=False)
class RequestWork:
    """`refused` is the response for elements that a fault refuses, while the rest is handled."""

    processor: ServedConnection
    entry: HandlerEntry
    context: RequestContext
    correlation_id: int
    request: Request[Response]
    size_bytes: int
    seen: SeenRequest | None = None
    rule: RequestFault | None = None
    refused: Response | None = None


class BareToken(RequestWork):
    """A SASL token outside of a request. Its response is a bare token, too."""

    __slots__ = ()


class ServedConnection(Client, Protocol):
    """The methods of `Processor` that the dispatcher and faults use."""

    peer: str

    @property
    def is_open(self) -> bool: ...
    def call_when_closed(self, callback: Callable[[], None] | None) -> None: ...
    def answer(self, work: RequestWork, response: Response | None) -> None: ...
    def fail(self, work: RequestWork, error: BaseException) -> None: ...
    def send(self, work: RequestWork, response: Response | None) -> None: ...
    def encode(self, work: RequestWork, response: Response) -> bytes: ...
    def write_now(self, piece: bytes) -> None: ...
    def write_rest(self, work: RequestWork, response: Response, rest: bytes) -> None: ...
    def mute(self) -> None: ...
    def mute_for(self, throttle_s: float) -> None: ...
    def close_after(self, sent_bytes: int) -> None: ...
    def close(self) -> None: ...
    def reset(self) -> None: ...


class RequestFault(Protocol):
    def answer(self, work: RequestWork, response: Response | None) -> None: ...


class FaultPort(Protocol):
    """The faults of a broker. `faults/` implements it."""

    is_armed: bool
    is_armed_for_connections: bool

    def handle(self, work: RequestWork, go_on: Callable[[], None]) -> None:
        """Apply the fault of a request, if it has one. `go_on` handles the request."""

    def connected(self, connection: ServedConnection, node_id: int) -> None:
        """Apply the fault of a new connection, if it has one."""


T = TypeVar("T")


class RequestChannel(Generic[T]):
    """The bounded queue between connections, which get room in turn, and handlers."""

    def __init__(self, capacity: int, loop: asyncio.AbstractEventLoop) -> None:
        self._capacity = capacity
        self._loop = loop
        self._requests: deque[T] = deque()
        self._waiting: deque[Callable[[], None]] = deque()
        self._arrival: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def has_room(self) -> bool:
        return len(self._requests) < self._capacity

    def put(self, request: T) -> None:
        """Add a request. There must be room."""
        if not self.has_room:
            raise RuntimeError("the request channel is full")
        self._requests.append(request)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def call_when_room(self, callback: Callable[[], None]) -> None:
        """Call back once, after a request was taken. Another connection may use the room first."""
        self._waiting.append(callback)

    async def take(self) -> T:
        """Return the oldest request. Only one task may wait. Cancellation takes no request."""
        while not self._requests:
            self._arrival = self._loop.create_future()
            try:
                await self._arrival
            finally:
                self._arrival = None
        if self._waiting:
            self._loop.call_soon(self._waiting.popleft())
        return self._requests.popleft()


@dataclass(slots=True, eq=False)
class Watch:
    """A wait for a change of one of `keys`. `attempt` gets whether the deadline has passed."""

    purgatory: Purgatory
    keys: Sequence[Hashable]
    attempt: Callable[[bool], None]
    timer: asyncio.TimerHandle = field(init=False)

    @property
    def is_over(self) -> bool:
        return self.timer.cancelled()

    def cancel(self) -> None:
        """End the wait. Idempotent."""
        self.timer.cancel()
        self.purgatory.forget(self)


class Purgatory:
    """Waits for changes, by key. The name is Kafka's (DelayedOperationPurgatory)."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # Dicts instead of sets, because the order of completion must not depend on hashes.
        self._watches: dict[Hashable, dict[Watch, None]] = {}

    def __len__(self) -> int:
        return len({id(watch) for watches in self._watches.values() for watch in watches})

    def watch(
        self, keys: Sequence[Hashable], deadline: float, attempt: Callable[[bool], None]
    ) -> Watch:
        """Call `attempt` after each change of a key, and at the deadline, until `cancel`."""
        watch = Watch(self, keys, attempt)
        watch.timer = self._loop.call_at(deadline, attempt, True)
        for key in keys:
            self._watches.setdefault(key, {})[watch] = None
        return watch

    def touch(self, key: Hashable) -> None:
        waiting = self._watches.get(key, {})
        for watch in tuple(waiting):
            if watch in waiting:  # an earlier one's attempt may have cancelled it
                watch.attempt(False)

    def forget(self, watch: Watch) -> None:
        for key in watch.keys:
            waiting = self._watches.get(key, {})
            waiting.pop(watch, None)
            if not waiting:
                self._watches.pop(key, None)

    def close(self) -> None:
        while self._watches:
            waiting = next(iter(self._watches.values()))
            next(iter(waiting)).cancel()


@dataclass(eq=False)
class Dispatcher:
    """The task that calls the handlers of a node.

    A waiting handler does not delay requests of other connections. It returns a `Delayed`, which
    the purgatory keeps, or it is a coroutine function, which runs in its own task.
    """

    channel: RequestChannel[RequestWork]
    purgatory: Purgatory
    scope: TaskScope
    faults: FaultPort

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        slice_ends = 0.0
        while True:
            if not len(self.channel):
                slice_ends = 0.0
            work = await self.channel.take()
            if self.faults.is_armed:
                self._apply_fault(work)
            else:
                self._handle(work)
            now = loop.time()
            if not slice_ends:
                slice_ends = now + TIME_SLICE_S
            elif now >= slice_ends:
                await asyncio.sleep(0)
                slice_ends = 0.0

    def _apply_fault(self, work: RequestWork) -> None:
        try:
            self.faults.handle(work, partial(self._handle, work))
        except BaseException as error:  # noqa: BLE001 — reported: the test's own functions may fail
            _fail(work, error)

    def _handle(self, work: RequestWork) -> None:
        try:
            self._take(work, work.entry.handle(work.context, work.request))
        except BaseException as error:  # noqa: BLE001 — reported; one bad handler must not stop all
            _fail(work, error)

    def _take(self, work: RequestWork, given: Answer | Awaitable[Answer] | Steps[Answer]) -> None:
        answer = _begun(given) if isinstance(given, types.GeneratorType) else given
        if isinstance(answer, Response) or answer is None:
            work.processor.answer(work, answer)
        elif isinstance(answer, Delayed):
            self._delay(work, answer)
        else:
            self._spawn(work, cast("Awaitable[Answer]", answer))

    def _spawn(self, work: RequestWork, answer: Awaitable[Answer]) -> None:
        # If the scope ends before the task's first step, nothing awaits the handler's coroutine.
        close = answer.close if isinstance(answer, Coroutine) else None
        try:
            task = self.scope.spawn(self._await(work, answer), name=work.entry.request.__name__)
        except RuntimeError:
            if close is not None:
                close()
            raise
        if close is not None:
            task.add_done_callback(lambda _: close())

    def _delay(self, work: RequestWork, delayed: Delayed) -> Watch:
        def attempt(is_due: bool) -> None:
            try:
                if is_due or run_to_end(delayed.is_ready()):
                    watch.cancel()
                    self._take(work, delayed.response())
            except BaseException as error:  # noqa: BLE001 — reported
                watch.cancel()
                _fail(work, error)

        watch = self.purgatory.watch(delayed.keys, delayed.deadline, attempt)
        work.processor.call_when_closed(watch.cancel)
        return watch

    async def _await(self, work: RequestWork, answer: Awaitable[Answer]) -> None:
        try:
            result: object = await answer
            if isinstance(result, Awaitable):  # of a generator function
                result = await result
            if isinstance(result, Delayed):
                watch = self._delay(work, result)
                await asyncio.sleep(0)
                try:  # a key may have changed before it was watched
                    is_ready = not watch.is_over and await run_in_slices(result.is_ready())
                except BaseException:
                    watch.cancel()
                    raise
                if is_ready and not watch.is_over:
                    watch.attempt(True)
            else:
                work.processor.answer(work, cast("Response | None", result))
        except Exception as error:  # noqa: BLE001 — reported
            work.processor.fail(work, error)


def _fail(work: RequestWork, error: BaseException) -> None:
    """Report an error, such as the one of `pytest.fail`, which is no Exception."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        raise error
    work.processor.fail(work, error)


def _begun(steps: Steps[Answer]) -> Answer | Awaitable[Answer]:
    """Take the first step, which completes a small request."""
    try:
        next(steps)
    except StopIteration as end:
        answer: Answer = end.value
        return answer
    return run_in_slices(steps)
