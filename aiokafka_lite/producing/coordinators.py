"""Requests to the coordinators of transactions and groups, with retries until a deadline.

These are retried: a coordinator that moved, is loading or does not respond, and
CONCURRENT_TRANSACTIONS (the previous transaction has not ended in all partitions).

A node that was suspended, and is not the coordinator any more, answers from its old memory until it
has read the cluster's log. It writes nothing in that time, because the log's new leader rejects it,
but it may reject a transaction that began at the new coordinator. Therefore, a response that ends
the producer counts only if another node names the same coordinator. Java's producer believes it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from aiokafka_lite.client.backoff import LONGEST_BACKOFF_S, Backoff
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.errors import (
    BrokerResponseError,
    ConcurrentTransactions,
    CoordinatorNotAvailableError,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaConnectionError,
    KafkaError,
    KafkaProtocolError,
    KafkaTimeoutError,
    NodeNotReadyError,
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
# After these errors the node may not be the coordinator any more. A garbled response ends the
# connection. As with a lost response, the request may have been handled.
MOVED: Final = (
    CoordinatorNotAvailableError,
    KafkaConnectionError,
    KafkaProtocolError,
    NodeNotReadyError,
    NotCoordinatorError,
    RequestTimedOutError,
)
# These end the producer. Coordinators answer them from memory.
FROM_MEMORY: Final = (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    ProducerFencedError,
)


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
        except MOVED:
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
        """Send a request until the response has no retriable error, or until the deadline.

        `request` creates the request of each attempt, and `prepare` checks before each retry
        whether it may be made. Errors in `retriable` are retried, too.

        Raises:
            KafkaTimeoutError: The deadline passed. The cause is the last error.
        """
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        backoff = Backoff(self._first_backoff_s, LONGEST_BACKOFF_S, self._rng)
        concurrent = Backoff(CONCURRENT_BACKOFF_S, self._first_backoff_s, self._rng)
        while True:
            moved_to: int | None = None
            try:
                sent = request()
                node_id = await self._find(deadline)
                response = await self._cluster.request(node_id, sent)
                error: KafkaError | None = self._passing(codes_of(response), retriable)
                if error is None:
                    moved_to = await self._find_new(node_id, codes_of(response))
                    if moved_to == node_id:
                        return response
                    error = NotCoordinatorError(f"node {moved_to} is the coordinator now")
            except MOVED as lost:
                if not lost.retriable:
                    raise
                error = lost
            if isinstance(error, MOVED):
                self._node_id = moved_to
            elif error.invalid_metadata:
                self._cluster.invalidate()  # it does not know a topic of our metadata
            pause = concurrent if isinstance(error, ConcurrentTransactions) else backoff
            delay_s = pause.next_delay_s()
            if loop.time() + delay_s >= deadline:
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

    async def _find_new(self, node_id: int, codes: Iterable[int]) -> int:
        """Return the coordinator, which is not this node if its response is from old memory."""
        if not any(issubclass(for_code(code), FROM_MEMORY) for code in codes):
            return node_id
        return await self._cluster.find_coordinator_elsewhere(node_id, self._key, self._key_type)

    def _passing(
        self, codes: Iterable[int], retriable: tuple[type[KafkaError], ...]
    ) -> BrokerResponseError | None:
        errors = {for_code(code) for code in codes if code != NoError.errno}
        if not errors or any(not (e.retriable or e in retriable) for e in errors):
            return None
        error = sorted(errors, key=lambda e: e.errno)[0]
        return error(f"{error.description} ({self._key!r})")
