"""What pages read: JSON, a page of rows at a time, and how long anything may get."""

from __future__ import annotations

from typing import Final, TypeAlias

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"

ROWS: Final = 200
LONGEST: Final = 256


def clip(text: str, longest: int = LONGEST) -> str:
    """Cut what is longer than anyone reads."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def page_number(text: str) -> int:
    """Return which page is asked for, counted from 1; what cannot be one is the first."""
    is_number = text.isascii() and text.isdecimal() and len(text) < 10
    return max(int(text), 1) if is_number else 1
