"""Base classes for users, under aiokafka's names."""

from __future__ import annotations

import abc
from collections.abc import Awaitable

from aiokafka_lite.structs import TopicPartition

__all__ = ["AbstractTokenProvider", "ConsumerRebalanceListener"]


class ConsumerRebalanceListener(abc.ABC):
    """Called when partitions are revoked, lost and assigned. Methods may be sync or async.

    With KIP-848 (the default if brokers support it) and cooperative assignors, the arguments are
    the partitions that move. In an eager group they are the whole assignment, and the first call is
    ``on_partitions_revoked(set())``.

    While a callback runs, the records of its partitions are withheld, in an eager group all
    records. A callback may call ``commit``, ``committed``, ``position``, ``seek`` and ``stop``. A
    read without a timeout raises IllegalStateError there, and one with a timeout returns no
    records. Neither counts as a read for auto-commit or ``max_poll_interval_ms``. An exception of a
    callback is logged and published as an event, ``poll()`` raises it once, and the rebalance
    continues.

    The rebalance timeout (``rebalance_timeout_ms``, or else ``session_timeout_ms``) limits
    ``on_partitions_revoked`` and ``on_partitions_lost``. After that the callback is cancelled, and
    the rebalance continues. ``on_partitions_assigned`` may take ``max_poll_interval_ms``. If it is
    cancelled after that, every read raises KafkaTimeoutError until the partitions are revoked, or
    assigned again.

    Do not hold a lock in ``getone()`` that a callback needs: ``getone()`` returns after the
    rebalance.
    """

    @abc.abstractmethod
    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> Awaitable[None] | None:
        """Finish the records of the partitions, and commit: another member may own them next."""

    def on_partitions_lost(self, lost: set[TopicPartition]) -> Awaitable[None] | None:
        """Drop state of partitions that other members may own, for which commits fail.

        Called instead of `on_partitions_revoked` when the group has removed this consumer: no
        heartbeat arrived within the session, or another consumer took its ``group_instance_id``. By
        default it calls `on_partitions_revoked`, as in Java. aiokafka has no such method.
        """
        return self.on_partitions_revoked(lost)

    @abc.abstractmethod
    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> Awaitable[None] | None:
        """Prepare for the partitions, before their first records are returned."""


class AbstractTokenProvider(abc.ABC):
    """A source of OAuth bearer tokens for SASL/OAUTHBEARER (KIP-255)."""

    @abc.abstractmethod
    async def token(self) -> str:
        """Return a currently valid token. Called for each new connection."""

    def extensions(self) -> dict[str, str]:
        """Return the SASL extensions to send with the token (KIP-342). None by default."""
        return {}
