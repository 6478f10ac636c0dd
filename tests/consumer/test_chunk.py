"""The states of a chunk: which moves there are, and what a chunk says of itself in each."""

from __future__ import annotations

import asyncio

import pytest

from aiokafka_lite.consumer.buffer.chunk import LEGAL_MOVES, Chunk, ChunkState
from aiokafka_lite.deserializers import AsyncDeserializer, Serialized
from aiokafka_lite.errors import DeserializationError, IllegalStateError, KafkaError
from tests.support.buffers import A, Buffers, batch, with_unknown_codec


def chunk_of(buffers: Buffers) -> Chunk:
    chunk = buffers.partition().first_chunk
    assert chunk is not None
    return chunk


def test_every_state_has_its_moves_and_may_end_closed_but_for_good() -> None:
    assert LEGAL_MOVES.keys() == set(ChunkState)
    assert not LEGAL_MOVES[ChunkState.CLOSED]
    others = set(ChunkState) - {ChunkState.CLOSED}
    assert all(ChunkState.CLOSED in LEGAL_MOVES[state] for state in others)


def test_every_state_can_be_reached() -> None:
    reached = set().union(*LEGAL_MOVES.values())
    assert reached == set(ChunkState)


async def test_a_chunk_is_packed_then_exhausted_then_closed() -> None:
    buffers = Buffers()
    buffers.put({A: batch(0, 3)})
    chunk = chunk_of(buffers)
    assert chunk.state is ChunkState.PACKED
    chunk.decode(2)
    assert chunk.state is ChunkState.PACKED
    chunk.decode(2)
    assert chunk.state is ChunkState.EXHAUSTED
    assert not chunk.is_exhausted  # before what is decoded is handed out
    assert await buffers.poll() == {A: [0, 1, 2]}
    assert chunk.state is ChunkState.CLOSED
    assert not chunk.is_exhausted
    assert not chunk.is_current


async def test_what_is_closed_stays_so() -> None:
    buffers = Buffers()
    buffers.put({A: batch(0, 3)})
    chunk = chunk_of(buffers)
    buffers.buffer.clear()
    with pytest.raises(IllegalStateError, match="from state CLOSED to DECIDING"):
        chunk.begin_deciding()
    chunk.decode(1)
    assert not chunk.decoded


async def test_an_error_stands_until_it_was_raised_or_for_good() -> None:
    buffers = Buffers()
    partition = buffers.partition()
    buffers.put({A: batch(0, 1)})
    buffers.buffer.put_error(partition, KafkaError("refused"))
    assert partition.failure is not None
    assert partition.is_full
    assert await buffers.poll() == {A: [0]}
    with pytest.raises(KafkaError, match="refused"):
        await buffers.poll()
    assert partition.failure is None
    assert not partition.is_full
    buffers.buffer.put_error(partition, KafkaError("for good"), is_sticky=True)
    for _ in range(2):
        with pytest.raises(KafkaError, match="for good"):
            await buffers.poll()
    assert chunk_of(buffers).state is ChunkState.FAILED
    assert partition.failure is not None
    buffers.state.seek(partition, 0)
    assert partition.failure is None


async def test_an_error_that_was_raised_stands_no_more_until_it_is_met_again() -> None:
    def refuse(value: bytes | None) -> object:
        raise ValueError("bad")

    buffers = Buffers(value_deserializer=refuse)
    buffers.put({A: batch(0, 3, codec="gzip") + batch(3, 3, codec="gzip")})
    chunk = chunk_of(buffers)
    assert chunk.failure is None
    assert chunk.inflate_estimate_s > 0
    for _ in range(2):
        with pytest.raises(DeserializationError):
            await buffers.poll()
        assert chunk.state is ChunkState.RAW
        assert chunk.failure is None
        assert not buffers.partition().is_full
        assert chunk.position_after() == 0
        assert chunk.inflate_estimate_s == 0  # these records come first


