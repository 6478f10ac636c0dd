"""kafka-python's batch code, imported past the deprecation warnings of its import."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import codec
    from kafka.record import MemoryRecords
    from kafka.record.default_records import DefaultRecordBatchBuilder
    from kafka.record.legacy_records import LegacyRecordBatchBuilder

__all__ = ["CODECS", "DefaultRecordBatchBuilder", "LegacyRecordBatchBuilder", "MemoryRecords"]

# Those it finds a library for.
CODECS = {"none", "gzip"} | {
    name for name in ("snappy", "lz4", "zstd") if getattr(codec, f"has_{name}")()
}
