"""The options of a query: parsed, checked, and what they say about Kafka's own settings.

raw_options (one option as text) → positions, kafka_options, security (jaas, tls, oauth)
→ source_options (all of them).
"""

from __future__ import annotations

from aiokafka_lite.spark.options.source_options import (
    SourceOptions,
    TimestampStrategy,
    names_topics,
    parse_options,
)

__all__ = ["SourceOptions", "TimestampStrategy", "names_topics", "parse_options"]
