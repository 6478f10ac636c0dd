"""Requests to the coordinators of transactions and groups, with retries until a deadline.

These are retried: a coordinator that moved, is loading or does not respond, and
CONCURRENT_TRANSACTIONS (the previous transaction has not ended in all partitions).

A node that was suspended, and is not the coordinator any more, answers from its old memory until it
has read the cluster's log. It writes nothing in that time, because the log's new leader rejects it,
but it may reject a transaction that began at the new coordinator. Therefore, a response that ends
the producer counts only if another node names the same coordinator. Java's producer fails.

The other nodes may know less, for example if they cannot reach the controllers. So a rejection that
none confirms is returned at the deadline, or after a request timeout of disagreement. If the errors
of a node should pass, but last for a second, other nodes are asked for the coordinator as well.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Generic, TypeVar

from aiokafka_lite.client.backoff import LONGEST_BACKOFF_S, Backoff
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.errors import (
    BrokerResponseError,
    ConcurrentTransactions,
    CoordinatorNotAvailableError,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaError,
    KafkaTimeoutError,
    NoError,
    NotCoordinatorError,
    ProducerFencedError,
    RequestTimedOutError,
    for_code,
)
from aiokafka_lite.protocol.prepared import AnyRequest
from aiokafka_lite.protocol.schema import Request, Response

R = TypeVar("R", bound=Response)

GROUP: Final = 0
TRANSACTION: Final = 1
KEY_NAMES: Final = ("group", "transactional_id")
# The previous transaction usually ends within milliseconds.
CONCURRENT_BACKOFF_S: Final = 0.02
# The time with such errors of one node until another node is asked for the coordinator.
DOUBT_AFTER_S: Final = 1.0
# After these responses the node may not be the coordinator any more.
MOVED: Final = (CoordinatorNotAvailableError, NotCoordinatorError, RequestTimedOutError)
# These end the producer. Coordinators return them from memory.
FROM_MEMORY: Final = (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    ProducerFencedError,
)


class Doubts(Generic[R]):
    """Responses to one request that count only if another node names the same coordinator.

    `rejection` is the last rejection that no other node has confirmed. It is believed from
    `believed_at` on, unless a node returns an error that should pass.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self.rejection: R | None = None
        self.believed_at = math.inf
        # The node whose errors should pass, and when to ask others again.
        self._busy: tuple[int, float] = (-1, math.inf)

    def include(
        self, node_id: int, response: R, codes: Iterable[int], error: KafkaError | None
    ) -> bool:
        """Return whether to ask other nodes. `error` is the response's error that should pass."""
        now = asyncio.get_running_loop().time()
        if error is not None:
            if isinstance(error, MOVED):
                return False
            self.rejection, self.believed_at = None, math.inf
            busy_id, doubtful_at = self._busy
            if busy_id != node_id or now >= doubtful_at:
                self._busy = node_id, now + DOUBT_AFTER_S
            return busy_id == node_id and now >= doubtful_at
        if not any(issubclass(for_code(code), FROM_MEMORY) for code in codes):
            return False
        if self.rejection is None:
            self.believed_at = now + self._patience_s
        self.rejection = response
        return True


class CoordinatorClient:
    """The coordinator of one transactional id or group."""

    def __init__(
        self,
        cluster: Cluster,
        key: str,
        key_type: int,
        *,
        first_backoff_s: float,
        rng: random.Random,
    ) -> None:
        self._cluster = cluster
        self._key = key
        self._key_type = key_type
        self._first_backoff_s = first_backoff_s
        self._rng = rng
        self._node_id: int | None = None

    async def features(self, deadline: float) -> dict[str, int]:
        node_id = await self._find(deadline)
        connection = await self._cluster.pool.connect(node_id)
        return dict(connection.wire.api_versions.features)

    async def speaks(self, request: type[Request[R]], version: int, deadline: float) -> bool:
        try:
            node_id = await self._find(deadline)
            connection = await self._cluster.pool.connect(node_id)
        except KafkaError as error:
            if not _may_have_moved(error):
                raise
            self._node_id = None
            return False
        _, newest = connection.wire.api_versions.get(request.api_key, (0, 0))
        return newest >= version

    async def ask(
        self,
        request: Callable[[], AnyRequest[R]],
        codes_of: Callable[[R], Iterable[int]],
        deadline: float,
        *,
        retriable: tuple[type[KafkaError], ...] = (),
        prepare: Callable[[], Awaitable[None]] | None = None,
    ) -> R:
        """Send a request until the response has no retriable error, or raise KafkaTimeoutError.

        `request` creates the request of each attempt, and `prepare` checks before each retry
        whether it may be made. Errors in `retriable` are retried, too.
        """
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        backoff = Backoff(self._first_backoff_s, LONGEST_BACKOFF_S, self._rng)
        concurrent = Backoff(CONCURRENT_BACKOFF_S, self._first_backoff_s, self._rng)
        doubts: Doubts[R] = Doubts(self._cluster.config.request_timeout_s)
        while True:
            moved_to: int | None = None
            until = min(deadline, doubts.believed_at)
            sent = request()
            try:
                node_id = await self._find(until)
                response = await self._cluster.request(node_id, sent)
                codes = tuple(codes_of(response))
                error: KafkaError | None = self._passing(codes, retriable)
                if doubts.include(node_id, response, codes, error):
                    moved_to = await self._cluster.find_coordinator_elsewhere(
                        node_id, self._key, self._key_type, until
                    )
                    if moved_to != node_id and (moved_to is not None or error is None):
                        error = NotCoordinatorError(f"other nodes name node {moved_to}")
                if error is None:
                    return response
            except KafkaError as lost:
                if not _may_have_moved(lost):
                    raise
                error = lost
            if _may_have_moved(error):
                self._node_id = moved_to
            elif error.invalid_metadata:
                self._cluster.invalidate()  # it does not know a topic of our metadata
            pause = concurrent if isinstance(error, ConcurrentTransactions) else backoff
            delay_s = pause.next_delay_s()
            if loop.time() + delay_s >= min(deadline, doubts.believed_at):
                if doubts.rejection is not None:
                    return doubts.rejection
                raise KafkaTimeoutError(
                    f"the coordinator of {KEY_NAMES[self._key_type]} {self._key!r} did not "
                    f"complete the request within {loop.time() - started_at:.1f} s. The last error "
                    f"was: {error}"
                ) from error
            await asyncio.sleep(delay_s)
            if prepare is not None:
                await prepare()

    async def _find(self, deadline: float) -> int:
        if self._node_id is None:
            left_s = max(deadline - asyncio.get_running_loop().time(), 0.001)
            self._node_id = await self._cluster.find_coordinator(
                self._key, key_type=self._key_type, timeout_s=left_s
            )
        return self._node_id

    def _passing(
        self, codes: Iterable[int], retriable: tuple[type[KafkaError], ...]
    ) -> BrokerResponseError | None:
        errors = {for_code(code) for code in codes if code != NoError.errno}
        if not errors or any(not (e.retriable or e in retriable) for e in errors):
            return None
        error = sorted(errors, key=lambda e: e.errno)[0]
        return error(f"{error.description} ({self._key!r})")


def _may_have_moved(error: KafkaError) -> bool:
    """Whether another node may be the coordinator: also after a temporary error of the client.

    If the request was sent, it may have been handled.
    """
    if isinstance(error, BrokerResponseError):
        return isinstance(error, MOVED)
    return error.retriable
