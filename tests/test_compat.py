"""The timeout shim: asyncio's own and async-timeout's keep the same promises."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import async_timeout
import pytest

from aiokafka_lite import _compat

SHIMS = [_compat.timeout, async_timeout.timeout]


@pytest.fixture(params=SHIMS, ids=["ours", "async-timeout"])
def timeout(request: pytest.FixtureRequest) -> Callable[[float | None], Any]:
    shim: Callable[[float | None], Any] = request.param
    return shim


def test_shim_is_asyncios_own_where_it_exists() -> None:
    expected = "asyncio" if sys.version_info >= (3, 11) else "async_timeout"
    assert _compat.timeout.__module__.split(".")[0] == expected


async def test_expiry_raises_timeout_error(timeout: Callable[[float | None], Any]) -> None:
    with pytest.raises(asyncio.TimeoutError):
        async with timeout(0.001):
            await asyncio.sleep(10)


async def test_none_never_expires(timeout: Callable[[float | None], Any]) -> None:
    async with timeout(None):
        await asyncio.sleep(0)


async def test_cancellation_from_outside_stays_a_cancellation(
    timeout: Callable[[float | None], Any],
) -> None:
    async def wait() -> None:
        async with timeout(10):
            await asyncio.sleep(10)

    task = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_task_of_a_loop_is_the_one_that_runs() -> None:
    loop = asyncio.get_running_loop()
    found: list[object] = []
    loop.call_soon(lambda: found.append(_compat.task_of(loop)))
    await asyncio.sleep(0)
    assert found == [None]
    assert _compat.task_of(loop) is asyncio.current_task()


def test_str_enum_prints_its_value() -> None:
    class Colour(_compat.StrEnum):
        RED = "red"

    assert f"{Colour.RED}" == "red" == Colour.RED
