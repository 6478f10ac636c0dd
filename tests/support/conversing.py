"""A SASL conversation, of which a test is the broker."""

from __future__ import annotations

from aiokafka_lite.client.sasl import Mechanism


class Conversation:
    """What a mechanism sends first, and answers to challenges: None if it has nothing to say."""

    def __init__(self, mechanism: Mechanism) -> None:
        self._tokens = mechanism.converse([])

    async def first(self) -> bytes:
        return await anext(self._tokens)

    async def answer(self, challenge: bytes) -> bytes | None:
        try:
            return await self._tokens.asend(challenge)
        except StopAsyncIteration:
            return None
