"""From the request channel to handlers: whose turn it is, and for how long."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest

from aiokafka_lite._compat import Never
from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.broker.faults.rules import Faults
from aiokafka_lite.broker.handlers.base import Delayed, answered
from aiokafka_lite.broker.network.dispatcher import (
    Dispatcher,
    Purgatory,
    RequestChannel,
    RequestWork,
    ServedConnection,
)
from aiokafka_lite.broker.slices import TIME_SLICE_S
from aiokafka_lite.protocol.messages.metadata import MetadataRequest, MetadataResponse
from aiokafka_lite.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from aiokafka_lite.protocol.schema import Response
from aiokafka_lite.protocol.source import Steps
from tests.support.virtual_time import VirtualTimeLoop

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize(
    ("slices_per_element", "sizes"),
    [(0.0, [12]), (0.1, [10, 2]), (0.3, [4, 4, 4]), (0.5, [2] * 6), (2.0, [1] * 12)],
)
async def test_steps_of_a_large_request_take_about_a_slice_each(
    slices_per_element: float, sizes: list[int]
) -> None:
    loop = cast("VirtualTimeLoop", asyncio.get_running_loop())
    channel = RequestChannel[RequestWork](1, loop)
    purgatory = Purgatory(loop)
    dispatcher = Dispatcher(channel, purgatory, TaskScope("handlers"), Faults())
    turns: list[str] = []
    answered_with: asyncio.Future[ListOffsetsResponse] = loop.create_future()

    def fill(
        ctx: object,
        request: object,
        topic: ListOffsetsTopic,
        wanted: ListOffsetsPartition,
        answer: ListOffsetsPartitionResponse,
    ) -> None:
        assert (topic.name, answer.partition_index) == ("t", wanted.partition_index)
        answer.offset = 10 * wanted.partition_index
        turns.append("element")
        loop.pass_time(slices_per_element * TIME_SLICE_S)
        loop.call_soon(turns.append, "other")

    parts: list[Sequence[int]] = [[], range(5), range(5, 12)]
    asked = [
        ListOffsetsTopic(
            name="t",
            partitions=[ListOffsetsPartition(partition_index=index) for index in indexes],
        )
        for indexes in parts
    ]
    work = SimpleNamespace(
        context=SimpleNamespace(api_version=7),
        request=ListOffsetsRequest(topics=asked),
        entry=SimpleNamespace(handle=partial(answered, fill=fill), request=ListOffsetsRequest),
        processor=SimpleNamespace(answer=lambda work, answer: answered_with.set_result(answer)),
    )
    channel.put(cast("RequestWork", work))
    dispatching = asyncio.ensure_future(dispatcher.run())
    topics = (await answered_with).topics
    await asyncio.sleep(0)
    dispatching.cancel()
    assert [
        [(each.partition_index, each.offset) for each in topic.partitions] for topic in topics
    ] == [[(n, 10 * n) for n in indexes] for indexes in parts]
    assert turns == [
        each for size in sizes for name in ("element", "other") for each in [name] * size
    ]


def request(handle: Callable[[], object]) -> RequestWork:
    """Return work whose handler is a function of the test."""
    return cast(
        "RequestWork",
        SimpleNamespace(
            context=None,
            request=None,
            entry=SimpleNamespace(handle=lambda context, request: handle()),
            processor=SimpleNamespace(answer=lambda work, answer: None),
        ),
    )


async def test_others_have_their_turn_after_each_slice_of_requests() -> None:
    loop = cast("VirtualTimeLoop", asyncio.get_running_loop())
    channel = RequestChannel[RequestWork](100, loop)
    purgatory = Purgatory(loop)
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


def after_a_step(result: bool) -> Steps[bool]:
    yield
    return result


async def test_exception_of_a_long_poll_is_its_answer() -> None:
    loop = cast("VirtualTimeLoop", asyncio.get_running_loop())
    channel = RequestChannel[RequestWork](100, loop)
    purgatory = Purgatory(loop)
    dispatcher = Dispatcher(channel, purgatory, TaskScope("handlers"), Faults())
    dispatching = asyncio.ensure_future(dispatcher.run())

    def fail() -> Never:
        raise ValueError("broken")

    failures: list[BaseException] = []
    for is_ready in (fail, lambda: after_a_step(True)):
        work = request(lambda is_ready=is_ready: Delayed(["a"], loop.time() + 60, is_ready, fail))  # type: ignore[misc]
        work.processor = cast(
            "ServedConnection",
            SimpleNamespace(
                call_when_closed=lambda callback: None,
                fail=lambda work, error: failures.append(error),
            ),
        )
        channel.put(work)
        await asyncio.sleep(0.1)
        assert (failures, len(purgatory)) == ([], 1)
        purgatory.touch("a")
        assert [str(failures.pop()), len(purgatory), failures] == ["broken", 0, []]
    dispatching.cancel()


@pytest.mark.parametrize("ends_first", [True, False], ids=["before", "after"])
async def test_coroutine_of_a_handler_is_closed_if_the_scope_ends(ends_first: bool) -> None:
    """A broker whose scope fails before or after the start of the task warns of no coroutine."""
    loop = cast("VirtualTimeLoop", asyncio.get_running_loop())
    scope = TaskScope("handlers", on_failure=lambda error: None)
    dispatcher = Dispatcher(RequestChannel[RequestWork](9, loop), Purgatory(loop), scope, Faults())
    dispatching = asyncio.ensure_future(dispatcher.run())
    given: list[Coroutine[object, object, MetadataResponse]] = []

    def fail() -> None:
        scope.fail(ValueError("a log is damaged"), name="group-load")

    async def answer() -> MetadataResponse:
        return MetadataResponse()

    def handle() -> object:
        given.append(answer())
        if not ends_first:
            loop.call_soon(fail)
        return given[-1]

    failures: list[BaseException] = []
    work = request(handle)
    work.entry.request = MetadataRequest  # type: ignore[misc]
    work.processor.fail = lambda work, error: failures.append(error)  # type: ignore[method-assign]
    if ends_first:
        fail()
    dispatcher.channel.put(work)
    await asyncio.sleep(0.1)
    dispatching.cancel()
    assert [type(error) for error in failures] == [RuntimeError] * ends_first
    assert inspect.getcoroutinestate(given[0]) == inspect.CORO_CLOSED


async def test_long_poll_does_not_wait_for_a_change_between_its_steps() -> None:
    loop = cast("VirtualTimeLoop", asyncio.get_running_loop())
    channel = RequestChannel[RequestWork](100, loop)
    purgatory = Purgatory(loop)
    dispatcher = Dispatcher(channel, purgatory, TaskScope("handlers"), Faults())
    dispatching = asyncio.ensure_future(dispatcher.run())

    def read() -> Steps[Response]:
        yield
        return MetadataResponse(cluster_id="read again")

    def handle(is_ready: bool) -> Steps[Delayed]:
        yield
        return Delayed(["a"], loop.time() + 60, lambda: after_a_step(is_ready), read)

    for is_ready in (False, True):
        answers: list[MetadataResponse] = []
        work = request(partial(handle, is_ready))
        work.entry.request = MetadataRequest  # type: ignore[misc]
        work.processor = cast(
            "ServedConnection",
            SimpleNamespace(
                call_when_closed=lambda callback: None,
                answer=lambda work, answer, answers=answers: answers.append(answer),
            ),
        )
        channel.put(work)
        await asyncio.sleep(0.1)
        assert [each.cluster_id for each in answers] == ["read again"] * is_ready
        assert len(purgatory) == 1  # the first one waits
    dispatching.cancel()
