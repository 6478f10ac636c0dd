"""From the request channel to handlers: whose turn it is, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.broker.faults.rules import Faults
from aiokafka_lite.broker.network.channel import RequestChannel
from aiokafka_lite.broker.network.dispatcher import Dispatcher
from aiokafka_lite.broker.network.purgatory import Purgatory
from aiokafka_lite.broker.network.work import RequestWork
from aiokafka_lite.broker.slices import TIME_SLICE_S
from aiokafka_lite.protocol.messages.metadata import MetadataResponse
from aiokafka_lite.protocol.schema import Response
from aiokafka_lite.protocol.source import Steps
from tests.support.virtual_time import VirtualTimeLoop

pytestmark = pytest.mark.virtual_time


def request(handle: Callable[[], object]) -> RequestWork:
    """Return work whose handler is a function of the test."""
    return cast(
        "RequestWork",
        SimpleNamespace(
            is_large=False,
            context=None,
            request=None,
            entry=SimpleNamespace(is_by_element=True, handle=lambda context, request: handle()),
            processor=SimpleNamespace(answer=lambda work, answer: None),
        ),
    )


async def test_others_have_their_turn_after_each_slice_of_requests() -> None:
    loop = cast("VirtualTimeLoop", asyncio.get_running_loop())
    channel = RequestChannel[RequestWork](100, loop)
    purgatory = Purgatory[Response | Steps[Response]](loop)
    scope = TaskScope("handlers")
    dispatching = asyncio.ensure_future(Dispatcher(channel, purgatory, scope, Faults()).run())
    turns: list[str] = []

    def handle() -> MetadataResponse:
        turns.append("request")
        loop.pass_time(0.4 * TIME_SLICE_S)
        loop.call_soon(turns.append, "other")
        return MetadataResponse()

    for wait_s in (0.0, 5.0):  # the time without requests is no one's slice
        await asyncio.sleep(wait_s)
        turns.clear()
        for _ in range(10):
            channel.put(request(handle))
        await asyncio.sleep(0.1)
        assert turns == [
            each for count in (4, 4, 2) for name in ("request", "other") for each in [name] * count
        ]
    dispatching.cancel()
