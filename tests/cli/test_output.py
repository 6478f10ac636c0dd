"""Tables in terminals of any width."""

from __future__ import annotations

import io
import itertools
from collections import Counter

import pytest

from aiokafka_lite.cli.output import columns, rich_table
from tests.support.for_each import for_each

COLUMNS = columns("topic, #committed, client")
ROW = {"topic": "payments.orders.enriched.v2", "committed": 123_456_789_012, "client": "a-7d9f8b"}


def characters(text: str) -> Counter[str]:
    """How often each letter and digit is there."""
    return Counter(each for each in text.lower() if each.isalnum())


@for_each(itertools.product([200, 60, 50, 45, 40, 20], [0, 2]))
def test_a_table_shows_numbers_whole_and_all_of_each_name(width: int, count: int) -> None:
    console = pytest.importorskip("rich.console").Console(file=io.StringIO(), width=width)
    console.print(rich_table([ROW] * count, COLUMNS, width))
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert text.count("123456789012") == count
    headings = "".join(column.heading for column in COLUMNS)
    assert characters(text) == characters(headings + "".join(map(str, ROW.values())) * count)
