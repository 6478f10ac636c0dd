"""Stopping the parts of a consumer: in order and in time, or all at once.

An orderly stop gives each step what is left of the time, and no step keeps the next ones from
running. Whatever becomes of it, at its end every task is cancelled and every socket closed: that
is done without an await, so no cancellation can come in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

from aiokafka_lite._compat import timeout_at
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.consumer.running import Running

log = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
# Each step gets this even when the time is used up: most need no network.
LEAST_STEP_S: Final = 0.05

T = TypeVar("T")


async def stop(running: Running, deadline: float, offsets: Offsets) -> Offsets:
    """Stop everything in order, each step within what is left of the time; always returns.

    When it is cancelled, nothing more is committed and the group is not told, but no task and no
    socket is left.

    Returns:
        Those of `offsets` that could not be committed.
    """
    try:
        return await _stop_in_order(running, deadline, offsets)
    except asyncio.CancelledError:
        abort(running)  # first of all: the waits that follow may be cancelled as well
        await _end(running, 0.0)
        raise
    finally:
        abort(running)


def abort(running: Running) -> None:
    """Cancel every task and close every socket, without waiting for their end; idempotent."""
    for scope in running.scopes:
        scope.cancel_all()
    running.cluster.abort()
    running.membership.wake_waiters()


def give_up(running: Running) -> None:
    """Do the same for a consumer that nobody holds; the group hears of it if it can be told."""
    running.fetcher.close()
    running.membership.leave_nowait("the consumer was not stopped, and is collected")
    abort(running)


def bury(running: Running) -> None:
    """Do the same where the event loop is closed, so that nothing can run any more."""
    for scope in running.scopes:
        scope.bury_all()
    running.cluster.pool.hang_up()


async def _stop_in_order(running: Running, deadline: float, offsets: Offsets) -> Offsets:
    scopes = running.scopes
    # First of all: `offsets` are of the present assignment, not of one that is on its way.
    running.membership.halt()
    running.fetcher.close()
    await _bounded(scopes.fetching.close(), deadline, "stop fetching")
    await _bounded(scopes.positions.close(), deadline, "stop looking up positions")
    leaving = running.membership.leave(deadline=deadline, offsets=offsets)
    uncommitted = await _bounded(leaving, deadline, "leave the group")
    await _end(running, deadline)
    return running.commits.left_to_commit(offsets) if uncommitted is None else uncommitted


async def _end(running: Running, deadline: float) -> None:
    """Wait until tasks have ended and sockets are closed."""
    for scope in running.scopes[:-1]:
        await _bounded(scope.close(), deadline, f"end {scope.name} tasks")
    await _bounded(running.cluster.close(), deadline, "close connections")
    await _bounded(running.scopes.connecting.close(), deadline, "end cluster tasks")


async def _bounded(step: Awaitable[T], deadline: float, name: str) -> T | None:
    """Run a step, which may neither hang nor keep the next ones from running."""
    loop = asyncio.get_running_loop()
    try:
        async with timeout_at(max(deadline, loop.time() + LEAST_STEP_S)):
            return await step
    except asyncio.TimeoutError:
        log.warning("stopping: could not %s in time", name)
    except Exception as error:  # noqa: BLE001 -- whatever it was, the next steps must run
        log.warning("stopping: could not %s: %r", name, error)
    return None
