"""How many records are decoded between two looks at the clock, and when the loop runs between."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from aiokafka_lite.consumer.buffer.chunk import PACKED, Chunk, ChunkState
from aiokafka_lite.consumer.buffer.decode import (
    INFLATE_ON_LOOP_S,
    ROWS_A_RECORD,
    ChunkDecoder,
    ChunkErrors,
    make_delivery,
)
from aiokafka_lite.consumer.buffer.deserialising import AnyDeserializer
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.deserializers import BatchDeserializer, Serialized
from aiokafka_lite.records._columns_py import Columns
from tests.support.states import State
from tests.support.virtual_time import VirtualTimeLoop

pytestmark = pytest.mark.virtual_time


class Several(BatchDeserializer[object]):
    def __init__(self, max_items: int) -> None:
        self.max_items = max_items

    async def deserialize_batch(self, items: Sequence[Serialized]) -> Sequence[object]:
        return items


class SlowRecords:
    """Stands in for a chunk: each of its records, and each four of its rows, take this long."""

    def __init__(self, record_s: float) -> None:
        self.state = PACKED
        self.inflate_estimate_s = 0.0
        self.inflating = None
        self.needs_application = False
        self.decoded: list[None] = []
        self.asked: list[int] = []
        self._record_s = record_s

    def _pass_time(self, count: int) -> None:
        self.asked.append(count)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        loop.pass_time(count * self._record_s)

    def decode(self, limit: int) -> None:
        self._pass_time(limit)
        self.decoded += [None] * limit

    def fill(self, columns: Columns, limit: int) -> int:
        self._pass_time(limit)
        return limit


class Rows:
    """Stands in for columns."""

    rows = 0


class Decoding:
    """A decoder of slow records."""

    def __init__(self, record_s: float = 0.0, value_deserializer: AnyDeserializer | None = None):
        state = State()
        config = ConsumerConfig(value_deserializer=value_deserializer)
        delivery = make_delivery(config, state.events)
        self.decoder = ChunkDecoder(state.reads, state.gate, cast("ChunkErrors", None), delivery)
        self.slow = SlowRecords(record_s)
        self.chunk = cast("Chunk", self.slow)
        self.rows = Rows()
        # How many rows each call of `fill` has added.
        self.added: list[int] = []

    def decode(self, *limits: int | None) -> list[int]:
        """Decode up to these limits, each in a slice of its own; return how many at a time."""
        for limit in limits:
            self.decoder.slice.renew()
            assert not self.decoder.needs_pause(self.chunk)
            self.decoder.decode(self.chunk, limit)
        return self.slow.asked

    def fill(self, *limits: int) -> list[int]:
        """Do the same with rows."""
        for limit in limits:
            self.added.append(self.decoder.fill(self.chunk, cast("Columns", self.rows), limit))
        return self.slow.asked


def pass_slices(decoder: ChunkDecoder, count: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.pass_time(count * decoder.slice.length_s)


# --- How many -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("first_run_s", "runs"),
    [
        (0.0, [256, 512, 1024, 2048, 2048]),
        (0.0005 / 4.5, [256, 512]),
        (0.0005 / 4, [256, 256]),
        (0.0005 / 2.5, [256, 256]),
        (0.0005 / 2, [256, 256]),
        (0.0005 / 1.9, [256, 128]),
        (0.1, [256, 128, 64, 32, 16, 8, 8]),
    ],
)
async def test_runs_last_a_quarter_to_half_of_a_time_slice(
    first_run_s: float, runs: list[int]
) -> None:
    assert Decoding(first_run_s / 256).decode(*[None] * len(runs)) == runs


async def test_runs_much_shorter_than_wanted_say_nothing_of_the_time_they_take() -> None:
    pass_slices(Decoding().decoder, 2_000)
    assert Decoding().decode(127, None) == [127, 256]
    assert Decoding().decode(128, None) == [128, 512]
    assert Decoding().decode(256, 356, None) == [256, 100, 512]


async def test_runs_end_where_a_get_has_enough() -> None:
    decoding = Decoding()
    assert decoding.decode(100, 150, 350) == [100, 50, 200]
    assert len(decoding.slow.decoded) == 350


async def test_runs_begin_with_as_many_records_as_a_deserialiser_takes() -> None:
    assert Decoding(value_deserializer=lambda value: value).decode(None) == [50]
    assert Decoding(value_deserializer=Several(4)).decode(None) == [50]
    assert Decoding(value_deserializer=Several(200)).decode(None) == [200]


async def test_runs_of_rows_have_four_times_as_many_as_of_records() -> None:
    assert Decoding().fill(10_000, 10_000) == [256 * ROWS_A_RECORD, 512 * ROWS_A_RECORD]
    assert Decoding().fill(508, 10_000) == [508, 1_024]
    assert Decoding().fill(512, 10_000) == [512, 2_048]
    assert Decoding(0.001).fill(10_000, 10_000) == [1_024, 512]


# --- Time slices ----------------------------------------------------------------------------
async def test_a_pause_is_due_when_the_slice_is_over_and_not_once_the_loop_has_run() -> None:
    decoding = Decoding()
    decoder = decoding.decoder
    assert not decoder.needs_pause(decoding.chunk)
    pass_slices(decoder, 0.5)
    assert not decoder.needs_pause(decoding.chunk)
    assert decoder.slice.begin() == decoder.slice.length_s
    pass_slices(decoder, 0.5)
    assert decoder.needs_pause(decoding.chunk)
    await decoder.let_others_run()
    assert not decoder.needs_pause(decoding.chunk)
    pass_slices(decoder, 1)
    others = asyncio.ensure_future(decoder.let_others_run())
    await asyncio.sleep(0)
    others.cancel()
    await asyncio.wait([others])
    assert decoder.slice.begin() == 3 * decoder.slice.length_s
    assert not decoder.needs_pause(decoding.chunk)


@pytest.mark.parametrize(("used", "is_over"), [(0.5, False), (0.6, True)])
async def test_a_slice_of_which_more_than_half_is_used_is_ended_after_rows(
    used: float, is_over: bool
) -> None:
    decoding = Decoding()
    decoder = decoding.decoder
    decoder.slice.end_if_half_used(decoder.looked_at)
    assert not decoder.needs_pause(decoding.chunk)
    pass_slices(decoder, used)
    assert not decoder.needs_pause(decoding.chunk)
    decoder.slice.end_if_half_used(decoder.looked_at)
    assert decoder.needs_pause(decoding.chunk) is is_over


async def test_the_first_rows_of_a_get_are_added_however_much_of_the_slice_is_used() -> None:
    decoding = Decoding()
    decoding.decoder.slice.begin()
    pass_slices(decoding.decoder, 2)
    assert decoding.fill(7) == [7]
    decoding.rows.rows = 7
    assert decoding.fill(7) == [7]
    decoding.decoder.slice.renew()
    assert decoding.fill(7) == [7, 7]
    decoding.slow.state = ChunkState.EXHAUSTED
    assert decoding.fill(7) == [7, 7]
    assert decoding.added == [7, 0, 7, 0]


async def test_only_a_batch_that_takes_longer_than_half_a_millisecond_waits_for_a_thread() -> None:
    decoding = Decoding()
    decoding.slow.inflate_estimate_s = INFLATE_ON_LOOP_S
    assert not decoding.decoder.needs_pause(decoding.chunk)
    assert decoding.fill(7) == [7]
    decoding.slow.inflate_estimate_s *= 1.01
    assert decoding.decoder.needs_pause(decoding.chunk)
    assert decoding.fill(7) == [7]
    assert decoding.added == [7, 0]
