"""Kafka as a data source of Spark, for batch and streaming queries in PySpark, without a jar.

::

    from aiokafka_lite.spark import KafkaDataSource

    spark.dataSource.register(KafkaDataSource)
    spark.read.format("aiokafka_lite").option("kafka.bootstrap.servers", "localhost:9092")

All code here is blocking, in processes that Spark forks. Each client has an event loop of its own,
which runs while a call waits (`client.blocking_cluster`). Modules import pyspark and pyarrow late,
so that options and plans can be used without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from aiokafka_lite.spark.source import KafkaDataSource

__all__ = ["KafkaDataSource"]

_OLDEST_PYSPARK: Final = (4, 0)
_HOW_TO_INSTALL: Final = (
    "run pip install 'aiokafka-lite[spark]' with the Python of the driver and of every executor"
)


def __getattr__(name: str) -> object:
    if name != "KafkaDataSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _require_spark()
    from aiokafka_lite.spark.source import KafkaDataSource

    globals()[name] = KafkaDataSource
    return KafkaDataSource


def _require_spark() -> None:
    try:
        import pyspark
    except ModuleNotFoundError as error:
        if error.name != "pyspark":
            raise
        raise ModuleNotFoundError(
            f"aiokafka_lite.spark needs PySpark 4.0 or newer: {_HOW_TO_INSTALL}", name="pyspark"
        ) from None
    release = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    if release < _OLDEST_PYSPARK:
        raise ImportError(
            "aiokafka_lite.spark needs PySpark 4.0 or newer, because the installed PySpark "
            f"{pyspark.__version__} has no Python data sources: {_HOW_TO_INSTALL}",
            name="pyspark",
        )
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        raise ModuleNotFoundError(
            f"aiokafka_lite.spark needs pyarrow: {_HOW_TO_INSTALL}", name="pyarrow"
        )
