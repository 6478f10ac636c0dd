"""Coroutines that run without an event loop."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from aiokafka_lite.client.blocking import run


class Waiting:
    """Something that only an event loop could bring."""

    def __await__(self) -> Generator[None, None, None]:
        yield


async def three() -> int:
    return 3


async def four() -> int:
    return 1 + await three()


def test_coroutine_that_never_waits_returns_its_result() -> None:
    assert run(four()) == 4


def test_coroutine_that_waits_is_closed_and_an_error() -> None:
    ended = []

    async def wait() -> None:
        try:
            await Waiting()
        finally:
            ended.append(True)

    with pytest.raises(RuntimeError, match="needs an event loop"):
        run(wait())
    assert ended


def test_what_a_coroutine_raises_is_raised() -> None:
    async def fail() -> None:
        raise KeyError(await three())

    with pytest.raises(KeyError):
        run(fail())
