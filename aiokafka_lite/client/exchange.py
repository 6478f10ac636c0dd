"""A request on the wire, and how whoever sent it learns of the outcome.

Two ways, each exchange goes one of them:

- ``await exchange``: the task that waits wakes up in the loop's next iteration, and decodes the
  answer there. A large answer then holds up nobody's callbacks, a cancelled waiter costs no
  decoding, and a decode error surfaces where the request was made.
- ``on_done``, given when the request is sent: called with the exchange, which has ``result``. An
  answer calls it out of the read callback that received its last byte, without a switch of tasks,
  which costs more than handling a small answer does.

The rules of ``on_done``. It is called in the thread of the loop, at most once, and exactly once
unless the exchange is abandoned first. Answers come in the order in which the broker sent them,
each before anything behind it is looked at. An error (the connection was lost, closed or given
up, the deadline passed) comes in the loop's next iteration. So it is never called from within
``send``, ``close`` or any other call of one's own, and may itself send on the connection, close
it, or abandon exchanges. It must be short, as it holds up everybody's callbacks, and must raise
nothing: what it raises gives the connection up and goes to the connection's ``on_bug``, or to the
loop's exception handler where there is none.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from aiokafka_lite._compat import override
from aiokafka_lite.errors import KafkaError, KafkaProtocolError
from aiokafka_lite.protocol.framing import decode_piecewise
from aiokafka_lite.protocol.schema import Request, Response, Struct

if TYPE_CHECKING:
    import asyncio

    from aiokafka_lite.client.connection import Connection

R_co = TypeVar("R_co", bound=Response, covariant=True)

# Below it an answer holds some hundreds of anything: decoded in less than a millisecond.
LONG_FRAME_BYTES: Final = 16 * 1024


class Requester(Protocol):
    """Who sends requests and is told what their answers say."""

    peer: str

    def throttle(self, duration_s: float) -> None:
        """Note that the broker asks us to hold back."""


class Pending(Generic[R_co]):
    """A request on the wire and what becomes of it.

    The connection that made it calls ``answered`` and ``fail``.

    Attributes:
        request_class: What was asked.
        version: In which version.
        timeout_s: How long the broker may take.
        deadline: The connection's time when that is over.
        frame: The answer's bytes, None until it came. They stay in memory as long as this does.
        error: Why there is no answer and will be none, or None. ``result`` raises a copy of it.
    """

    __slots__ = (
        "_connection",
        "_decode",
        "deadline",
        "error",
        "frame",
        "request_class",
        "timeout_s",
        "version",
    )

    def __init__(
        self,
        connection: Requester,
        request_class: type[Request[R_co]],
        version: int,
        decode: Callable[[memoryview], R_co],
        timeout_s: float,
        deadline: float,
    ) -> None:
        self._connection = connection
        self._decode = decode
        self.request_class = request_class
        self.version = version
        self.timeout_s = timeout_s
        self.deadline = deadline
        self.frame: memoryview | None = None
        self.error: KafkaError | None = None

    @property
    def is_done(self) -> bool:
        """Whether there is an answer or an error."""
        return self.frame is not None or self.error is not None

    def result(self) -> R_co:
        """Decode and return the answer; byte fields of record sets stay slices of its frame.

        Raises:
            KafkaError: Why there is no answer.
            KafkaProtocolError: The answer is malformed, or has bytes left over.
            RuntimeError: There is neither yet.
        """
        if self.error is not None:
            raise own_copy(self.error)
        if self.frame is None:
            raise RuntimeError(f"{self} has not answered yet: wait for the exchange")
        try:
            response = self._decode(self.frame)
        except KafkaProtocolError as error:
            raise self._bad_answer(error) from error
        self._heed_throttle(response)
        return response

    def result_in_pieces(self, element: type[Struct]) -> tuple[R_co, Iterator[Struct] | None]:
        """Decode a long answer as far as to its very many elements; else as `result`.

        Returns:
            The answer, and what decodes the elements, a millisecond's worth at a time (see
            `PiecewiseDecoder`); None if all is decoded.

        Raises: as `result`, and the iterator KafkaProtocolError as well.
        """
        if self.frame is None or len(self.frame) < LONG_FRAME_BYTES:
            return self.result(), None
        try:
            response, pieces = decode_piecewise(
                self.request_class, self.version, self.frame, element
            )
        except KafkaProtocolError as error:
            raise self._bad_answer(error) from error
        self._heed_throttle(response)
        return response, self._named(pieces)

    def _named(self, pieces: Iterator[Struct]) -> Iterator[Struct]:
        try:
            yield from pieces
        except KafkaProtocolError as error:
            raise self._bad_answer(error) from error

    def _bad_answer(self, error: KafkaProtocolError) -> KafkaProtocolError:
        return type(error)(f"bad answer from {self}: {error.args[0]}")

    def _heed_throttle(self, response: Response) -> None:
        throttle_ms: int = getattr(response, "throttle_time_ms", 0)
        if throttle_ms > 0:
            self._connection.throttle(throttle_ms / 1000)

    # --- What the connection tells ---------------------------------------------------------
    def answered(self, frame: memoryview) -> None:
        """Take the answer; it is dropped when the deadline was missed."""
        if self.error is None:
            self.frame = frame

    def fail(self, error: KafkaError) -> None:
        """Take an error as the outcome, unless there is one already."""
        if not self.is_done:
            self.error = error

    def __str__(self) -> str:
        name = self.request_class.__name__.removesuffix("Request")
        return f"{self._connection.peer} to {name} v{self.version}"


class Exchange(Pending[R_co]):
    """A request on the wire and the answer that an event loop waits for."""

    __slots__ = ("_on_done", "_waiter")

    _connection: Connection

    def __init__(
        self,
        connection: Connection,
        request_class: type[Request[R_co]],
        version: int,
        decode: Callable[[memoryview], R_co],
        timeout_s: float,
        deadline: float,
        on_done: Callable[[Exchange[R_co]], None] | None,
    ) -> None:
        # All of it here, without a call: there is one for each request.
        self._connection = connection
        self._decode = decode
        self.request_class = request_class
        self.version = version
        self.timeout_s = timeout_s
        self.deadline = deadline
        self.frame = None
        self.error = None
        self._on_done = on_done
        self._waiter: asyncio.Future[None] | None = None

    def __await__(self) -> Generator[object, None, R_co]:
        if not self.is_done:
            if self._waiter is None:
                self._waiter = self._connection.loop.create_future()
            yield from self._waiter.__await__()
        return self.result()

    def abandon(self) -> None:
        """Do not call ``on_done`` any more; a late answer is dropped undecoded."""
        self._on_done = None

    # --- What the connection tells ---------------------------------------------------------
    @override
    def answered(self, frame: memoryview) -> None:
        """Take the answer; it is dropped when the deadline was missed."""
        if self.error is not None:
            return
        self.frame = frame
        if self._on_done is not None:
            self._on_done(self)
        if self._waiter is not None:
            self._wake()

    @override
    def fail(self, error: KafkaError) -> None:
        """Take an error as the outcome, unless there is one already."""
        if self.is_done:
            return
        self.error = error
        if self._on_done is not None:
            self._connection.loop.call_soon(self._tell)
        self._wake()

    def _tell(self) -> None:
        if self._on_done is not None:
            try:
                self._on_done(self)
            except Exception as error:  # noqa: BLE001 -- the connection tells whoever has to know
                self._connection.callback_failed(error)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():  # else it was cancelled
            self._waiter.set_result(None)


def own_copy(error: KafkaError) -> KafkaError:
    """Return a copy to raise: one exception raised in several tasks would mix tracebacks."""
    own = copy.copy(error)
    own.__cause__ = error.__cause__
    return own
