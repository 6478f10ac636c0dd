"""What a broker was asked, for assertions of tests and for whoever looks at a running one.

The latest requests only: a ring. A request is noted when it arrives, so that those in a long
poll, or left unanswered by a fault, are there too; its answer is noted when it is sent.

What the log keeps is bounded, too. Of a request that takes more than 64 KiB on the wire it keeps an
extract from the beginning: all fields, but of each list the first 16 elements, of longer texts and
bytes the first 256, and no records. When those that are kept whole take more than 2 MiB together,
extracts take the place of the oldest of them. `SeenRequest.is_extract` tells.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, cast

from aiokafka_lite import _compat
from aiokafka_lite.broker.faults.refusals import NO_ERRORS
from aiokafka_lite.broker.faults.rules import Api, api_key_of
from aiokafka_lite.errors import BrokerResponseError
from aiokafka_lite.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
)
from aiokafka_lite.protocol.messages.produce import ProduceRequest
from aiokafka_lite.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from aiokafka_lite.protocol.registry import API_NAMES
from aiokafka_lite.protocol.schema import Request, Response, Struct

if TYPE_CHECKING:
    from aiokafka_lite.broker.context import RequestContext

# Requests that were longer are kept without their record sets: the log must not pin megabytes.
KEPT_BYTES: Final = 16 << 10
# Of requests that were longer than that an extract is kept, and of the oldest when all that are
# not small take more than this together.
WHOLE_BYTES: Final = 64 << 10
ALL_WHOLE_BYTES: Final = 2 << 20
SMALL_BYTES: Final = 1 << 10
# What an extract has of lists, and of texts and bytes.
EXTRACT_ELEMENTS: Final = 16
EXTRACT_BYTES: Final = 256
# These are kept without them.
HOLDING_SECRETS: Final = frozenset(
    {SaslAuthenticateRequest.api_key, AlterUserScramCredentialsRequest.api_key}
)


class SeenRequest:
    """A request that arrived.

    Attributes:
        number: Counts all requests of the broker, from 1.
        node_id: The node that was asked.
        client_id: As the client names itself; None when it does not.
        api_version: The version it came in.
        peer: The client's address, "host:port".
        request: The request, without its record sets if these are large, and without passwords or
            what is made of them.
        is_extract: Of a large request, `request` has the beginnings of its lists only.
        size_bytes: What it took on the wire, without the 4 bytes of its size.
        arrived_at: The loop's time when its last byte was there.
        answered_at: When its answer was handed to the socket; None before, and for ever when it
            got none. A request that expects no answer is answered when it is done.
        error_codes: Those of its answer, other than 0, wherever in it.
    """

    __slots__ = (
        "answered_at",
        "api_version",
        "arrived_at",
        "client_id",
        "error_codes",
        "is_extract",
        "node_id",
        "number",
        "peer",
        "request",
        "size_bytes",
    )

    def __init__(
        self,
        number: int,
        context: RequestContext,
        peer: str,
        request: Request[Response],
        size_bytes: int,
        arrived_at: float,
    ) -> None:
        self.number = number
        self.node_id = context.node.id
        self.client_id = context.client_id
        self.api_version = context.api_version
        self.peer = peer
        self.request = request
        self.size_bytes = size_bytes
        self.arrived_at = arrived_at
        self.answered_at: float | None = None
        self.error_codes = NO_ERRORS
        self.is_extract = False

    @property
    def api(self) -> str:
        """The API's name, as Kafka calls it: "Fetch"."""
        return API_NAMES[self.request.api_key]

    def __repr__(self) -> str:
        answered = "" if self.answered_at is None else f", answered at {self.answered_at:.6f}"
        errors = f", errors {sorted(self.error_codes)}" if self.error_codes else ""
        return (
            f"<{self.number}: {self.api} v{self.api_version} from {self.client_id!r} ({self.peer}) "
            f"to node {self.node_id} at {self.arrived_at:.6f}{answered}{errors}>"
        )


class RequestLog:
    """The latest requests that all nodes of a broker got. Written only from the broker's loop.

    Args:
        capacity: How many are kept; 0 keeps none.
    """

    def __init__(self, capacity: int) -> None:
        self._entries: deque[SeenRequest] = deque(maxlen=capacity)
        # Those that are neither small nor extracts, and what they took on the wire together.
        self._whole: deque[SeenRequest] = deque()
        self._whole_bytes = 0
        self._waiting: dict[asyncio.Event, None] = {}
        self.is_on: Final = capacity > 0
        self.total = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[SeenRequest]:
        """Iterate over the requests that are kept, the oldest first."""
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
        """Return requests that are kept, the oldest first.

        ::

            mark = broker.requests.total
            ...
            assert not broker.requests.of("OffsetCommit", since=mark)

        Args:
            api: A request's class, the API's name, its key, or None for all.
            since: A `total` of before: only requests that came later.
            node: Only those to one node.
            client_id: Only those of one client.
            error: Only those whose answer holds this error.
            when: Decides about each.

        Raises:
            ValueError: There is no such API.
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
        """Wait until the log holds so many such requests, and return them; see `of`.

        With `error` they are those that were answered so.

        Raises:
            TimeoutError: There were fewer within `timeout_s`.
            ValueError: There is no such API.
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
                f"{len(found)} requests of {api or 'any API'} within {timeout_s} s, not {count}; "
                f"the latest: {list(self)[-10:]}"
            ) from None
        finally:
            del self._waiting[changed]

    def clear(self) -> None:
        """Forget the requests; `total` goes on."""
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
        """Note a request."""
        self.total += 1
        is_of_one_partition = size_bytes > SMALL_BYTES and _is_of_one_partition(request)
        is_long = size_bytes > WHOLE_BYTES and not is_of_one_partition
        kept = _extract(request) if is_long else request
        if request.api_key in HOLDING_SECRETS:
            kept = _without_secrets(kept)
        seen = SeenRequest(self.total, context, peer, kept, size_bytes, now)
        self._entries.append(seen)
        if size_bytes > SMALL_BYTES and not is_of_one_partition:
            self._bound(seen)
        if self._waiting:
            self._wake()
        return seen

    def _bound(self, seen: SeenRequest) -> None:
        """Put extracts in the place of what is too much."""
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
        """Note that a request was answered with these error codes, or is done and expects none."""
        seen.answered_at = now
        seen.error_codes = codes
        if seen.size_bytes > KEPT_BYTES:
            _drop_records(seen.request)  # it is handled: nobody else looks at them
        if self._waiting:
            self._wake()

    def _wake(self) -> None:
        for event in self._waiting:
            event.set()


def _is_of_one_partition(request: Request[Response]) -> bool:
    """Say whether a request is all records, which are dropped in time."""
    if not isinstance(request, ProduceRequest) or len(request.topic_data) != 1:
        return False
    return len(request.topic_data[0].partition_data) == 1


def _extract(request: Request[Response]) -> Request[Response]:
    """Return a copy with the beginning of all that may be long."""
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
