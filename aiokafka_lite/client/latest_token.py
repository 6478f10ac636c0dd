"""OAuth tokens for threads that cannot await the application's provider, which needs its loop."""

from __future__ import annotations

from aiokafka_lite._compat import override
from aiokafka_lite.abc import AbstractTokenProvider
from aiokafka_lite.errors import IllegalStateError


class RememberedTokens(AbstractTokenProvider):
    """Requests tokens from a provider, and remembers the latest."""

    def __init__(self, provider: AbstractTokenProvider) -> None:
        self._provider = provider
        # Written by the provider's loop, and replaced, never changed: other threads may read it.
        self.latest: tuple[str, dict[str, str]] | None = None

    @override
    async def token(self) -> str:
        token = await self._provider.token()
        self.latest = token, self._provider.extensions()
        return token

    @override
    def extensions(self) -> dict[str, str]:
        return self._provider.extensions()


class LatestToken(AbstractTokenProvider):
    """Returns the remembered token, from any thread."""

    def __init__(self, remembered: RememberedTokens) -> None:
        self._remembered = remembered

    def _latest(self) -> tuple[str, dict[str, str]]:
        if (latest := self._remembered.latest) is None:
            raise IllegalStateError(
                "the heartbeat thread has no OAuth token: the consumer's event loop has not "
                "received one from the token provider yet"
            )
        return latest

    @override
    async def token(self) -> str:
        return self._latest()[0]

    @override
    def extensions(self) -> dict[str, str]:
        return self._latest()[1]
