"""Writes docs/reliability.md: `python -m tests.faults.page`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.faults.rows import SECTIONS

PAGE: Final = Path(__file__).parents[2] / "docs" / "reliability.md"
HEAD: Final = """\
# Faults, and how this client behaves

This page lists 72 faults of networks, brokers, groups, applications and security. The last column
describes what the [tests below](#tests) check.
"""


def lines() -> Iterator[str]:
    yield HEAD
    for title, rows in SECTIONS.items():
        yield f"## {title}\n\n| | fault | aiokafka_lite |\n|---|---|---|"
        yield from (f"| {row.name} | {row.fault} | {row.here} |" for row in rows)
        yield ""
    yield "## Tests\n\n```text"
    for rows in SECTIONS.values():
        for row in rows:
            for number, test in enumerate(row.tests):
                yield f"{'' if number else row.name:5} {test}"
    yield "```"


def page() -> str:
    """Return the page."""
    return "\n".join(lines()) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
