"""`KafkaDataSource`: what Spark asks for by ``format("aiokafka_lite")``.

Spark makes one in a process of its own when a query loads, pickles it, and unpickles it wherever
something is planned or read. So it holds the options as they were given, and nothing else.
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
from aiokafka_lite.spark.build import Build, compare, own_build
from aiokafka_lite.spark.options import SourceOptions, names_topics, parse_options
from aiokafka_lite.spark.process import settle
from aiokafka_lite.spark.spark_home import use_drivers_python

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from aiokafka_lite.spark.batch import KafkaBatchReader
    from aiokafka_lite.spark.stream import KafkaStreamReader

NAME: Final = "aiokafka_lite"
_READS_ONLY: Final = (
    f"{NAME} reads only: to write use Spark's own sink, format('kafka'), with "
    f"spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}, or a "
    "Kafka producer for Python in foreachPartition or foreachBatch"
)


class _SaysItsBuild(ABCMeta):
    """The class of a class that is pickled with what the pickling process runs."""


class KafkaDataSource(DataSource, metaclass=_SaysItsBuild):
    """Kafka as a source of batch and streaming queries, with the options of Spark's own.

    ::

        spark.dataSource.register(KafkaDataSource)
        flights = (
            spark.read.format("aiokafka_lite")
            .option("kafka.bootstrap.servers", "localhost:9092")
            .option("subscribe", "flights")
            .load()
        )

    Columns: key, value, topic, partition, offset, timestamp, timestampType, and with
    ``includeHeaders`` headers. A schema of some of these, ``.schema("value binary, offset long")``,
    reads no others.
    """

    def __init__(self, options: dict[str, str]) -> None:
        """Take the options, and refuse those that no query could use, before anything runs.

        Options that name no topic to read may be those of somebody who wants to write: they are
        refused by what comes next, which knows.

        Raises:
            OptionError: An option is unknown, malformed, or not possible with the others.
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
        from aiokafka_lite.spark.batch import KafkaBatchReader
        from aiokafka_lite.spark.schema import arrow_schema

        self._loaded()
        return KafkaBatchReader(dict(self.options), arrow_schema(schema.fields))

    @override
    def streamReader(self, schema: StructType) -> KafkaStreamReader:
        from aiokafka_lite.spark.schema import arrow_schema
        from aiokafka_lite.spark.stream import KafkaStreamReader

        self._loaded()
        return KafkaStreamReader(dict(self.options), arrow_schema(schema.fields))

    @override
    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Refuse to write.

        Raises:
            OptionError: Always; it says what writes.
        """
        raise OptionError(_READS_ONLY)

    @override
    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Refuse to write.

        Raises:
            OptionError: Always; it says what writes.
        """
        raise OptionError(_READS_ONLY)

    def _loaded(self) -> SourceOptions:
        return parse_either(self.options)


def _pickled(
    source: _SaysItsBuild,
) -> str | tuple[Callable[[Build], _SaysItsBuild], tuple[Build]]:
    if source is not KafkaDataSource:
        return source.__qualname__  # as every other class: by its name
    use_drivers_python()
    return _unpickled, (own_build(),)


def _unpickled(sender: Build) -> _SaysItsBuild:
    compare(sender)
    return KafkaDataSource


copyreg.pickle(_SaysItsBuild, _pickled)


def parse_either(options: Mapping[str, str]) -> SourceOptions:
    """Parse options that may be a batch query's or a streaming one's: Spark does not tell.

    Raises:
        OptionError: They are neither's.
    """
    try:
        return parse_options(options, is_streaming=False)
    except OptionError as batch_error:
        try:
            return parse_options(options, is_streaming=True)
        except OptionError as stream_error:
            if stream_error.args == batch_error.args:
                raise batch_error from None
            raise OptionError(
                f"{batch_error.args[0]}; of a streaming query: {stream_error.args[0]}"
            ) from None
