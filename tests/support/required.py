"""What tests do without a real Kafka or its Java tools: skip, unless it is said to be there.

With REQUIRE_KAFKA=1, which `.ci/run` sets where Java and Maven are, each such skip is a failure:
otherwise hundreds of tests could be left out for weeks, and nobody would notice.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NoReturn, Protocol

import pytest

VARIABLE: Final = "REQUIRE_KAFKA"
MARKS: Final = {"real_kafka": "a real Kafka", "java": "Kafka's Java tools"}


def unavailable(reason: object) -> NoReturn:
    """Skip the test, or fail it where that is not allowed, as something of Kafka's is missing."""
    if os.environ.get(VARIABLE) == "1":
        pytest.fail(
            f"{VARIABLE}=1 allows no test to be skipped for want of Kafka: {reason}", pytrace=False
        )
    pytest.skip(str(reason))


class Report(Protocol):
    """A test's report, as pytest keeps it; of a file that cannot be read it has no keywords."""

    when: str | None
    outcome: str
    keywords: Mapping[str, object]


def summary(reports: Iterable[Report]) -> str:
    """Say how many tests ran on a real Kafka, and with its tools, and how many were left out."""
    ran: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    for report in reports:
        for mark in MARKS:
            if mark in getattr(report, "keywords", ()):
                ran[mark] += report.when == "call" and report.outcome != "skipped"
                skipped[mark] += report.outcome == "skipped"
    return "; ".join(
        f"with {name}: {ran[mark]} tests ran, {skipped[mark]} skipped"
        for mark, name in MARKS.items()
    )
