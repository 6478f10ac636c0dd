"""What the views share: JSON, and how long anything may get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"

ROWS: Final = 200
LONGEST: Final = 256
MOST_NAMED: Final = 20


def clip(text: str) -> str:
    """Cut what is longer than anyone reads."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def numbers_text(numbers: Sequence[int]) -> str:
    """Return numbers as text, the first of many."""
    more = len(numbers) - MOST_NAMED
    named = ", ".join(map(str, numbers[:MOST_NAMED]))
    return f"{named} and {more} more" if more > 0 else named
