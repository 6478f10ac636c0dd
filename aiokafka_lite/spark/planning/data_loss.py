"""Reports records that were deleted before they were read: as an error or a warning."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Final

from aiokafka_lite.client.offsets import Offsets
from aiokafka_lite.spark.errors import DataLossError
from aiokafka_lite.structs import TopicPartition

log = logging.getLogger("aiokafka_lite.spark")

SHOWN: Final = 5  # of many partitions


class DataLossPolicy:
    """Raises or warns about lost records, by the option failOnDataLoss."""

    def __init__(self, *, are_fatal: bool) -> None:
        self.are_fatal = are_fatal

    def report(
        self, loss: str, tp: TopicPartition | None = None, offset: int | None = None
    ) -> None:
        """Report records that may be lost. Returns only if reading continues without them."""
        if not self.are_fatal:
            log.warning(
                "records may be lost: %s. Reading continues, because failOnDataLoss is false", loss
            )
            return
        error = DataLossError(
            f"records may be lost: {loss}. Either retention deleted the records, or their topic "
            "was deleted or recreated. To read the remaining records, set the option "
            "failOnDataLoss to false"
        )
        raise error if tp is None else error.at(tp, offset)


def begins_of_added(
    added: Collection[TopicPartition], earliest: Offsets, data_loss: DataLossPolicy
) -> Offsets:
    """Return the first offsets of new partitions: one that does not begin at 0 has lost records."""
    if gone := [tp for tp in added if tp not in earliest]:
        data_loss.report(
            f"partitions {named(gone)} were added, but were deleted before the query had read them",
            min(gone),
        )
    for tp in sorted(added):
        if earliest.get(tp, 0):
            data_loss.report(
                f"the log of the new partition {tp.partition} of topic {tp.topic} begins at "
                f"offset {earliest[tp]} instead of 0",
                tp,
                0,
            )
    return {tp: earliest[tp] for tp in added if tp in earliest}


def check_continuation(begins: Offsets, ends: Offsets, data_loss: DataLossPolicy) -> None:
    if gone := [tp for tp in begins if tp not in ends]:
        data_loss.report(f"partitions {named(gone)} were deleted", min(gone), begins[min(gone)])
    for tp, end in ends.items():
        if tp in begins and end < begins[tp]:
            data_loss.report(
                f"topic {tp.topic}, partition {tp.partition} was read up to offset {begins[tp]}, "
                f"but its log now ends at offset {end}",
                tp,
                end,
            )


def named(tps: Iterable[TopicPartition]) -> str:
    """Return partitions for a message, but only the first ones and the number of many."""
    names = [f"{tp.topic}/{tp.partition}" for tp in sorted(tps)]
    if len(names) > SHOWN:
        names[SHOWN:] = [f"... ({len(names)} partitions in all)"]
    return ", ".join(names)
