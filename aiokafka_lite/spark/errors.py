"""The errors of reading and planning for Spark: lost records, and reads that time out."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Final

from aiokafka_lite.client.offsets import Offsets
from aiokafka_lite.errors import KafkaError, KafkaTimeoutError
from aiokafka_lite.structs import TopicPartition

log = logging.getLogger("aiokafka_lite.spark")

SHOWN: Final = 5  # of many partitions


class DataLossError(KafkaError):
    """Offsets of a query no longer exist, and the option failOnDataLoss is true (its default).

    `tp` and `offset` are the partition and the first missing offset, if known.
    """


class ReadTimeoutError(KafkaTimeoutError):
    """A partition returned no records within kafkaConsumer.pollTimeoutMs."""


class DataLossPolicy:
    """Raises or warns about lost records, by the option failOnDataLoss."""

    def __init__(self, *, are_fatal: bool) -> None:
        self.are_fatal = are_fatal

    def report(
        self,
        loss: str,
        tp: TopicPartition | None = None,
        offset: int | None = None,
        next_offset: int | None = None,
    ) -> None:
        """Report records that may be lost. Returns only if reading continues without them."""
        if not self.are_fatal:
            log.warning(
                "records may be lost: %s. Reading continues, because failOnDataLoss is false", loss
            )
            return
        error = DataLossError(
            f"records may be lost: {loss}. Either retention deleted the records, or their topic "
            "was deleted or recreated. To continue, start the query at offsets that still exist, "
            "raise the topic's retention.ms, or set the option failOnDataLoss to false to skip "
            "lost records with a warning"
        )
        raise error if tp is None else error.at(tp, offset, next_offset)

    def begins_of_added(self, added: Collection[TopicPartition], earliest: Offsets) -> Offsets:
        """Return the first offsets of new partitions, which have lost records if not at 0."""
        if gone := [tp for tp in added if tp not in earliest]:
            self.report(
                f"partitions {named(gone)} were added, but were deleted before the query had read "
                "them",
                min(gone),
            )
        for tp in sorted(added):
            if earliest.get(tp, 0):
                self.report(
                    f"the log of the new partition {tp.partition} of topic {tp.topic} begins at "
                    f"offset {earliest[tp]} instead of 0",
                    tp,
                    0,
                )
        return {tp: earliest[tp] for tp in added if tp in earliest}

    def check_continuation(self, begins: Offsets, ends: Offsets) -> None:
        if gone := [tp for tp in begins if tp not in ends]:
            self.report(f"partitions {named(gone)} were deleted", min(gone), begins[min(gone)])
        for tp, end in ends.items():
            if tp in begins and end < begins[tp]:
                self.report(
                    f"topic {tp.topic}, partition {tp.partition} was read up to offset "
                    f"{begins[tp]}, but its log now ends at offset {end}",
                    tp,
                    end,
                )


def named(tps: Iterable[TopicPartition]) -> str:
    """Return partitions for a message, but only the first ones and the number of many."""
    names = [f"{tp.topic}/{tp.partition}" for tp in sorted(tps)]
    if len(names) > SHOWN:
        names[SHOWN:] = [f"... ({len(names)} partitions in all)"]
    return ", ".join(names)
