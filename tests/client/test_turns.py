"""Attempts that show credentials one after the other."""

from __future__ import annotations

import asyncio

import pytest

from aiokafka_lite.client.pool import Turns
from aiokafka_lite.errors import AuthenticationFailedError, KafkaConnectionError, KafkaError


async def test_after_a_refusal_nobody_shows_credentials_who_began_before() -> None:
    turns = Turns()
    shown: list[str] = []
    refusal = AuthenticationFailedError("wrong password")

    async def show(name: str, error: KafkaError | None, ticket: object = None) -> None:
        async with turns.ticket()() if ticket is None else ticket:  # type: ignore[attr-defined]
            shown.append(name)
            await asyncio.sleep(0)
            if error is not None:
                raise error

    early = [turns.ticket()() for _ in range(2)]
    await show("fine", None)
    with pytest.raises(KafkaConnectionError):
        await show("lost", KafkaConnectionError("lost"))
    await show("early", None, early[0])  # a loss is no refusal
    for _ in range(2):  # each refusal counts
        before = turns.ticket()()
        with pytest.raises(AuthenticationFailedError):
            await show("refused", refusal)
        with pytest.raises(AuthenticationFailedError) as caught:
            await show("too late", None, before)
        assert caught.value is not refusal
    with pytest.raises(AuthenticationFailedError):
        await show("too late", None, early[1])
    await show("later", None)
    assert shown == ["fine", "lost", "early", "refused", "refused", "later"]


async def test_turns_do_not_overlap() -> None:
    turns = Turns()
    steps: list[str] = []

    async def show() -> None:
        async with turns.ticket()():
            steps.append("begin")
            await asyncio.sleep(0)
            steps.append("end")

    await asyncio.gather(show(), show(), show())
    assert steps == ["begin", "end"] * 3
