"""Durations in text form: "10s", "1 hour", "1 day 12 hours"."""

from __future__ import annotations

import re
from typing import Final

_UNIT_MS: Final = {
    "ms": 1, "millisecond": 1,
    "s": 1000, "sec": 1000, "second": 1000,
    "m": 60_000, "min": 60_000, "minute": 60_000,
    "h": 3_600_000, "hour": 3_600_000,
    "d": 86_400_000, "day": 86_400_000,
    "w": 604_800_000, "week": 604_800_000,
}  # fmt: skip
_PART: Final = re.compile(r"\s*(\d+)\s*([a-z]+)", re.IGNORECASE)


def parse_duration_ms(text: str) -> int:
    """Return a duration in milliseconds; "0s" is valid.

    Raises:
        ValueError: The text is not a duration.
    """
    total, end = 0, 0
    while end < len(text.rstrip()):
        part = _PART.match(text, end)
        unit = part[2].lower() if part else ""
        unit_ms = _UNIT_MS.get(unit) or _UNIT_MS.get(unit.removesuffix("s"))
        if part is None or unit_ms is None:
            break
        total += int(part[1]) * unit_ms
        end = part.end()
    else:
        if end:
            return total
    raise ValueError(f"{text!r} is not a duration: write '30s', '1 hour' or '1 day 12 hours'")
