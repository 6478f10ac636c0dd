"""aiokafka's module path for small things that programs import from it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping
from typing import Final, TypeVar

from aiokafka_lite._compat import timeout as time_limit
from aiokafka_lite.records import COMPILED
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition

__all__ = [
    "INTEGER_MAX_VALUE",
    "INTEGER_MIN_VALUE",
    "NO_EXTENSIONS",
    "commit_structure_validate",
    "create_future",
    "create_task",
    "get_running_loop",
    "wait_for",
]

T = TypeVar("T")

INTEGER_MAX_VALUE: Final = 2**31 - 1
INTEGER_MIN_VALUE: Final = -(2**31)
# Whether plain Python replaces the extension modules.
NO_EXTENSIONS: Final = not COMPILED

get_running_loop = asyncio.get_running_loop


def create_task(coro: Coroutine[object, object, T]) -> asyncio.Task[T]:
    return asyncio.get_running_loop().create_task(coro)


def create_future(loop: asyncio.AbstractEventLoop | None = None) -> asyncio.Future[object]:
    return (loop or asyncio.get_running_loop()).create_future()


async def wait_for(fut: Awaitable[T], timeout: float | None = None) -> T:
    """Wait for an awaitable, or raise asyncio.TimeoutError after `timeout` seconds."""
    async with time_limit(timeout):
        return await fut


def commit_structure_validate(
    offsets: Mapping[TopicPartition, int | tuple[int, str] | OffsetAndMetadata],
) -> dict[TopicPartition, OffsetAndMetadata]:
    from aiokafka_lite.client.arguments import check_offsets

    return check_offsets(offsets)
