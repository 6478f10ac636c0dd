"""The latest requests to a broker, for assertions of tests and for debugging.

The log contains a request from its arrival on, so also long polls and requests without a response.
The memory is bounded. A request above 64 KiB on the wire becomes an extract: all fields, but the
first 16 elements of each list, the first 256 characters or bytes, and no records. Above 2 MiB for
all complete requests, the oldest ones become extracts, too.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, cast

from aiokafka_lite import _compat
from aiokafka_lite._arguments import Kind, checks_arguments, is_int
from aiokafka_lite.broker.handlers.base import Api, RequestContext, api_key_of
from aiokafka_lite.broker.refusals import NO_ERRORS, is_error_class
from aiokafka_lite.errors import BrokerResponseError
from aiokafka_lite.protocol.messages.produce import ProduceRequest
from aiokafka_lite.protocol.messages.sasl import (
    AlterUserScramCredentialsRequest,
    SaslAuthenticateRequest,
)
from aiokafka_lite.protocol.registry import API_NAMES
from aiokafka_lite.protocol.schema import Request, Response, Struct

# Longer requests are kept without their record sets, so that the log does not pin megabytes.
KEPT_BYTES: Final = 16 << 10
# The log keeps an extract of longer requests, and of the oldest ones when the requests that are not
# small exceed the second limit together.
WHOLE_BYTES: Final = 64 << 10
ALL_WHOLE_BYTES: Final = 2 << 20
SMALL_BYTES: Final = 1 << 10
# The lengths of lists, strings and bytes in an extract.
EXTRACT_ELEMENTS: Final = 16
EXTRACT_BYTES: Final = 256
# The log keeps these requests without their secrets.
HOLDING_SECRETS: Final = frozenset(
    {SaslAuthenticateRequest.api_key, AlterUserScramCredentialsRequest.api_key}
)


@dataclass(slots=True, eq=False, repr=False)
class SeenRequest:
    """A request that arrived.

    Attributes:
        number: Its number among all requests of the broker, from 1.
        node_id: The node that got it.
        client_id: The client's id, or None.
        peer: The client's address, "host:port".
        request: The request, without large record sets and secrets.
        is_extract: Whether `request` is an extract of a large request.
        size_bytes: Its size on the wire, without the 4 bytes of the size itself.
        arrived_at: The loop's time at its last byte.
        answered_at: The loop's time when it was handled or its response was written, or None.
        error_codes: All error codes of the response, other than 0.
    """

    number: int
    node_id: int
    client_id: str | None
    api_version: int
    peer: str
    request: Request[Response]
    size_bytes: int
    arrived_at: float
    answered_at: float | None = None
    error_codes: frozenset[int] = NO_ERRORS
    is_extract: bool = False

    @property
    def api(self) -> str:
        """Kafka's name of the API: "Fetch"."""
        return API_NAMES[self.request.api_key]

    def __repr__(self) -> str:
        answered = "" if self.answered_at is None else f", answered at {self.answered_at:.6f}"
        errors = f", errors {sorted(self.error_codes)}" if self.error_codes else ""
        return (
            f"<{self.number}: {self.api} v{self.api_version} from {self.client_id!r} ({self.peer}) "
            f"to node {self.node_id} at {self.arrived_at:.6f}{answered}{errors}>"
        )


_ERROR: Final = Kind(
    "the class of a Kafka error, or its error code",
    lambda given: is_int(given) or is_error_class(given),
)


