"""Finds records that were deleted before they were read."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from aiokafka_lite.client.offsets import Offsets
from aiokafka_lite.spark.errors import DataLossPolicy
from aiokafka_lite.structs import TopicPartition

SHOWN: Final = 5  # of many partitions


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
