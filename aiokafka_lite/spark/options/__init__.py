"""The options of a query, parsed and checked.

settings/ (kafka.*), positions → source_options (all of them).
"""

from __future__ import annotations

from aiokafka_lite.spark.options.source_options import (
    SourceOptions,
    TimestampStrategy,
    names_topics,
    parse_options,
)

__all__ = ["SourceOptions", "TimestampStrategy", "names_topics", "parse_options"]
