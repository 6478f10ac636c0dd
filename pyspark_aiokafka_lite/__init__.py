"""The module by which Spark discovers the source: it imports every package named pyspark_*.

Spark then rejects a second source of the same name, and ``spark.dataSource.register(
KafkaDataSource)`` has to work in any installation. So the discovered source has the name of this
package. ``format("pyspark_aiokafka_lite")`` needs no registration, for example in SQL, or with
Spark Connect if only the server has the package.

An error in this module would prevent Spark from discovering any source. So without PySpark 4 and
pyarrow the module defines no source.
"""

from __future__ import annotations

from typing import Final

NAME: Final = "pyspark_aiokafka_lite"

try:
    from aiokafka_lite.spark import KafkaDataSource
except ImportError:
    pass
else:

    class DefaultSource(KafkaDataSource):
        """`KafkaDataSource` under the name of this package."""

        @classmethod
        def name(cls) -> str:
            return NAME
