"""Values of pages: JSON, page numbers, and limits of lengths."""

from __future__ import annotations

from typing import Final, TypeAlias

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"

ROWS: Final = 200
LONGEST: Final = 256


def clip(text: str, longest: int = LONGEST) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def page_number(text: str) -> int:
    """Return the number of the requested page, from 1; 1 if it is invalid."""
    is_number = text.isascii() and text.isdecimal() and len(text) < 10
    return max(int(text), 1) if is_number else 1
