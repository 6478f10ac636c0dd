"""Which of the two implementations of the per-message path runs."""

from __future__ import annotations

try:
    from aiokafka_lite.consumer.delivery._iteration import RecordCursor, RecordIterator
except ModuleNotFoundError:  # the extension is not built: the same classes in plain Python
    from aiokafka_lite.consumer.delivery._iteration_py import RecordCursor, RecordIterator

__all__ = ["RecordCursor", "RecordIterator"]
