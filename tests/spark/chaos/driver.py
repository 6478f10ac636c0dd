"""A driver that streams topics into a Parquet table until it is killed, or all is read.

    python -m tests.spark.chaos.driver '{"folder": …, "master": …, "options": {…}, "once": false}'

It says "started" when the query runs; its last line says why the query ended.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.errors import StreamingQueryException

from aiokafka_lite.spark import KafkaDataSource
from tests.spark.alike.comparing import OURS
from tests.spark.alike.streaming import Stream
from tests.spark.chaos.driving import Job
from tests.support.spark.session import small_settings, spark_session

STARTED = "started"


def main(job: Job) -> int:
    """Run a job; returns 0 if all was read, 1 if the query failed."""
    settings = {**small_settings(), "spark.driver.memory": "700m", **job.settings}
    with spark_session(settings) as spark:
        spark.dataSource.register(KafkaDataSource)
        stream = Stream(spark, Path(job.folder), job.options)
        query = stream.start(OURS, is_continuous=not job.is_once)
        print(STARTED, flush=True)
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            print(error, flush=True)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Job.from_json(sys.argv[1])))
