"""Java's default partitioner, so that others find each key where they look for it.

See `org.apache.kafka.common.utils.Utils.murmur2` and `BuiltInPartitioner.partitionForKey`. Keys
seldom come twice in a row, so what a key hashes to is computed each time, compiled where the
extension is built; `_partitioner_py` tells what each function does.
"""

from __future__ import annotations

try:
    from aiokafka_lite.records._partitioner import murmur2, partition_for_key
except ModuleNotFoundError as error:
    # Not built is fine; built but broken is for its owner to see.
    if error.name != "aiokafka_lite.records._partitioner":
        raise
    from aiokafka_lite.records._partitioner_py import murmur2, partition_for_key

__all__ = ["murmur2", "partition_for_key"]
