"""Spark's session for the command: quiet, and in UTC."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from aiokafka_lite.spark.spark_home import use_installed_pyspark

_DEFAULTS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # From Spark 4.1 on it halves the time of a small batch. Earlier versions ignore it.
    "spark.python.unix.domain.socket.enabled": "true",
    # The default is 200 partitions for every aggregate.
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
}
_SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1"
"""In a run of a minute the JVM's second compiler costs more than it saves."""


@contextmanager
def spark_session(
    master: str | None, conf: Mapping[str, str], *, is_short: bool
) -> Iterator[SparkSession]:
    """Start a session for a `with`. It ends with its JVM when this process does.

    Settings are those given, then Spark's own (spark-defaults.conf, spark-submit), then the
    defaults of this command. Handlers of signals stay unchanged. `is_short`: it ends within a
    minute or two.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    use_installed_pyspark()
    # The command reports a failed query once.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    given = dict(conf)
    if master is not None:
        given["spark.master"] = master
    _start_java(given, is_short=is_short)
    settings = SparkConf().setAppName("aiokafka_lite pipeline").setAll(list(given.items()))
    for name, value in _DEFAULTS.items():
        settings.setIfMissing(name, value)
    on_interrupt = signal.getsignal(signal.SIGINT)
    SparkContext.getOrCreate(settings)
    signal.signal(signal.SIGINT, on_interrupt)  # PySpark puts its own there
    spark = SparkSession.builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def _start_java(given: Mapping[str, str], *, is_short: bool) -> None:
    """Start the JVM, unless spark-submit has. Then SparkConf knows Spark's own settings."""
    log_settings = Path(__file__).with_name("log4j2.properties").as_uri()
    java_options = f"-Dlog4j2.configurationFile={log_settings}"
    if is_short:
        java_options += f" {_SHORT_LIVED}"
    launch = SparkConf().set("spark.driver.extraJavaOptions", java_options)
    SparkContext._ensure_initialized(conf=launch.setAll(list(given.items())))
