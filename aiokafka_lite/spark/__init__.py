"""Kafka as a data source of Spark, without a jar: batch and streaming, through PySpark.

Everything here runs in plain processes that Spark forks: no event loop. What needs pyspark or
pyarrow imports it itself, so that options and plans can be had without them.
"""

from __future__ import annotations
