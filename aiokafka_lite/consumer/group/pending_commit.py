"""One commit on its way, from the call to the answers for all of its partitions."""

from __future__ import annotations

from collections.abc import Mapping

from aiokafka_lite.consumer.group.member import Identity
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class PendingCommit:
    """A commit on its way.

    One that the application asked for waits for rebalances, and says what it says. Those that
    the consumer makes by itself do not wait, and give way to what the application committed.
    """

    def __init__(
        self,
        sequence: int,
        offsets: Offsets,
        made_as: Identity | None,
        *,
        is_asked_for: bool,
        names_partitions: bool = False,
        is_departed: bool = False,
    ) -> None:
        self.sequence = sequence
        self.left = dict(offsets)
        # As whom the partitions were held at the call, and later; None: they were lost already.
        self.made_as = made_as
        self.is_asked_for = is_asked_for
        # By the application: then each of them is committed, or the commit fails.
        self.names_partitions = names_partitions
        # The application has given the partitions up since.
        self.is_departed = is_departed
        # The coordinator is in the middle of a rebalance that this member may not know of yet.
        self.was_put_off = False
        # The broker may have it: perhaps only the answer was lost.
        self.was_sent = False
