"""Interfaces that users subclass, under aiokafka's names."""

from __future__ import annotations

import abc
from collections.abc import Awaitable

from aiokafka_lite.structs import TopicPartition

__all__ = ["AbstractTokenProvider", "ConsumerRebalanceListener"]


class ConsumerRebalanceListener(abc.ABC):
    """Told when partitions are taken away and given; all methods may be plain or async.

    By KIP-848, which is the default where brokers offer it, and with cooperative assignors each
    hears of what moves: what is new, and what goes. In an eager group each gets the whole
    assignment, and the first call of all is ``on_partitions_revoked(set())``. ``docs/groups.md``
    compares them.

    Nothing of the partitions in question is handed out while a callback runs; in an eager group
    those are all. It may call ``commit``, ``committed``, ``position``, ``seek`` and ``stop``. A get
    without a timeout is an IllegalStateError, one with a timeout returns nothing, and neither
    counts as the next get, for auto-commit or for ``max_poll_interval_ms``. What a callback raises
    is logged and an event, ``poll()`` raises it once, and the rebalance goes on in any case.

    The rebalance timeout (``rebalance_timeout_ms``, or else ``session_timeout_ms``) bounds
    ``on_partitions_revoked`` and ``on_partitions_lost``; then the callback is cancelled, and the
    rebalance goes on. ``on_partitions_assigned`` may take ``max_poll_interval_ms``, for example to
    load the state of partitions. If it is cancelled then, no records are returned: every get
    raises KafkaTimeoutError until the partitions are revoked, or assigned again.

    A callback is cancelled if it waits for a lock whose holder waits in ``getone()``, which returns
    only after the rebalance: hold no such lock around a get that has no timeout.
    """

    @abc.abstractmethod
    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> Awaitable[None] | None:
        """Finish work on the partitions, and commit it: another member may own them next."""

    def on_partitions_lost(self, lost: set[TopicPartition]) -> Awaitable[None] | None:
        """Drop work on partitions that are gone already: others may own them, no commit is taken.

        Called in place of `on_partitions_revoked` when the group threw this consumer out: after
        a silence longer than the session (a blocked event loop, say), or when another
        took its ``group_instance_id``. By default it does what `on_partitions_revoked` does, as
        in Java's ConsumerRebalanceListener; aiokafka has no such method.
        """
        return self.on_partitions_revoked(lost)

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
