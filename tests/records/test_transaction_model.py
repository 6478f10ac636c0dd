"""read_committed against a model: any transactions, fetched in any pieces."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokafka_lite import records
from tests.support.crafted import batch, record_set, take_all

PRODUCERS = (1, 2, 3)


class Step(NamedTuple):
    """What happens next in the log; without a producer a batch outside transactions."""

    producer_id: int | None
    what: str
    record_count: int


class Log(NamedTuple):
    """Batches with the offsets behind them, aborted transactions, and what is committed."""

    batches: list[tuple[int, bytes]]
    aborted: list[tuple[int, int, int]]  # producer, first offset, marker's offset
    committed: list[int]
    last_stable_offset: int


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from((None, *PRODUCERS)),
        st.sampled_from(("append", "append", "commit", "abort")),
        st.integers(1, 4),
    ),
    max_size=30,
)


def play(steps: list[Step]) -> Log:
    """Write a log as a broker does."""
    offset = 0
    batches: list[tuple[int, bytes]] = []
    aborted: list[tuple[int, int, int]] = []
    is_open: dict[int, list[int]] = {}
    decided: list[int] = []
    for producer_id, what, count in steps:
        if producer_id is None or what == "append":
            content = batch(
                count,
                base_offset=offset,
                producer_id=-1 if producer_id is None else producer_id,
                is_transactional=producer_id is not None,
            )
            written = list(range(offset, offset + count))
            (decided if producer_id is None else is_open.setdefault(producer_id, [])).extend(
                written
            )
            offset += count
        else:  # also where nothing is open: brokers write such markers
            is_commit = what == "commit"
            content = records.control_batch(
                records.ControlType.COMMIT if is_commit else records.ControlType.ABORT,
                producer_id=producer_id,
                producer_epoch=0,
                timestamp_ms=1,
                base_offset=offset,
            )
            transaction = is_open.pop(producer_id, [])
            if is_commit:
                decided += transaction
            elif transaction:
                aborted.append((producer_id, transaction[0], offset))
            offset += 1
        batches.append((offset, content))
    stable = min((transaction[0] for transaction in is_open.values()), default=offset)
    return Log(batches, aborted, sorted(o for o in decided if o < stable), stable)


@pytest.mark.usefixtures("decoder")
class TestReadCommitted:
    @given(STEPS, st.integers(0, 2**32), st.sampled_from([1, 3, 100]))
    def test_gives_exactly_what_is_committed_in_order(
        self, steps: list[Step], seed: int, at_a_time: int
    ) -> None:
        log = play(steps)
        rng = random.Random(seed)
        seen: list[int] = []
        position = 0
        while position < log.last_stable_offset:
            first = next(n for n, (end, _) in enumerate(log.batches) if end > position)
            readable = [
                content for end, content in log.batches[first:] if end <= log.last_stable_offset
            ]
            answer = readable[: rng.randint(1, len(readable))]
            # What overlaps it, in any order, with others that a broker's index may name, too.
            listed = [(who, begins) for who, begins, ends in log.aborted if ends >= position]
            listed.append((99, 0))
            rng.shuffle(listed)
            reader = record_set(b"".join(answer), fetch_offset=position, aborted=listed)
            seen += [record.offset for record in take_all(reader, at_a_time)]
            assert reader.next_offset > position
            position = reader.next_offset
        assert seen == log.committed

    @given(STEPS)
    def test_uncommitted_gives_all_but_markers(self, steps: list[Step]) -> None:
        log = play(steps)
        found = take_all(record_set(b"".join(content for _, content in log.batches)))
        everything = [o for end, content in log.batches for o in _offsets(end, content)]
        assert [record.offset for record in found] == everything


def _offsets(end: int, content: bytes) -> list[int]:
    is_control = content[22] & 0x20
    count = int.from_bytes(content[57:61], "big")
    return [] if is_control else list(range(end - count, end))
