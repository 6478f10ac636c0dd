"""What the members of a group report, held against what was written.

Members are replaced one after another while records come at a steady pace. Each member reports
what it was handed: partition, offset and time, by a clock that all processes of a machine share.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

NS: Final = 10**9


class Receipt(NamedTuple):
    """A record as a member was handed it; the time is `time.monotonic_ns()`."""

    partition: int
    offset: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Report:
    """What one member was handed.

    Attributes:
        version: Of its client.
        began_ns: When its consumer was made.
        receipts: In the order in which they came.
        errors: What the application was given beside records.
    """

    version: str
    began_ns: int
    receipts: Sequence[Receipt]
    errors: Sequence[str] = ()

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Rebuild what `to_json` wrote."""
        version, began_ns, receipts, errors = json.loads(text)
        return cls(version, began_ns, [Receipt(*each) for each in receipts], errors)

    def to_json(self) -> str:
        """Write it for another process, on one line."""
        return json.dumps([self.version, self.began_ns, self.receipts, self.errors])


class Window(NamedTuple):
    """The time in which members are replaced; `time.monotonic_ns()`."""

    begin_ns: int
    end_ns: int


def judge(
    reports: Sequence[Report], joiners: Iterable[int], written: int, window: Window
) -> dict[str, float]:
    """Return the figures of one run.

    Args:
        reports: What each member was handed.
        joiners: The numbers of those that took the place of others.
        written: How many records there are.
        window: Silences are looked for in this time.
    """
    handed_out = Counter(
        (each.partition, each.offset) for report in reports for each in report.receipts
    )
    silences = longest_silences(reports, window)
    return {
        "moves_s": silences[True] / NS,
        "stays_s": silences[False] / NS,
        "joiner_s": max(_first_record_ns(reports[number]) for number in joiners) / NS,
        "lost": float(written - len(handed_out)),
        "repeated": float(handed_out.total() - len(handed_out)),
        "errors": float(sum(len(report.errors) for report in reports)),
    }


def longest_silences(reports: Sequence[Report], window: Window) -> Mapping[bool, int]:
    """Return the longest silence of a partition that moves (True), and of one that stays (False).

    A silence is the time between two records of a partition, whichever members were handed them,
    with a part of it in the window; or up to the window's end, where no record comes any more. The
    partition has moved if these are two members. One that is taken from a member and given back
    without a record for another has stayed.
    """
    by_partition: dict[int, list[tuple[int, int]]] = {}
    for member, report in enumerate(reports):
        for receipt in report.receipts:
            by_partition.setdefault(receipt.partition, []).append((receipt.at_ns, member))
    longest = {True: 0, False: 0}
    for receipts in by_partition.values():
        receipts.sort()
        if receipts[-1][0] < window.end_ns:
            receipts.append((window.end_ns, receipts[-1][1]))
        for (before_ns, before), (after_ns, after) in pairwise(receipts):
            if after_ns > window.begin_ns and before_ns < window.end_ns:
                has_moved = before != after
                longest[has_moved] = max(longest[has_moved], after_ns - before_ns)
    return longest


def _first_record_ns(report: Report) -> int:
    return report.receipts[0].at_ns - report.began_ns
