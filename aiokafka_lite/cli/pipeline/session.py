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

from pyspark import SparkConf
from pyspark.sql import SparkSession

_DEFAULTS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Since Spark 4.1; earlier ones pass over it. Halves what a small batch takes.
    "spark.python.unix.domain.socket.enabled": "true",
    # Or else every window's aggregate goes through 200 partitions.
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
}
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1"
"""For a run of a minute the JVM's second compiler costs more than it brings."""


@contextmanager
def spark_session(
    master: str | None, conf: Mapping[str, str], *, is_short: bool
) -> Iterator[SparkSession]:
    """Start a session for a `with`; it ends with its JVM when this process does.

    Args:
        master: Where Spark runs; None: as its own settings say, or on all cores here.
        conf: Settings that come before the defaults.
        is_short: Whether it is over in a minute or two.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = SparkConf()
    builder = SparkSession.builder.appName("aiokafka_lite pipeline")
    if master is not None or not settings.contains("spark.master"):
        builder = builder.master(master or "local[*]")
    log_settings = Path(__file__).with_name("log4j2.properties").as_uri()
    java_options = f"-Dlog4j2.configurationFile={log_settings}"
    if is_short:
        java_options += f" {_SHORT_LIVED}"
    for name, value in {**_DEFAULTS, _JAVA_OPTIONS: java_options, **conf}.items():
        if name in conf or not settings.contains(name):
            builder = builder.config(name, value)
    on_interrupt = signal.getsignal(signal.SIGINT)
    # A failing query is told of by the command, once.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    spark = builder.getOrCreate()
    signal.signal(signal.SIGINT, on_interrupt)  # PySpark puts its own there
    try:
        yield spark
    finally:
        spark.stop()
