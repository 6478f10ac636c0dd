"""The compiled decoder against the plain one: the same records, rows, errors and positions."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from aiokafka_lite import records
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.records.batch import HEADER_BYTES, reseal
from tests.support.crafted import Record, message, raw_batch, record, record_set, varint
from tests.support.rounds import LONG

if TYPE_CHECKING:
    import pyarrow as pa

pytestmark = pytest.mark.skipif(not records.COMPILED, reason="the compiled decoder is not built")

MUTATIONS = 300_000 if LONG else 5_000
FIXTURES = sorted((Path(__file__).parent / "fixtures").glob("*.bin"))

Taken = TypeVar("Taken", bound="Sequence[object]")
Outcome = tuple[
    list[Taken], list[object], type[KafkaError] | None, int, list[tuple[int, int]], bool
]


def outcome(
    name: str,
    content: bytes,
    *,
    fetch_offset: int,
    way: Callable[[], Callable[[records.RecordSet], Taken]],
) -> Outcome[Taken]:
    """All that a reader can see who takes what is there in some way, bit by bit."""
    taken: list[Taken] = []
    error: type[KafkaError] | None = None
    with records.use_decoder(name):
        view, take = memoryview(content), way()
        decoded = record_set(
            content,
            fetch_offset=fetch_offset,
            check_crcs=False,
            aborted=[(11, 6)],
            max_batch_bytes=64 * 1024,
        )
        try:
            while len(more := take(decoded)):
                taken.append(more)
        except KafkaError as raised:
            error = type(raised)
        ends: list[object] = [records.end_offset(view), decoded.inflate_estimate_s]
        return taken, ends, error, decoded.next_offset, decoded.epochs, decoded.is_exhausted


def records_outcome(
    name: str, content: bytes, *, fetch_offset: int, at_a_time: int
) -> Outcome[list[Record]]:
    return outcome(
        name,
        content,
        fetch_offset=fetch_offset,
        way=lambda: lambda decoded: decoded.take(at_a_time),
    )


def rows_outcome(
    name: str, content: bytes, *, fetch_offset: int, at_a_time: int
) -> Outcome[pa.RecordBatch]:
    """The same by way of columns; every third time records are taken, and made into rows."""
    from aiokafka_lite.records.arrow import ArrowColumns

    def way() -> Callable[[records.RecordSet], pa.RecordBatch]:
        arrow = ArrowColumns()
        times = 0

        def take(decoded: records.RecordSet) -> pa.RecordBatch:
            nonlocal times
            times += 1
            if times % 3 == 0:
                return arrow.from_records(decoded.take(at_a_time))
            decoded.take_columns(arrow.columns, at_a_time)
            rows = arrow.finish()
            rows.validate(full=True)
            return rows

        return take

    return outcome(name, content, fetch_offset=fetch_offset, way=way)


def as_rows(found: Outcome[list[Record]]) -> Outcome[pa.RecordBatch]:
    """What has to be seen by way of columns where this is seen by way of records."""
    from aiokafka_lite.records.arrow import ArrowColumns

    arrow = ArrowColumns()
    return [arrow.from_records(taken) for taken in found[0]], *found[1:]


def seeds() -> list[bytes]:
    """Small record sets of every age and codec, plain ones first: most mutations reach records."""
    plain = [
        (
            1000 + number * (-1) ** number,
            b"k" * number or None,
            b"v" * (number * 9),
            HEADERS[number],
        )
        for number in range(6)
    ]
    found = [records.build_batch(plain, codec=codec, base_offset=3) for codec in records.Codec]
    found += [path.read_bytes() for path in FIXTURES]
    found += [
        raw_batch(
            record(0) + record(1, key=varint(3) + b"abc") + record(5),
            count=3,
            last_offset_delta=5,
            producer_id=11,
        ),
        raw_batch(record(0, key=b"\x08\0\0\0\0"), count=1, attributes=0x30, producer_id=11),
        b"".join(message(offset, b"value", key=b"k", magic=offset % 2) for offset in range(4)),
    ]
    return found


HEADERS: list[tuple[tuple[str, bytes | None], ...]] = [
    (),
    (("a", b"1"),),
    (("a", None), ("é", b"")),
    (),
    (("name", b"value"),) * 5,
    (),
]
INTERESTING = (0x00, 0x01, 0x02, 0x7F, 0x80, 0x81, 0xFE, 0xFF)


def mutated(rng: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(changed))
        kind = rng.random()
        if kind < 0.4:
            changed[at] = rng.choice(INTERESTING)
        elif kind < 0.7:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind < 0.8:
            changed[at] = rng.randrange(256)
        elif kind < 0.9:
            changed[at:at] = bytes(rng.choices(INTERESTING, k=rng.randint(1, 4)))
        elif len(changed) > 1:
            del changed[at : at + rng.randint(1, 4)]
    if rng.random() < 0.05:
        del changed[rng.randrange(len(changed)) :]
    return bytes(changed)


def with_mutated_records(rng: random.Random, content: bytes) -> bytes:
    """Change the records only and mend the length, so that the header does not catch it first."""
    changed = content[:HEADER_BYTES] + mutated(rng, content[HEADER_BYTES:])
    return changed[:8] + (len(changed) - 12).to_bytes(4, "big") + changed[12:]


def mutations(rng: random.Random, count: int) -> Iterator[bytes]:
    found = seeds()
    plain_batch, plain_raw = found[0], found[-3]
    for number in range(count):
        if number % 2:
            content = with_mutated_records(rng, rng.choice((plain_batch, plain_raw)))
        else:
            content = mutated(rng, rng.choice(found))
        if rng.random() < 0.2:
            neighbours = rng.choices((*found, plain_batch, plain_raw), k=rng.randint(1, 3))
            content = b"".join([*neighbours[1:], content, neighbours[0]])
        yield content


def test_decoders_agree_on_what_is_well_formed() -> None:
    for content in seeds():
        first = records_outcome("python", content, fetch_offset=0, at_a_time=4)
        assert first == records_outcome("compiled", content, fetch_offset=0, at_a_time=4)
        assert first[2] is None


@pytest.mark.parametrize("share", range(4))
def test_decoders_agree_on_mutated_batches(share: int) -> None:
    seed = random.randrange(2**32) if LONG else share
    rng = random.Random(seed)
    errors: set[type[KafkaError] | None] = set()
    for number, content in enumerate(mutations(rng, MUTATIONS // 4)):
        fetch_offset, at_a_time = rng.choice((0, 0, 4, 105)), rng.choice((1, 3, 1000))
        expected = records_outcome(
            "python", content, fetch_offset=fetch_offset, at_a_time=at_a_time
        )
        got = records_outcome("compiled", content, fetch_offset=fetch_offset, at_a_time=at_a_time)
        assert got == expected, f"seed {seed}, mutation {number}: {content.hex()}"
        errors.add(expected[2])
    assert len(errors) >= 4  # the mutations reach more than one check


def test_rows_of_mutated_batches_are_their_records() -> None:
    pytest.importorskip("pyarrow", reason="rows are for pyarrow: pip install pyarrow")
    seed = random.randrange(2**32) if LONG else 5
    rng = random.Random(seed)
    row_count, count = 0, min(MUTATIONS // 10, 5_000)  # rows take long: 12 ms a batch
    for number, content in enumerate(mutations(rng, count)):
        fetch_offset, at_a_time = rng.choice((0, 0, 4, 105)), rng.choice((1, 3, 1000))
        expected = as_rows(
            records_outcome("compiled", content, fetch_offset=fetch_offset, at_a_time=at_a_time)
        )
        for name in records.DECODERS:
            got = rows_outcome(name, content, fetch_offset=fetch_offset, at_a_time=at_a_time)
            assert got == expected, f"{name}, seed {seed}, mutation {number}: {content.hex()}"
        row_count += sum(map(len, expected[0]))
    assert row_count > count  # most are rows, not errors


def test_decoders_agree_on_random_records() -> None:
    rng = random.Random(7)
    for _ in range(MUTATIONS // 10):
        payload = bytes(rng.choices(INTERESTING, k=rng.randint(7, 60)))
        content = bytearray(raw_batch(payload, count=rng.randint(0, 8), last_offset_delta=9))
        reseal(memoryview(content))
        expected = records_outcome("python", bytes(content), fetch_offset=0, at_a_time=2)
        assert records_outcome("compiled", bytes(content), fetch_offset=0, at_a_time=2) == expected
