"""Durations as a text that the option `--window` accepts."""

from __future__ import annotations

from typing import Final

_UNIT_MS: Final = {
    "week": 604_800_000,
    "day": 86_400_000,
    "hour": 3_600_000,
    "minute": 60_000,
    "second": 1000,
}


def format_duration(duration_ms: int) -> str:
    """Return a duration's text, such as "1 day 12 hours"."""
    parts = []
    for name, unit_ms in _UNIT_MS.items():
        count, duration_ms = divmod(duration_ms, unit_ms)
        if count:
            parts.append(f"{count} {name}{'s' if count > 1 else ''}")
    if duration_ms or not parts:
        parts.append(f"{duration_ms} ms")
    return " ".join(parts)
