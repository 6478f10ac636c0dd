"""Connects to servers concurrently, so that a hanging one does not delay others (as RFC 8305)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from aiokafka_lite.client.pool import Pool
from aiokafka_lite.client.wire import own_copy
from aiokafka_lite.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaProtocolError,
    NodeNotReadyError,
    RequestTimedOutError,
)

STAGGER_S: Final = 0.25
# What another node may mend.
PASSED_OVER: Final = (
    KafkaConnectionError,
    KafkaProtocolError,
    NodeNotReadyError,
    RequestTimedOutError,
)


async def connect_one(
    pool: Pool, node_ids: Iterable[int], failures: list[KafkaError]
) -> frozenset[int]:
    """Connect to nodes in this order until one is connected; return those that failed.

    Each attempt starts a little after the one before, or at once if that failed. Cancellation
    leaves the attempts running.

    Raises:
        KafkaError: Another node would not help, for example with refused credentials.
    """
    waiting = list(node_ids)
    attempts: dict[asyncio.Task[KafkaError | None], int] = {}
    failed: set[int] = set()
    while waiting or attempts:
        if waiting:
            node_id = waiting.pop(0)
            attempts[pool.attempt(node_id)] = node_id
        done, _ = await asyncio.wait(
            attempts,
            timeout=STAGGER_S if waiting else None,
            return_when=asyncio.FIRST_COMPLETED,
        )
        for attempt in done:
            node_id = attempts.pop(attempt)
            if attempt.cancelled():
                continue
            if (error := attempt.result()) is None:
                return frozenset(failed)
            if not isinstance(error, PASSED_OVER):
                raise own_copy(error)
            failures.append(error)
            failed.add(node_id)
    return frozenset(failed)
