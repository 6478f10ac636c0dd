"""Interfaces that users subclass, under aiokafka's names."""

from __future__ import annotations

import abc
from collections.abc import Awaitable

from aiokafka_lite.structs import TopicPartition

__all__ = ["AbstractTokenProvider", "ConsumerRebalanceListener"]


class ConsumerRebalanceListener(abc.ABC):
    """Told when partitions are taken away and given; both methods may be plain or async.

    With the classic protocol both get the whole assignment, and the first call of all is
    ``on_partitions_revoked(set())``. Nothing is fetched while a callback runs, which may call
    ``commit``, ``committed``, ``position`` and ``seek``, and is cut off after the rebalance
    timeout. What it raises is logged, and the rebalance goes on.
    """

    @abc.abstractmethod
    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> Awaitable[None] | None:
        """Finish work on the partitions, and commit it: another member may own them next."""

    @abc.abstractmethod
    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> Awaitable[None] | None:
        """Prepare for the partitions, before the first of their records is handed out."""


class AbstractTokenProvider(abc.ABC):
    """Source of OAuth bearer tokens for SASL/OAUTHBEARER (KIP-255)."""

    @abc.abstractmethod
    async def token(self) -> str:
        """Return a token that is valid now; called for each new connection."""

    def extensions(self) -> dict[str, str]:
        """Return the SASL extensions to send with the token (KIP-342); none by default."""
        return {}