@checks_arguments({"type[BrokerResponseError] | int": _ERROR}, unchecked=("arrived", "answered"))
class RequestLog:
    """The latest requests to all nodes of a broker. Written only from the broker's loop."""

    def __init__(self, capacity: int) -> None:
        self._entries: deque[SeenRequest] = deque(maxlen=capacity)
        # The requests that are neither small nor extracts, and the sum of their sizes on the wire.
        self._whole: deque[SeenRequest] = deque()
        self._whole_bytes = 0
        self._waiting: dict[asyncio.Event, None] = {}
        self.is_on: Final = capacity > 0
        self.total = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[SeenRequest]:
        """Iterate over the requests in the log, the oldest first."""
        return iter(tuple(self._entries))

    def of(
        self,
        api: Api = None,
        *,
        since: int = 0,
        node: int | None = None,
        client_id: str | None = None,
        error: type[BrokerResponseError] | int | None = None,
        when: Callable[[SeenRequest], bool] | None = None,
    ) -> list[SeenRequest]:
        """Return the matching requests in the log, the oldest first.

        ::

            mark = broker.requests.total
            ...
            assert not broker.requests.of("OffsetCommit", since=mark)

        Args:
            api: A request's class, the API's name or its key. None is all.
            since: An earlier `total`: only later requests match.
            node: The node's id.
            error: An error of the response.
            when: A function of the request that returns whether it matches.

        Raises:
            ValueError: The broker has no such API.
        """
        api_key = api_key_of(api)
        code = error.errno if isinstance(error, type) else error
        return [
            seen
            for seen in self._entries
            if seen.number > since
            and (api_key is None or seen.request.api_key == api_key)
            and (node is None or seen.node_id == node)
            and (client_id is None or seen.client_id == client_id)
            and (code is None or code in seen.error_codes)
            and (when is None or when(seen))
        ]

    async def wait_for(
        self,
        api: Api = None,
        *,
        count: int = 1,
        timeout_s: float | None = 10.0,
        since: int = 0,
        node: int | None = None,
        client_id: str | None = None,
        error: type[BrokerResponseError] | int | None = None,
        when: Callable[[SeenRequest], bool] | None = None,
    ) -> list[SeenRequest]:
        """Wait until the log has `count` matching requests, and return them. See `of`.

        With `error` a request matches once its response is sent.

        Raises:
            TimeoutError: The log has fewer within `timeout_s`.
            ValueError: The broker has no such API.
        """
        found: list[SeenRequest] = []
        changed = asyncio.Event()
        self._waiting[changed] = None
        try:
            async with _compat.timeout(timeout_s):
                while True:
                    changed.clear()
                    found = self.of(
                        api, since=since, node=node, client_id=client_id, error=error, when=when
                    )
                    if len(found) >= count:
                        return found
                    await changed.wait()
        except asyncio.TimeoutError:
            raise TimeoutError(
                f"{len(found)} requests of {api or 'any API'} matched within {timeout_s} s, "
                f"but {count} were expected. The latest requests: {list(self)[-10:]}"
            ) from None
        finally:
            del self._waiting[changed]

    def clear(self) -> None:
        """Remove all requests from the log. `total` keeps counting."""
        self._entries.clear()
        self._whole.clear()
        self._whole_bytes = 0

    # The reactor's side

    def arrived(
        self,
        context: RequestContext,
        peer: str,
        request: Request[Response],
        size_bytes: int,
        now: float,
    ) -> SeenRequest:
        self.total += 1
        counts = size_bytes > SMALL_BYTES and not _is_of_one_partition(request)
        kept = _extract(request) if counts and size_bytes > WHOLE_BYTES else request
        if request.api_key in HOLDING_SECRETS:
            kept = _without_secrets(kept)
        seen = SeenRequest(
            self.total,
            context.node.id,
            context.client_id,
            context.api_version,
            peer,
            kept,
            size_bytes,
            now,
        )
        self._entries.append(seen)
        if counts:
            self._bound(seen)
        if self._waiting:
            self._wake()
        return seen

    def _bound(self, seen: SeenRequest) -> None:
        if seen.size_bytes > WHOLE_BYTES:
            seen.is_extract = True
            return
        self._whole.append(seen)
        self._whole_bytes += seen.size_bytes
        while self._whole_bytes > ALL_WHOLE_BYTES:
            oldest = self._whole.popleft()
            self._whole_bytes -= oldest.size_bytes
            oldest.request = _extract(oldest.request)
            oldest.is_extract = True

    def answered(self, seen: SeenRequest, codes: frozenset[int], now: float) -> None:
        seen.answered_at = now
        seen.error_codes = codes
        if seen.size_bytes > KEPT_BYTES:
            _drop_records(seen.request)  # the request is handled, so its records are unused
        if self._waiting:
            self._wake()

    def _wake(self) -> None:
        for event in self._waiting:
            event.set()


def _is_of_one_partition(request: Request[Response]) -> bool:
    if not isinstance(request, ProduceRequest) or len(request.topic_data) != 1:
        return False
    return len(request.topic_data[0].partition_data) == 1


def _extract(request: Request[Response]) -> Request[Response]:
    return cast("Request[Response]", _beginning(request))


def _beginning(value: object) -> object:
    if isinstance(value, Struct):
        extract = copy.copy(value)
        for field in value.schema:
            setattr(extract, field.slot, _beginning(getattr(value, field.slot)))
        return extract
    if isinstance(value, list):
        return [_beginning(each) for each in value[:EXTRACT_ELEMENTS]]
    if isinstance(value, str | bytes):
        return value[:EXTRACT_BYTES]
    return None if isinstance(value, memoryview | bytearray) else value


def _without_secrets(request: Request[Response]) -> Request[Response]:
    if not isinstance(request, AlterUserScramCredentialsRequest):
        return SaslAuthenticateRequest()
    safe = copy.copy(request)
    safe.upsertions = [copy.copy(upsertion) for upsertion in safe.upsertions]
    for upsertion in safe.upsertions:
        upsertion.salted_password = b""
    return safe


def _drop_records(request: Request[Response]) -> None:
    if isinstance(request, ProduceRequest):
        for topic in request.topic_data:
            for partition in topic.partition_data:
                partition.records = None
