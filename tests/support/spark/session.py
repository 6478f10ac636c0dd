"""Start a Spark session of this process, small and quiet, and end it with its JVM."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

from aiokafka_lite.spark.java import JavaNotFoundError, use_java
from aiokafka_lite.spark.spark_home import use_installed_pyspark
from tests.support.maven import JarsUnavailableError
from tests.support.spark.connector import connector_jars

REPOSITORY: Final = Path(__file__).parents[3]
_STOP_TIMEOUT_S: Final = 30.0

# A JVM that lives for a minute or two on a machine that has other work: no second compiler, one
# thread that collects. For figures the JVM is as it comes.
_SMALL_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"

_LOG_SETTINGS: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
# Or else Spark says that it sets its own level.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""


class SparkUnavailableError(Exception):
    """Spark cannot run here; the message says what to install."""


def small_settings(cores: int = 2) -> dict[str, str]:
    """The settings of a session for tests."""
    return {
        "spark.master": f"local[{cores}]",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        # Functions of tests are found by their names in the workers.
        "spark.executorEnv.PYTHONPATH": str(REPOSITORY),
    }


def connector_settings() -> dict[str, str]:
    """What a session needs to have Spark's own Kafka source.

    Raises:
        JarsUnavailableError: Its jars cannot be had.
    """
    return {"spark.jars": ",".join(map(str, connector_jars()))}


def find_settings() -> dict[str, str]:
    """The settings of the one session that tests share, with the connector where it can be had."""
    settings = small_settings()
    try:
        settings.update(connector_settings())
    except JarsUnavailableError as error:
        print(f"without Spark's own Kafka source: {error}", file=sys.stderr)
    return settings


@contextmanager
def spark_session(
    settings: Mapping[str, str], *, jvm_options: Sequence[str] = (_SMALL_JVM,)
) -> Iterator[SparkSession]:
    """Start a session, and end it with its JVM and everything that it has written.

    Raises:
        SparkUnavailableError: There is no Java that Spark can run on.
    """
    try:
        use_java()
    except JavaNotFoundError as error:
        raise SparkUnavailableError(str(error)) from error
    if SparkContext._active_spark_context is not None:
        raise RuntimeError("there is a Spark session in this process already")
    # Workers run whatever this names when the session is made: `python3` from the PATH by default.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    on_interrupt = signal.getsignal(signal.SIGINT)
    home = Path(tempfile.mkdtemp(prefix="aiokafka-lite-spark-"))
    log_settings = home / "log4j2.properties"
    log_settings.write_text(_LOG_SETTINGS)
    options = [f"-Dlog4j2.configurationFile={log_settings.as_uri()}", *jvm_options]
    everything = {
        "spark.local.dir": str(home / "local"),
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.driver.extraJavaOptions": " ".join([*options, f"-Djava.io.tmpdir={home}"]),
        **settings,
    }
    try:
        builder = SparkSession.builder.appName("aiokafka-lite")
        for name, value in everything.items():
            builder = builder.config(name, value)
        spark_home = use_installed_pyspark()
        try:
            spark = builder.getOrCreate()
        finally:
            # The JVM has it; other processes may have other PySparks.
            if spark_home is not None:
                del os.environ["SPARK_HOME"]
        try:
            yield spark
        finally:
            _stop(spark)
    finally:
        signal.signal(signal.SIGINT, on_interrupt)  # PySpark puts its own there
        shutil.rmtree(home, ignore_errors=True)


def jvm_process(spark: SparkSession) -> subprocess.Popen[bytes]:
    """Return the JVM of a session."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    process: subprocess.Popen[bytes] = gateway.proc
    return process


def _stop(spark: SparkSession) -> None:
    """Stop a session and its JVM, which PySpark leaves to the end of the process."""
    context, process = spark.sparkContext, jvm_process(spark)
    gateway, accumulators = context._gateway, context._accumulatorServer
    assert gateway is not None
    try:
        spark.stop()
        accumulators.server_close()
        gateway.shutdown()
    finally:
        # The JVM ends with its standard input.
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        # A session made later in this process starts a JVM of its own.
        SparkContext._gateway = SparkContext._jvm = None
