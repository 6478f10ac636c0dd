"""How far a batch reaches that cannot be read: never further than what is its own."""

from __future__ import annotations

import struct

import pytest

from aiokafka_lite import records
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.records.batch import reseal
from tests.support.crafted import Record, batch, message, raw_batch, record, record_set, take_all
from tests.support.for_each import for_each

pytestmark = pytest.mark.usefixtures("decoder")


def changed(content: bytes, at: int, value: bytes, *, is_sealed: bool = False) -> bytes:
    out = bytearray(content)
    out[at : at + len(value)] = value
    if is_sealed:
        reseal(memoryview(out))
    return bytes(out)


GOOD = batch(3)  # offsets 0 to 2
BAD = batch(4, base_offset=3)  # 3 to 6
NEXT = batch(2, base_offset=9)  # after a gap
LENGTH_AT, MAGIC_AT, CRC_AT, ATTRIBUTES_AT, DELTA_AT = 8, 16, 17, 21, 23

REACHES: dict[str, tuple[bytes, int]] = {
    # The batch behind it is sound: it begins where the bad one, and what was removed, ends.
    "wrong checksum, sound one behind": (changed(BAD, CRC_AT, b"\0\0\0\0") + NEXT, 9),
    # Its count and its last offset agree.
    "wrong checksum, nothing behind": (changed(BAD, CRC_AT, b"\0\0\0\0"), 7),
    "wrong checksum, broken one behind": (
        changed(BAD, CRC_AT, b"\0\0\0\0") + changed(NEXT, CRC_AT, b"\0\0\0\0"),
        7,
    ),
    # They do not agree, so none of it is believed.
    "last offset broken, too": (changed(BAD, DELTA_AT, b"\x7f\xff\xff\xff"), 4),
    "last offset broken, sound one behind": (
        changed(BAD, DELTA_AT, b"\x7f\xff\xff\xff") + NEXT,
        9,
    ),
    "length negative": (changed(BAD, LENGTH_AT, b"\xff\xff\xff\xff") + NEXT, 7),
    "base offset negative": (changed(BAD, 0, b"\xff" * 8) + NEXT, 9),
    "base offset too large": (changed(BAD, 0, b"\x7f" + b"\xff" * 7), 4),
    "unknown format": (changed(BAD, MAGIC_AT, b"\x03") + NEXT, 4),
    # A right checksum is proof; compaction may have removed its last records.
    "unknown codec": (
        changed(raw_batch(b"", count=1, base_offset=3, last_offset_delta=3), 22, b"\x07",
                is_sealed=True),
        7,
    ),
    "bytes after the records": (raw_batch(record(0) + b"\0", count=1, base_offset=3), 4),
    "bytes after the last of two records, sound one behind": (
        raw_batch(record(0) + record(1) + b"\0", count=2, base_offset=3) + NEXT,
        5,
    ),
    "records malformed": (raw_batch(record(0) + b"\x02", count=2, base_offset=3), 5),
    "records malformed, compacted": (
        raw_batch(record(0) + b"\x02", count=2, base_offset=3, last_offset_delta=5) + NEXT,
        9,
    ),
}  # fmt: skip


@for_each(REACHES)
def test_error_says_where_reading_can_go_on(what: str) -> None:
    bad, expected = REACHES[what]
    reader = record_set(GOOD + bad)
    taken = [one.offset for one in take_until_error(reader)]
    assert taken[:3] == [0, 1, 2]
    with pytest.raises(KafkaError) as raised:
        reader.take(1)
    assert raised.value.offset == reader.next_offset == taken[-1] + 1
    assert raised.value.next_offset == expected


def take_until_error(reader: records.RecordSet) -> list[Record]:
    taken: list[Record] = []
    try:
        while True:
            taken += reader.take(10)
    except KafkaError:
        return taken


def test_batch_that_is_cut_short_says_how_far_it_reaches() -> None:
    for size in range(1, len(BAD)):
        reader = record_set(BAD[:size], fetch_offset=3)
        with pytest.raises(KafkaError) as raised:
            take_all(reader)
        assert raised.value.next_offset == (7 if size >= 61 else 4)


@pytest.mark.parametrize(("magic", "header_bytes"), [(0, 26), (1, 34)])
def test_message_that_is_cut_short_says_how_far_it_reaches(magic: int, header_bytes: int) -> None:
    whole = message(3, b"value", magic=magic)
    for size in range(1, len(whole)):
        with pytest.raises(KafkaError) as raised:
            take_all(record_set(whole[:size], fetch_offset=2))
        assert raised.value.next_offset == (4 if size >= header_bytes else 3)


@pytest.mark.parametrize("magic", [0, 1])
def test_message_of_an_old_format_is_skipped_alone(magic: int) -> None:
    good = message(0, b"v", magic=magic)
    broken = bytearray(message(1, b"v", magic=magic))
    broken[-1] ^= 1
    with pytest.raises(KafkaError) as raised:
        take_all(record_set(good + bytes(broken) + message(2, b"v", magic=magic)))
    assert (raised.value.offset, raised.value.next_offset) == (1, 2)


def test_reading_goes_on_behind_what_was_skipped_and_loses_no_good_record() -> None:
    """As a consumer does that skips: fetch, skip, fetch from there; whatever byte is broken."""
    for at in range(len(BAD)):
        broken = [GOOD, changed(BAD, at, bytes([BAD[at] ^ 0x55])), NEXT]
        seen: list[int] = []
        position = 0
        for _ in range(60):
            first = next((n for n, end in enumerate((3, 7, 11)) if end > position), None)
            if first is None:
                break
            reader = record_set(b"".join(broken[first:]), fetch_offset=position)
            try:
                while more := reader.take(10):
                    seen += [one.offset for one in more]
                position = reader.next_offset
            except KafkaError as error:
                position = error.next_offset or 0
        good = [offset for offset in seen if offset < 3 or offset >= 9]
        is_of_bad = struct.unpack_from(">q", broken[1])[0] == 3
        assert good == [0, 1, 2, 9, 10] or not is_of_bad, f"byte {at} broken: {seen}"
