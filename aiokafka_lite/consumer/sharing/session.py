"""Share sessions (KIP-932), the client's side, without I/O.

A leader remembers which partitions a member reads, over one connection. Fetches and
acknowledgements have one epoch counter, so only one request is in flight.

    none (0) --fetch--> open(1) --fetch | acknowledge--> open(n + 1) --acknowledge with -1--> none
    open --an error of the whole request, a lost answer or connection--> none

Brokers refuse acknowledgements without an open session. Every partition that a fetch names joins
the session, so those of partitions that are no longer read are sent without a fetch. A request
that renews locks does nothing else (KIP-1222).

References: ShareSessionHandler.java, ShareFetchRequest.json, ShareAcknowledgeRequest.json.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from aiokafka_lite.consumer.sharing.leases import Acknowledgements, Portion, SharePartition
from aiokafka_lite.protocol.messages import share, share_acknowledge

PartitionKey: TypeAlias = tuple[bytes, int]

NEW_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
LAST_EPOCH: Final = 2**31 - 1


class ShareSession:
    """A session of one member at one node.

    Attributes:
        epoch: Of the next request.
        partitions: Those that the node fetches from, as far as known, by their keys: one may
            have moved to another leader and back since.
    """

    def __init__(self, group_id: str, member_id: str) -> None:
        self._group_id = group_id
        self._member_id = member_id
        self.epoch = NEW_EPOCH
        self.partitions: Mapping[PartitionKey, SharePartition] = {}

    @property
    def is_open(self) -> bool:
        return self.epoch != NEW_EPOCH

    def reset(self) -> None:
        """Let the next fetch open a session, because the broker may not have this one."""
        self.epoch = NEW_EPOCH
        self.partitions = {}

    def next_epoch(self) -> int:
        """Return the epoch of a request that is sent now."""
        epoch = self.epoch
        self.epoch = 1 if epoch == LAST_EPOCH else epoch + 1
        return epoch

    def fetch(
        self,
        partitions: Collection[SharePartition],
        acknowledged: Acknowledgements,
        *,
        max_records: int,
        max_wait_ms: int,
        max_bytes: int,
        is_exact: bool,
    ) -> share.ShareFetchRequest:
        """Build the next fetch. `is_exact`: lock no whole batches (KIP-1206)."""
        wanted = {each.key: each for each in partitions}
        named = dict.fromkeys(acknowledged)
        named.update(dict.fromkeys(wanted[key] for key in wanted if key not in self.partitions))
        forgotten = [self.partitions[key] for key in self.partitions if key not in wanted]
        self.partitions = wanted
        return share.ShareFetchRequest(
            group_id=self._group_id,
            member_id=self._member_id,
            share_session_epoch=self.next_epoch(),
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            max_records=max_records,
            batch_size=max_records,
            share_acquire_mode=1 if is_exact else 0,
            topics=[
                share.FetchTopic(
                    topic_id=topic_id,
                    partitions=[
                        share.FetchPartition(
                            partition_index=each.tp.partition,
                            acknowledgement_batches=_batches(acknowledged.get(each, ())),
                        )
                        for each in mine
                    ],
                )
                for topic_id, mine in _by_topic(named)
            ],
            forgotten_topics_data=[
                share.ForgottenTopic(
                    topic_id=topic_id, partitions=[each.tp.partition for each in mine]
                )
                for topic_id, mine in _by_topic(forgotten)
            ],
        )

    def acknowledge(
        self, acknowledged: Acknowledgements, *, renews: bool = False, is_last: bool = False
    ) -> share_acknowledge.ShareAcknowledgeRequest:
        """Build a request without a fetch. `is_last` closes the session."""
        if is_last:
            self.reset()
        return acknowledgement(
            self._group_id,
            self._member_id,
            FINAL_EPOCH if is_last else self.next_epoch(),
            acknowledged,
            renews=renews,
        )


def acknowledgement(
    group_id: str, member_id: str, epoch: int, acknowledged: Acknowledgements, *, renews: bool
) -> share_acknowledge.ShareAcknowledgeRequest:
    return share_acknowledge.ShareAcknowledgeRequest(
        group_id=group_id,
        member_id=member_id,
        share_session_epoch=epoch,
        is_renew_ack=renews,
        topics=[
            share_acknowledge.AcknowledgeTopic(
                topic_id=topic_id,
                partitions=[
                    share_acknowledge.AcknowledgePartition(
                        partition_index=each.tp.partition,
                        acknowledgement_batches=_batches(acknowledged[each]),
                    )
                    for each in mine
                ],
            )
            for topic_id, mine in _by_topic(acknowledged)
        ],
    )


def _by_topic(
    partitions: Iterable[SharePartition],
) -> Iterable[tuple[bytes, list[SharePartition]]]:
    topics: dict[bytes, list[SharePartition]] = {}
    for each in partitions:
        topics.setdefault(each.topic_id, []).append(each)
    return topics.items()


def _batches(portions: Sequence[Portion]) -> list[share.AcknowledgementBatch]:
    """Return portions for a request, neighbours of one type as one batch."""
    batches: list[share.AcknowledgementBatch] = []
    for each in portions:
        last = batches[-1] if batches else None
        if (
            last is not None
            and last.last_offset + 1 == each.first_offset
            and last.acknowledge_types == [each.type]
        ):
            last.last_offset = each.last_offset
        else:
            batches.append(
                share.AcknowledgementBatch(
                    first_offset=each.first_offset,
                    last_offset=each.last_offset,
                    acknowledge_types=[each.type],
                )
            )
    return batches
