"""`KafkaDataSource`: the class behind ``format("aiokafka_lite")``.

Spark pickles an instance into every process. So it holds only the given options.
"""

from __future__ import annotations

import copyreg
from abc import ABCMeta
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NoReturn

import pyspark
from pyspark.sql.datasource import DataSource

from aiokafka_lite._compat import override
from aiokafka_lite.errors import OptionError
from aiokafka_lite.spark.options import SourceOptions, names_topics, parse_options
from aiokafka_lite.spark.process import Build, compare, own_build, settle
from aiokafka_lite.spark.spark_home import use_drivers_python

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from aiokafka_lite.spark.readers import KafkaBatchReader, KafkaStreamReader

NAME: Final = "aiokafka_lite"
_READS_ONLY: Final = (
    f"the source {NAME} cannot write. To write to Kafka, use Spark's own sink, format('kafka'), "
    "with the setting "
    f"spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}. "
    "Alternatively, use a Kafka producer for Python in foreachPartition or foreachBatch"
)


class _PickledWithBuild(ABCMeta):
    """The metaclass of a class that is pickled with the build of its process."""


class KafkaDataSource(DataSource, metaclass=_PickledWithBuild):
    """Kafka as a source of batch and streaming queries, with the options of Spark's own source.

    ::

        spark.dataSource.register(KafkaDataSource)
        flights = (
            spark.read.format("aiokafka_lite")
            .option("kafka.bootstrap.servers", "localhost:9092")
            .option("subscribe", "flights")
            .load()
        )

    Columns: key, value, topic, partition, offset, timestamp, timestampType, and with
    ``includeHeaders`` headers. With a schema of some of these, such as
    ``.schema("value binary, offset long")``, only these are read.
    """

    def __init__(self, options: dict[str, str]) -> None:
        """Check the options before a query runs.

        Options without a topic may belong to a write: `schema`, `reader` or `writer` reject them.

        Raises:
            OptionError: An option is unknown or malformed, or conflicts with another.
        """
        super().__init__(options)
        if names_topics(self.options):
            self._loaded()
        settle()

    @override
    @classmethod
    def name(cls) -> str:
        return NAME

    @override
    def schema(self) -> str:
        from aiokafka_lite.spark.schema import spark_ddl

        return spark_ddl(include_headers=self._loaded().include_headers)

    @override
    def reader(self, schema: StructType) -> KafkaBatchReader:
        from aiokafka_lite.spark.readers import KafkaBatchReader
        from aiokafka_lite.spark.schema import arrow_schema

        self._loaded()
        return KafkaBatchReader(dict(self.options), arrow_schema(schema.fields))

    @override
    def streamReader(self, schema: StructType) -> KafkaStreamReader:
        from aiokafka_lite.spark.readers import KafkaStreamReader
        from aiokafka_lite.spark.schema import arrow_schema

        self._loaded()
        return KafkaStreamReader(dict(self.options), arrow_schema(schema.fields))

    @override
    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Refuse to write.

        Raises:
            OptionError: Always. It names packages that write.
        """
        raise OptionError(_READS_ONLY)

    @override
    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Refuse to write.

        Raises:
            OptionError: As `writer`.
        """
        raise OptionError(_READS_ONLY)

    def _loaded(self) -> SourceOptions:
        return parse_either(self.options)


def _pickled(
    source: _PickledWithBuild,
) -> str | tuple[Callable[[Build], _PickledWithBuild], tuple[Build]]:
    if source is not KafkaDataSource:
        return source.__qualname__  # a subclass is pickled by its name
    use_drivers_python()
    return _unpickled, (own_build(),)


def _unpickled(sender: Build) -> _PickledWithBuild:
    compare(sender)
    return KafkaDataSource


copyreg.pickle(_PickledWithBuild, _pickled)


def parse_either(options: Mapping[str, str]) -> SourceOptions:
    """Parse the options of a batch or streaming query: Spark does not pass the kind of query."""
    try:
        return parse_options(options, is_streaming=False)
    except OptionError as batch_error:
        try:
            return parse_options(options, is_streaming=True)
        except OptionError as stream_error:
            if stream_error.args == batch_error.args:
                raise batch_error from None
            raise OptionError(
                f"in a batch query: {batch_error.args[0]}. In a streaming query: "
                f"{stream_error.args[0]}"
            ) from None
