"""The tables of pages that compare other clients with this one."""

from __future__ import annotations

import re
from collections.abc import Iterator


def rows(section: str, number: int) -> list[tuple[str, str]]:
    """The rows of a section's first or second table, without its head."""
    tables = re.findall(r"(?:^\|.*\|\n)+", section, re.M)
    lines = tables[number].splitlines()[2:]
    return [
        (left.strip(), right.strip())
        for _, left, right, _ in (re.split(r" ?\| ?", line) for line in lines)
    ]


def names(cell: str) -> Iterator[str]:
    """The names in a cell's code: what stands at its beginning."""
    for code in re.findall(r"`([^`]+)`", cell):
        found = re.match(r"(?:for record in )?([A-Za-z_][\w.]*)", code)
        if found:
            yield found[1]


def methods_of(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_") and name.islower()}
