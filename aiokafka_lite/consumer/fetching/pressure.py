"""Which buffered partitions come first, and which are dropped, when memory is short."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from aiokafka_lite.consumer.delivery.fetched import FetchedPartition
from aiokafka_lite.consumer.partition import PartitionState

Shares = Mapping[PartitionState, Sequence[FetchedPartition]]


def light_first(line: Iterable[PartitionState], shares: Shares) -> Iterator[PartitionState]:
    """Yield the partitions in line of which no batch has to be decompressed now.

    If there are none, the first in line; so batches that are decompressed already are finished
    before memory is taken for another.
    """
    first: PartitionState | None = None
    has_light = False
    for partition in line:
        first = first or partition
        part = shares[partition][0]
        if part.is_begun or not part.inflate_estimate_s:
            has_light = True
            yield partition
    if first is not None and not has_light:
        yield first


def droppable(shares: Shares, kept: FetchedPartition) -> list[PartitionState]:
    """Return the partitions whose buffers may be given up for a share, the least useful first.

    The last in line come first, and before all that has been begun what has not. What shares the
    memory of a response with `kept` gives back only what was decompressed of it.
    """
    others = [
        (any(part.is_begun for part in parts), partition)
        for partition, parts in shares.items()
        if partition is not kept.partition
        and any(
            part.response is not None and (part.response is not kept.response or part.is_begun)
            for part in parts
        )
    ]
    others.reverse()
    return [partition for _, partition in sorted(others, key=lambda other: other[0])]
