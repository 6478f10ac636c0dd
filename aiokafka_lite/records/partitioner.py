"""Java's default partitioner. `_partitioner_py` documents the functions.

Reference: org.apache.kafka.common.utils.Utils.murmur2 and BuiltInPartitioner.partitionForKey.
"""

from __future__ import annotations

try:
    from aiokafka_lite.records._partitioner import murmur2, partition_for_key
except ModuleNotFoundError as error:
    # The extension may be missing, but a broken one must not be hidden.
    if error.name != "aiokafka_lite.records._partitioner":
        raise
    from aiokafka_lite.records._partitioner_py import murmur2, partition_for_key

__all__ = ["murmur2", "partition_for_key"]
