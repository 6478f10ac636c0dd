"""Draws the picture of README: CPU time per record of each client, as a small SVG."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from xml.sax.saxutils import escape

BARS: Final = (
    ("lite batches", "aiokafka_lite batches() (Arrow)"),
    ("lite poll", "aiokafka_lite poll()"),
    ("lite async for", "aiokafka_lite async for"),
    ("Java ConsumerPerformance", "Java ConsumerPerformance"),
    ("confluent consume, least CPU", "confluent-kafka consume(), tuned"),
    ("confluent consume", "confluent-kafka consume()"),
    ("aiokafka getmany", "aiokafka getmany()"),
    ("aiokafka async for", "aiokafka async for"),
)
"""Contestants of the scenario "plain", with their labels."""

_WIDTH: Final = 760
_LEFT: Final = 250
_RIGHT: Final = 70
_ROW: Final = 24
_TOP: Final = 40
# Readable on a white page and on a dark one.
_OURS: Final = "#3f83c4"
_OTHERS: Final = "#e08a2e"
_TEXT: Final = "#808080"


def draw(ns_by_label: Mapping[str, float]) -> str:
    """Return the picture: one bar for each client, with its CPU time in ns per record."""
    longest = max(ns_by_label.values(), default=1.0)
    height = _TOP + _ROW * len(ns_by_label) + 4
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="14" fill="{_TEXT}">',
        '<text x="0" y="20" font-weight="bold">CPU time per record at full speed, in ns</text>',
    ]
    for row, (label, ns) in enumerate(ns_by_label.items()):
        top = _TOP + _ROW * row
        width = max(1, round((_WIDTH - _LEFT - _RIGHT) * ns / longest))
        colour = _OURS if label.startswith("aiokafka_lite") else _OTHERS
        lines += [
            f'<text x="{_LEFT - 8}" y="{top + 13}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{_LEFT}" y="{top}" width="{width}" height="{_ROW - 6}" fill="{colour}"/>',
            f'<text x="{_LEFT + width + 6}" y="{top + 13}">{ns:,.0f}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])
