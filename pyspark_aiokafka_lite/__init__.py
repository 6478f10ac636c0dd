"""Where Spark finds the source by itself: it looks into every package whose name is pyspark_*.

Spark then refuses to register a second source of the same name, and
``spark.dataSource.register(KafkaDataSource)`` has to work wherever the package is installed. So
what is found here has a name of its own, that of this package: ``format("pyspark_aiokafka_lite")``
needs no registration, in SQL, or through Spark Connect where only the server has the package.

An error in here would keep Spark from finding anybody's sources: without PySpark 4 and pyarrow
there is just nothing to be found.
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
