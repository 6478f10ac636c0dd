"""Scenarios of share groups, with all clients that have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks.contestants import SHARE_CONFLUENT, SHARE_JAVA, SHARE_LITE
from benchmarks.figures import (
    ACK_P50,
    ACK_P99,
    CPU_NS,
    JOINED_MS,
    NEW_MS,
    REPEATED,
    SHARE_BUSY,
    SHARE_CUT,
    UNFINISHED,
    WALL_NS,
)
from benchmarks.scenarios import Scenario
from benchmarks.topics import Topic

if TYPE_CHECKING:
    from benchmarks.catalogue import Size

CONTESTANTS: Final = (SHARE_LITE, SHARE_CONFLUENT, SHARE_JAVA)
# As Java's producer has it, and aiokafka's.
PRODUCERS_BATCH_BYTES: Final = 16 << 10
SHORT_S: Final = 0.005
_SMALL_BATCH: Final = 10
_RATE: Final = 20


def share_scenarios(size: Size) -> list[Scenario]:
    """Return the scenarios. What ends by itself runs once: its worst must not hide."""
    few = Topic("none", 100, 10_000, batch_records=_SMALL_BATCH)
    one_partition = Topic("none", 100, 20_000, partition_count=1, batch_records=_SMALL_BATCH)
    bulk = Topic("none", 100, size.records)
    busy = Topic("none", 100, size.records, batch_bytes=PRODUCERS_BATCH_BYTES)
    long = Topic("none", 100, size.locked, batch_records=_SMALL_BATCH)
    return [
        Scenario(
            "share-start",
            family="share-start",
            title="a new share group, and one more member",
            task="share_start",
            figures=(NEW_MS, JOINED_MS),
            contestants=CONTESTANTS,
            rounds=1,
            topics=(one_partition,),
            passes=size.share_starts,
            settle_s=2,
        ),
        Scenario(
            "share-bulk",
            family="share-bulk",
            title=f"share group, implicit acknowledgement, {bulk.title}",
            task="share_bulk",
            figures=(CPU_NS, WALL_NS),
            contestants=CONTESTANTS,
            rounds=size.timed_rounds,
            topics=(bulk,),
        ),
        Scenario(
            "share-busy",
            family="share-busy",
            title="64 handlers of 5 ms, 100-byte values, batches of 16 KiB",
            task="share_busy",
            figures=SHARE_BUSY,
            contestants=CONTESTANTS,
            rounds=size.timed_rounds,
            topics=(busy,),
            settle_s=1,
            seconds=size.seconds,
            pause_s=SHORT_S,
        ),
        Scenario(
            "share-idle",
            family="share-idle",
            title=f"handlers of 5 ms, {_RATE} records a second",
            task="share_idle",
            figures=(ACK_P99, ACK_P50),
            contestants=CONTESTANTS,
            rounds=1,
            topics=(Topic(use="share-paced"),),
            rate=_RATE,
            start="latest",
            settle_s=1,
            seconds=size.seconds,
            pause_s=SHORT_S,
        ),
        Scenario(
            "share-long",
            family="share-long",
            title=f"{size.locked:,} handlers of {size.handler_s:g} s, locks of a third",
            task="share_long",
            figures=(REPEATED, UNFINISHED),
            contestants=CONTESTANTS,
            rounds=1,
            topics=(long,),
            settle_s=1,
            pause_s=size.handler_s,
        ),
        Scenario(
            "share-cut",
            family="share-cut",
            title="all connections cut under 500 running handlers",
            task="share_cut",
            figures=SHARE_CUT,
            contestants=CONTESTANTS,
            rounds=1,
            topics=(few,),
            pause_s=size.cut_handler_s,
        ),
    ]
