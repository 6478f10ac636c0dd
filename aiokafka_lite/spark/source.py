"""`KafkaDataSource`: what Spark asks for by ``format("aiokafka_lite")``.

Spark makes one in a process of its own when a query loads, pickles it, and unpickles it wherever
something is planned or read. So it holds the options as they were given, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource

from aiokafka_lite._compat import override
from aiokafka_lite.errors import OptionError
from aiokafka_lite.spark.options import SourceOptions, parse_options
from aiokafka_lite.spark.process import settle

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from aiokafka_lite.spark.batch import KafkaBatchReader
    from aiokafka_lite.spark.stream import KafkaStreamReader

NAME: Final = "aiokafka_lite"


class KafkaDataSource(DataSource):
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

        Raises:
            OptionError: An option is unknown, malformed, missing, or not possible with the others.
        """
        super().__init__(options)
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

        return KafkaBatchReader(dict(self.options), arrow_schema(schema.fields))

    @override
    def streamReader(self, schema: StructType) -> KafkaStreamReader:
        from aiokafka_lite.spark.schema import arrow_schema
        from aiokafka_lite.spark.stream import KafkaStreamReader

        return KafkaStreamReader(dict(self.options), arrow_schema(schema.fields))

    def _loaded(self) -> SourceOptions:
        return parse_either(self.options)


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
