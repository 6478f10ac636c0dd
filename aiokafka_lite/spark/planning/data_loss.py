"""Reports records that are gone before they were read: with an error, or with a warning.

It does no I/O: what there was to read, what there is, and the option failOnDataLoss decide.
Warnings go to the log `aiokafka_lite.spark`. With no handler installed, as in Spark's Python
workers, Python writes them to stderr, and Spark passes them on to its own.
"""

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
    """Raises for lost records, or warns of them."""

    def __init__(self, *, are_fatal: bool) -> None:
        """Take what the option failOnDataLoss says."""
        self.are_fatal = are_fatal

    def report(
        self, loss: str, tp: TopicPartition | None = None, offset: int | None = None
    ) -> None:
        """Tell of records that may be lost; returns only if reading is to go on without them.

        Args:
            loss: What was found, naming topics, partitions and offsets.
            tp: The partition, if it is about one.
            offset: The first offset that is missing, if it is known.

        Raises:
            DataLossError: The option failOnDataLoss is true.
        """
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
    """Return where partitions begin that were not there in the batch before.

    A partition that was never read and does not begin at 0 any more has lost records.

    Args:
        added: The partitions.
        earliest: Their first offsets; lacks those that are gone again.
        data_loss: Is told what is lost.

    Raises:
        DataLossError: As `data_loss` decides.
    """
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
    """Compare where a batch is to begin with where it is to end.

    Raises:
        DataLossError: Partitions are gone, or end before they begin, and `data_loss` does not
            want to go on.
    """
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
    """Return partitions for a message; of many, the first ones and how many there are."""
    names = [f"{tp.topic}/{tp.partition}" for tp in sorted(tps)]
    if len(names) > SHOWN:
        names[SHOWN:] = [f"... ({len(names)} partitions in all)"]
    return ", ".join(names)
