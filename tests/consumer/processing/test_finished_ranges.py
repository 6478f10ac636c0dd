"""What is finished behind a committed offset survives in the commit's metadata, or says nothing."""

from __future__ import annotations

import base64
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokafka_lite.consumer.assignment.cursor import Range
from aiokafka_lite.consumer.assignment.finished import (
    MOST_CHARACTERS,
    NAME,
    FinishedRanges,
    decode,
    encode,
    encode_what_fits,
    shortened,
    united,
)
from aiokafka_lite.structs import OffsetAndMetadata
from tests.support.for_each import for_each

ID = b"0123456789abcdef"
OTHER = b"fedcba9876543210"
RANGES = (Range(12, 15), Range(20, 21), Range(2_000, 90_000))


def ranges_from(offset: int, lengths: list[tuple[int, int]]) -> tuple[Range, ...]:
    found = []
    for unfinished, count in lengths:
        found.append(Range(offset + unfinished, offset + unfinished + count))
        offset = found[-1].end
    return tuple(found)


LENGTHS = st.lists(st.tuples(st.integers(1, 2**40), st.integers(1, 2**40)), min_size=1, max_size=40)


@given(
    st.integers(0, 2**50), st.integers(-1, 2**31 - 1), LENGTHS, st.binary(min_size=16, max_size=16)
)
def test_what_was_written_is_read(
    offset: int, epoch: int, lengths: list[tuple[int, int]], topic_id: bytes
) -> None:
    ranges = ranges_from(offset, lengths)
    metadata = encode(topic_id, offset, epoch, ranges)
    assert len(metadata) <= MOST_CHARACTERS
    assert decode(topic_id, offset, metadata) == FinishedRanges(epoch, ranges)


@given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)), st.integers(0, 5))
def test_what_is_finished_by_one_of_two_commits_is_so_by_both_united(
    one: set[int], other: set[int], epoch: int
) -> None:
    both = united(ID, commit_of(one, epoch), commit_of(other, 3))
    assert finished_by(both) == one | other
    assert both == united(ID, both, both)
    found = decode(ID, *both)
    ranges = () if found is None else found.ranges
    assert all(a.end < b.first for a, b in pairwise((Range(0, both.offset), *ranges)))


def commit_of(finished: set[int], epoch: int) -> OffsetAndMetadata:
    offset = next(each for each in range(42) if each not in finished)
    ranges = [Range(each, each + 1) for each in sorted(finished) if each > offset]
    return OffsetAndMetadata(offset, encode(ID, offset, epoch, ranges))


def finished_by(commit: OffsetAndMetadata) -> set[int]:
    found = decode(ID, *commit)
    ranges = () if found is None else found.ranges
    return {*range(commit.offset), *(each for r in ranges for each in range(*r))}


def test_what_is_not_ours_in_one_of_two_commits_is_left_out() -> None:
    other = OffsetAndMetadata(7, "note")
    assert united(ID, OffsetAndMetadata(5, ""), other) == (7, "")
    assert united(ID, OffsetAndMetadata(5, encode(ID, 5, 1, [Range(6, 9)])), other) == (9, "")


def test_nothing_finished_needs_no_metadata() -> None:
    assert encode(ID, 10, 3, ()) == ""


def test_metadata_for_a_topic_of_unknown_id_leave_out_all_ranges() -> None:
    assert encode_what_fits(b"", 10, 3, ()) == ("", True)
    assert encode_what_fits(b"", 10, 3, RANGES) == ("", False)


def test_metadata_may_be_exactly_as_long_as_allowed() -> None:
    metadata, is_all = encode_what_fits(ID, 10, 3, RANGES[:2])
    assert is_all
    assert encode_what_fits(ID, 10, 3, RANGES[:2], len(metadata)) == (metadata, True)
    # Four characters are three bytes: not even the first range fits into so many fewer.
    assert encode_what_fits(ID, 10, 3, RANGES[:2], len(metadata) - 1) == ("", False)
    assert shortened(ID, 10, "x" * 20, 20) == "x" * 20


def test_a_number_up_to_127_takes_one_byte() -> None:
    metadata = encode(ID, 0, 126, [Range(127, 254), Range(381, 508)])
    # The check, the epoch and two numbers for each range: nine bytes.
    assert len(metadata) == len(NAME) + 12
    ranges = (Range(128, 256),)
    assert decode(ID, 0, encode(ID, 0, 127, ranges)) == FinishedRanges(127, ranges)


def test_what_is_written_has_a_name_and_a_version() -> None:
    assert encode(ID, 10, 3, RANGES).startswith("aiokafka-lite/1 ")


def test_what_does_not_fit_is_left_out_from_the_end() -> None:
    ranges = tuple(Range(first, first + 1) for first in range(1, 100_000, 2))
    metadata = encode(ID, 0, 0, ranges)
    assert MOST_CHARACTERS - 8 < len(metadata) <= MOST_CHARACTERS
    found = decode(ID, 0, metadata)
    assert found is not None
    assert 1_000 < len(found.ranges) < len(ranges)
    assert found.ranges == ranges[: len(found.ranges)]


def test_a_range_that_does_not_fit_alone_is_no_metadata() -> None:
    assert encode(ID, 0, 0, [Range(2**40, 2**41)], len(NAME) + 8) == ""
    # A shorter one behind it would fit.
    ranges = [Range(2**40, 2**41), Range(2**41 + 1, 2**41 + 2)]
    assert encode(ID, 0, 0, ranges, len(NAME) + 16) == ""


@for_each([3_500, 400, 40, 20, 0])
def test_metadata_are_shortened_from_the_end(most_characters: int) -> None:
    ranges = tuple(Range(first, first + 1) for first in range(1, 1_000, 2))
    metadata = encode(ID, 0, 2, ranges)
    short = shortened(ID, 0, metadata, most_characters)
    assert short == encode(ID, 0, 2, ranges, most_characters)
    assert len(short) <= most_characters


def test_what_is_of_another_log_is_shortened_to_nothing() -> None:
    assert shortened(OTHER, 0, encode(ID, 0, 2, [Range(1, 2)]), 20) == ""


@pytest.mark.parametrize(
    ("topic_id", "offset"), [(OTHER, 10), (ID, 9), (ID, 11)], ids=["log", "before", "behind"]
)
def test_of_another_log_or_offset_it_says_nothing(topic_id: bytes, offset: int) -> None:
    metadata = encode(ID, 10, 3, RANGES)
    assert decode(ID, 10, metadata) == FinishedRanges(3, RANGES)
    assert decode(topic_id, offset, metadata) is None


@for_each(
    [
        "",
        "consumer-1",
        '{"epoch": 3}',
        NAME,
        NAME.strip(),
        NAME + "AAAA",
        NAME + "AAAAAAAA",
        NAME + "not base 64!",
        NAME + "é",
        "aiokafka-lite/2 " + base64.b64encode(bytes(12)).decode(),
    ]
)
def test_what_is_not_ours_says_nothing(metadata: str) -> None:
    assert decode(ID, 10, metadata) is None


def test_nothing_that_is_changed_or_cut_is_believed() -> None:
    metadata = encode(ID, 10, 3, RANGES)
    assert decode(ID, 10, metadata) is not None
    for place in range(len(metadata)):
        assert decode(ID, 10, metadata[:place]) is None
        for other in "A9+/= \x00":
            changed = metadata[:place] + other + metadata[place + 1 :]
            assert decode(ID, 10, changed) in (None, FinishedRanges(3, RANGES))
