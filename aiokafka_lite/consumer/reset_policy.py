"""Where to start without a usable offset: the values of `auto_offset_reset`.

References: ``auto.offset.reset`` in Kafka's consumer configuration, KIP-1106 (by_duration),
``java.time.Duration.parse`` for how durations are written.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

# What ListOffsets takes in place of a timestamp.
EARLIEST_TIMESTAMP: Final = -2
LATEST_TIMESTAMP: Final = -1
BY_DURATION: Final = "by_duration:"

# What to look up when there is no usable offset; "none" is an error instead.
_TIMESTAMPS: Final[Mapping[str, int | None]] = MappingProxyType(
    {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP, "none": None}
)
# Days, hours, minutes, seconds, each with a sign of its own if need be.
_DURATION: Final = (
    r"([-+])?P(?=[-+T0-9])(?:([-+]?[0-9]+)D)?"
    r"(T(?=[-+0-9])(?:([-+]?[0-9]+)H)?(?:([-+]?[0-9]+)M)?(?:([-+]?[0-9]+)(?:[.,]([0-9]{0,9}))?S)?)?"
)


def check_reset(policy: str) -> None:
    """Refuse what is no value of auto_offset_reset.

    Raises:
        ValueError: It is none, or a duration that cannot be read, or a negative one.
    """
    if policy not in _TIMESTAMPS:
        _duration_ms(policy)


def reset_timestamp(policy: str) -> int | None:
    """Return the ListOffsets timestamp that a policy means now; None: raise an error instead."""
    if policy in _TIMESTAMPS:
        return _TIMESTAMPS[policy]
    # Compared with timestamps that producers and brokers wrote, so it is the wall clock's time.
    return max(0, int(time.time() * 1000) - _duration_ms(policy))


def _duration_ms(policy: str) -> int:
    text = policy[len(BY_DURATION) :] if policy.startswith(BY_DURATION) else ""
    match = re.fullmatch(_DURATION, text, re.IGNORECASE | re.ASCII)
    if match is None:
        raise ValueError(
            f"auto_offset_reset is one of {', '.join(_TIMESTAMPS)} or by_duration:<ISO 8601 "
            f"duration>, as by_duration:PT12H or by_duration:P7D, not {policy!r}"
        )
    sign, days, _, hours, minutes, seconds, fraction = match.groups()
    whole_s = int(days or 0) * 86_400 + int(hours or 0) * 3_600 + int(minutes or 0) * 60
    part_ms = int((fraction or "").ljust(3, "0")[:3])
    if (seconds or "").startswith("-"):
        part_ms = -part_ms
    duration_ms = (whole_s + int(seconds or 0)) * 1000 + part_ms
    if sign == "-":
        duration_ms = -duration_ms
    if duration_ms < 0:
        raise ValueError(f"auto_offset_reset looks back, by no negative duration as {policy!r}")
    return duration_ms
