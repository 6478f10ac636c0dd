"""Limits of the inside that tests set to extremes, so that they are reached at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from aiokafka_lite.client import cluster, connection
from aiokafka_lite.client.wire import Wire
from aiokafka_lite.consumer import events, life, parts
from aiokafka_lite.consumer.buffer import decode
from aiokafka_lite.consumer.buffer.budget import ByteBudget
from aiokafka_lite.consumer.fetching import leader_search, source, sources
from aiokafka_lite.consumer.monitoring import health
from aiokafka_lite.consumer.positions import resolver
from aiokafka_lite.records import pieces, record_set, scratch


# --- Decoding ---------------------------------------------------------------------------------
def end_slices_at_once(monkeypatch: pytest.MonkeyPatch, *, first_run: int | None = None) -> None:
    """End every time slice after the first run of records, which may be made shorter."""
    monkeypatch.setattr(decode, "TIME_SLICE_S", 0.0)
    if first_run is not None:
        monkeypatch.setattr(decode, "FIRST_RUN", first_run)


def end_no_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give gets more time than they can need."""
    monkeypatch.setattr(decode, "TIME_SLICE_S", 60.0)


def decompress(monkeypatch: pytest.MonkeyPatch, *, in_thread: bool) -> None:
    """Decompress batches of any size in a thread, or on the loop."""
    monkeypatch.setattr(decode, "INFLATE_ON_LOOP_S", 0.0 if in_thread else 60.0)


def cut_batches(monkeypatch: pytest.MonkeyPatch, *, from_bytes: int, piece_bytes: int) -> None:
    """Decompress batches of so many bytes and more in pieces of another size."""
    monkeypatch.setattr(record_set, "_LARGEST_WHOLE_BYTES", from_bytes - 1)
    monkeypatch.setattr(pieces, "PIECE_BYTES", piece_bytes)


def have_no_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no memory for what is decompressed in pieces."""

    def refuse(size: int) -> bytearray:
        raise MemoryError(size)

    monkeypatch.setattr(pieces, "lend", refuse)


def limit_arrow_batches(monkeypatch: pytest.MonkeyPatch, max_bytes: int) -> None:
    """Let batches of rows have so many bytes."""
    from aiokafka_lite.consumer.delivery import arrow_gets  # needs pyarrow

    monkeypatch.setattr(arrow_gets, "MAX_BATCH_BYTES", max_bytes)


# --- Fetching ---------------------------------------------------------------------------------
def limit_frames(monkeypatch: pytest.MonkeyPatch, max_bytes: int, overhead_bytes: int) -> None:
    """Let connections accept so many bytes, more if the application fetches more at once."""
    monkeypatch.setattr(parts, "DEFAULT_MAX_FRAME_BYTES", max_bytes)
    monkeypatch.setattr(parts, "FRAME_OVERHEAD_BYTES", overhead_bytes)


def search_leaders_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for a lost leader's follower without long pauses."""
    monkeypatch.setattr(cluster, "SEARCH_PAUSE_S", (0.01, 0.02))
    monkeypatch.setattr(leader_search, "SEARCH_INTERVAL_S", 0.01)


def doubt_leaders_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for another leader soon while an answer is overdue; keep the connection for long."""
    monkeypatch.setattr(leader_search, "WATCH_INTERVAL_S", 0.05)
    monkeypatch.setattr(source, "OVERDUE_S", 0.1)
    monkeypatch.setattr(source, "FETCH_STALL_S", 600.0)


def watch_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the watchdog look fifty times a second."""
    monkeypatch.setattr(resolver, "TICK_S", 0.02)


class WatchedBudget(ByteBudget):
    """A budget that notes the most that was buffered at a time."""

    most_bytes = 0
    change_count = 0

    def change(self, by_bytes: int, pending_by_bytes: int, is_claimed: bool) -> None:
        super().change(by_bytes, pending_by_bytes, is_claimed)
        self.change_count += 1
        self.most_bytes = max(self.most_bytes, self.buffered_bytes)


def watch_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give consumers budgets that note what they are used for."""
    scratch._kept.clear()  # what other tests' batches needed counts whole when it is used again
    monkeypatch.setattr(life, "ByteBudget", WatchedBudget)


# --- The network ------------------------------------------------------------------------------
def dial_by(monkeypatch: pytest.MonkeyPatch, connect: Callable[..., Awaitable[object]]) -> None:
    """Let connections be opened by a stand-in for `dial`."""
    monkeypatch.setattr(connection, "dial", connect)


def wire_by(monkeypatch: pytest.MonkeyPatch, cls: type[Wire]) -> None:
    """Let connections that are opened from now on have wires of a subclass."""
    monkeypatch.setattr(connection, "Wire", cls)


def resolve_by(monkeypatch: pytest.MonkeyPatch, resolve: Callable[..., object]) -> None:
    """Let names of hosts be looked up by a stand-in for the resolver."""
    monkeypatch.setattr(connection, "_resolve", resolve)


def share_out_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share the partitions of a broker out to as many fetch sessions as it can have."""
    monkeypatch.setattr(sources, "MOST_PARTITIONS", sources.FEWEST_PARTITIONS)


def share_out_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look often at how partitions are shared out, and take fewer sessions soon."""
    monkeypatch.setattr(sources, "LOOK_S", 0.05)
    monkeypatch.setattr(sources, "MEMORY_S", 0.1)
    monkeypatch.setattr(sources, "CALM_S", 0.2)


# --- What is said -----------------------------------------------------------------------------
def log_every_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep no line about the same thing out of the log."""
    monkeypatch.setattr(events, "LOG_INTERVAL_S", 0.0)


def miss_positions_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `health` say soon that a partition has no position."""
    monkeypatch.setattr(health, "LONG_WITHOUT_POSITION_S", 0.05)
