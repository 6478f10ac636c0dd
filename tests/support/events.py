"""A consumer's events, when they matter to a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiokafka_lite.events import ConsumerEvent, EventSubscription, LoopBlocked
from tests.support.waiting import PATIENCE_S


async def next_of(
    subscription: EventSubscription, event_class: type[ConsumerEvent]
) -> ConsumerEvent:
    """The next event of a class; others are passed over."""
    return await _first(subscription, lambda event: isinstance(event, event_class))


async def next_event(subscription: EventSubscription) -> ConsumerEvent:
    """The next event, but for those about a loop that other programs of the machine held up."""
    return await _first(subscription, lambda event: not isinstance(event, LoopBlocked))


async def _first(
    subscription: EventSubscription, is_wanted: Callable[[ConsumerEvent], bool]
) -> ConsumerEvent:
    async def wait() -> ConsumerEvent:
        async for event in subscription:
            if is_wanted(event):
                return event
        raise AssertionError("no such event came before the end of the events")

    return await asyncio.wait_for(wait(), PATIENCE_S)


def events_so_far(subscription: EventSubscription) -> list[ConsumerEvent]:
    """Take what a subscription gives without waiting."""
    found = []
    while True:
        step = subscription.__anext__()
        try:
            step.send(None)
        except StopIteration as done:
            found.append(done.value)
        except StopAsyncIteration:
            return found
        else:
            step.close()
            return found
