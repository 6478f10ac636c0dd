"""The table of pairs: how often each way of reading met each event with records in hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

Pair = tuple[str, str]


@dataclass
class Table:
    """Counts pairs of a row, the way of reading, and a column, the event."""

    rows: Collection[str]
    columns: Collection[str]
    # Pairs that cannot meet, with the reason.
    impossible: Mapping[Pair, str] = field(default_factory=dict)
    counts: Counter[Pair] = field(default_factory=Counter)

    def met(self, row: str, column: str) -> None:
        """Count a meeting."""
        self.counts[row, column] += 1

    def add(self, other: Table) -> None:
        """Add what another table has counted."""
        self.counts.update(other.counts)

    def rarest(self, row: str, columns: Iterable[str]) -> list[str]:
        """Return those of these columns that the row can meet, those met least first."""
        possible = [column for column in columns if (row, column) not in self.impossible]
        return sorted(possible, key=lambda column: self.counts[row, column])

    def rarer_than(self, count: int) -> list[Pair]:
        """Return the pairs that could have met, and did so less often."""
        return [
            (row, column)
            for row in self.rows
            for column in self.columns
            if (row, column) not in self.impossible and self.counts[row, column] < count
        ]

    def text(self) -> str:
        """Return the table in lines, a column for each way."""
        head = [f"{chr(ord('A') + n)}  {row}" for n, row in enumerate(self.rows)]
        letters = "".join(f"{chr(ord('A') + n):>{WIDTH}}" for n in range(len(self.rows)))
        lines = [*head, "", f"{'':<{NAME}}{letters}"]
        for column in self.columns:
            cells = "".join(f"{self._cell(row, column):>{WIDTH}}" for row in self.rows)
            lines.append(f"{column:<{NAME}}{cells}")
        return "\n".join(lines)

    def _cell(self, row: str, column: str) -> str:
        count = self.counts[row, column]
        return "-" if not count and (row, column) in self.impossible else str(count)


NAME: Final = 34
WIDTH: Final = 6
