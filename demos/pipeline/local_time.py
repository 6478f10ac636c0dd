"""The hour on New York's clocks."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from aiokafka_lite.cli.problems import CommandError

ZONE: Final = "America/New_York"


def local_hour(moment: datetime) -> int:
    """Return the hour of the day in New York.

    Raises:
        CommandError: This system knows no time zones.
    """
    return moment.astimezone(_zone()).hour


@lru_cache(maxsize=1)
def _zone() -> ZoneInfo:
    try:
        return ZoneInfo(ZONE)
    except ZoneInfoNotFoundError:
        raise CommandError(
            f"this system has no data of time zone {ZONE}: pip install tzdata"
        ) from None