async def test_what_is_decompressed_counts_as_held_until_its_records_are_taken() -> None:
    buffers = Buffers()
    view = batch(0, 50, codec="gzip", size=100)
    buffers.put({A: view})
    chunk = chunk_of(buffers)
    assert (chunk.held_bytes, chunk.is_begun) == (0, False)
    chunk.decode(2)
    # The memory may be one of a larger batch, taken from a pool.
    assert 5_000 < chunk.held_bytes <= buffers.budget.used_bytes - len(view)
    assert chunk.is_begun
    assert len(chunk.pop(1)) == 1
    assert chunk.held_bytes > 5_000
    assert len(chunk.pop(1)) == 1
    assert chunk.held_bytes == 0


async def test_a_chunk_without_batches_has_nothing_to_decode() -> None:
    buffers = Buffers()
    chunk = Chunk(buffers.partition(), buffers.delivery, end_offset=3)
    assert chunk.state is ChunkState.EXHAUSTED
    assert (chunk.is_exhausted, chunk.can_decode, chunk.position_after()) == (True, False, 3)
    assert chunk.inflate_estimate_s == 0
    assert (
        Chunk(buffers.partition(), buffers.delivery, error=KafkaError("no")).position_after() == 0
    )


async def test_a_chunk_waits_for_the_thread_and_for_the_application_that_work_on_it() -> None:
    class Waiting(AsyncDeserializer[object]):
        async def deserialize(self, item: Serialized) -> object:
            return item.payload

    buffers = Buffers(value_deserializer=Waiting())
    buffers.put({A: batch(0, 3)})
    chunk = chunk_of(buffers)
    assert not chunk.needs_application
    in_thread = asyncio.get_running_loop().create_future()
    chunk.begin_inflating(in_thread)
    assert (chunk.state, chunk.inflating) == (ChunkState.INFLATING, in_thread)
    chunk.decode(3)
    assert not chunk.raw
    chunk.end_inflating()
    assert (chunk.state, chunk.inflating) == (ChunkState.PACKED, None)
    chunk.decode(3)
    assert (chunk.state, chunk.needs_application) == (ChunkState.RAW, True)
    chunk.begin_deserialising()
    assert (chunk.state, chunk.needs_application) == (ChunkState.DESERIALISING, True)
    chunk.end_work()
    assert (chunk.state, chunk.needs_application) == (ChunkState.RAW, True)
    assert (await buffers.poll())[A][0] == 0  # the others too, unless the time slice is over


async def test_an_error_waits_for_on_bad_record_only_once_all_ahead_of_it_was_taken() -> None:
    buffers = Buffers(on_bad_record="skip")
    buffers.put({A: batch(0, 3) + with_unknown_codec(batch(3, 1))})
    chunk = chunk_of(buffers)
    chunk.decode(3)
    chunk.decode(3)
    assert (chunk.state, chunk.is_undecided) == (ChunkState.UNDECIDED, True)
    assert (chunk.needs_application, chunk.can_decode) == (False, False)
    chunk.pop(None)
    assert (chunk.needs_application, chunk.can_decode) == (True, True)
    chunk.begin_deciding()
    assert (chunk.is_undecided, chunk.needs_application) == (True, True)
    chunk.end_work()
    assert chunk.state is ChunkState.UNDECIDED


async def test_what_was_decompressed_for_records_that_are_all_skipped_is_not_held() -> None:
    def refuse(value: bytes | None) -> object:
        raise ValueError("bad")

    buffers = Buffers(value_deserializer=refuse, on_bad_record="skip")
    buffers.put({A: batch(0, 3, codec="gzip") + batch(3, 3, codec="gzip")})
    chunk = chunk_of(buffers)
    held = []
    for _ in range(2):
        for _ in range(3):
            chunk.decode(3)
        held.append(chunk.held_bytes)
    assert held[0] == held[1] > 0
