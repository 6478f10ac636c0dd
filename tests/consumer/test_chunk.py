"""The states of a chunk: which moves there are, and what a chunk says of itself in each."""

from __future__ import annotations

import pytest

from aiokafka_lite.consumer.buffer.chunk import LEGAL_MOVES, Chunk, ChunkState
from aiokafka_lite.errors import IllegalStateError, KafkaError
from tests.support.buffers import A, Buffers, batch


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
