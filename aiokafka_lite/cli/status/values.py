"""What the views share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MOST_NAMED: Final = 20


def numbers_text(numbers: Sequence[int]) -> str:
    """Return numbers as text, the first of many."""
    more = len(numbers) - MOST_NAMED
    named = ", ".join(map(str, numbers[:MOST_NAMED]))
    return f"{named} and {more} more" if more > 0 else named
