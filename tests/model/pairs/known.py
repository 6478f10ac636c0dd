"""Faults that are known: what is left out of rounds until they are fixed.

Each entry names a way or an event of the table. Take it away with the fix.
"""

from __future__ import annotations

from typing import Final

KNOWN: Final[dict[str, str]] = {}
