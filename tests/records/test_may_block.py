"""Record sets that decompress while they are taken: the same records, the same errors."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokafka_lite import records
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.records import scratch
from aiokafka_lite.records.batch import reseal
from aiokafka_lite.structs import TopicPartition
from tests.support.crafted import batch, raw_batch, take

CODECS = ["gzip", "snappy", "lz4", "zstd"]
COMPRESSED = {
    codec: [batch(20, base_offset=100 * n, codec=codec) for n in range(3)] for codec in CODECS
}
PLAIN = batch(20, base_offset=1000)


def outcome(
    content: bytes, *, may_block: bool, at_a_time: int = 7
) -> tuple[list[object], object, TopicPartition | None, int | None, int]:
    """What comes of a record set: rows, error, its place, and where to go on."""
    record_set = records.RecordSet(
        "topic", 0, memoryview(content), fetch_offset=5, may_block=may_block, max_batch_bytes=4096
    )
    rows: list[object] = []
    error: KafkaError | None = None
    try:
        while some := take(record_set, at_a_time):
            rows += [(each.offset, each.timestamp, each.key, each.value) for each in some]
    except KafkaError as raised:
        error = raised
    place = (None, None) if error is None else (error.tp, error.next_offset)
    return rows, (type(error), error and error.args), *place, record_set.next_offset


@pytest.mark.parametrize("codec", CODECS)
def test_records_are_the_same(codec: str) -> None:
    content = b"".join(COMPRESSED[codec]) + PLAIN
    rows, *_ = found = outcome(content, may_block=True)
    assert len(rows) == 4 * 20 - 5
    assert found == outcome(content, may_block=False)


@pytest.mark.parametrize("codec", CODECS)
@given(at=st.integers(61, 200), byte=st.integers(1, 255), which=st.integers(0, 2))
def test_what_is_broken_is_broken_alike(codec: str, at: int, byte: int, which: int) -> None:
    batches = [bytearray(each) for each in COMPRESSED[codec]]
    broken = batches[which]
    broken[61 + at % (len(broken) - 61)] ^= byte
    reseal(memoryview(broken))
    content = b"".join(batches) + PLAIN
    assert outcome(content, may_block=True) == outcome(content, may_block=False)


@pytest.mark.parametrize("attributes", [5, 6, 7])
def test_unknown_codecs_and_bombs_are_refused_alike(attributes: int) -> None:
    bomb = records.build_batch([(1, None, bytes(5000), ())], codec="zstd", base_offset=100)
    for broken in (raw_batch(b"12345", count=1, base_offset=100, attributes=attributes), bomb):
        content = COMPRESSED["lz4"][0] + broken
        found = outcome(content, may_block=True)
        assert found[1] != (type(None), None)
        assert found == outcome(content, may_block=False)


def test_buffers_come_back_and_nothing_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bytearray] = []
    monkeypatch.setattr(scratch, "_kept", kept)
    content = bytearray(b"".join(COMPRESSED["lz4"]))
    gc.disable()
    try:
        record_set = records.RecordSet(
            "topic", 0, memoryview(content), fetch_offset=0, may_block=True
        )
        while record_set.take(1000):
            pass
        assert len(kept) == 1
        del record_set
        content.append(0)  # refused while anybody looks at it
    finally:
        gc.enable()
