"""The source where Spark does not run in one JVM with the driver: Connect, and executors apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.spark.java import JavaNotFoundError, use_java
from aiokafka_lite.spark.spark_home import use_installed_pyspark
from tests.support.required import unavailable
from tests.support.spark.session import REPOSITORY

TIMEOUT_S = 600

PROGRAM = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
from aiokafka_lite.spark import KafkaDataSource

master, bootstrap, folder = sys.argv[1:]
builder = SparkSession.builder.config("spark.ui.enabled", "false")
if master == "connect":
    builder = builder.remote("local[2]")
else:
    builder = builder.master(master).config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.executor.memory", "1g")
builder = builder.config("spark.driver.memory", "1g").config("spark.sql.shuffle.partitions", "1")
spark = builder.config("spark.executorEnv.PYTHONPATH", {repository!r}).getOrCreate()
spark.dataSource.register(KafkaDataSource)

def options(reader):
    reader = reader.format("aiokafka_lite").option("kafka.bootstrap.servers", bootstrap)
    return reader.option("subscribe", "t").option("startingOffsets", "earliest")

rows = options(spark.read).load()
counted = list(rows.selectExpr("count(*)", "sum(length(value))", "max(offset)").first())
try:
    options(spark.read).option("startingOffset", "earliest").load().schema
    refusal = ""
except Exception as error:
    refusal = str(error)
stream = options(spark.readStream).option("maxOffsetsPerTrigger", "100").load()
query = (
    stream.select("partition", "offset").writeStream.format("parquet")
    .option("path", folder + "/table").option("checkpointLocation", folder + "/checkpoint")
    .trigger(availableNow=True).start()
)
ended = query.awaitTermination(120)
table = spark.read.parquet(folder + "/table")
print(json.dumps({{
    "counted": counted, "refusal": refusal, "ended": ended,
    "streamed": [table.count(), table.distinct().count()],
    "batches": len(list(Path(folder, "checkpoint/commits").glob("[0-9]*"))),
}}))
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize("has_archive", [True, False])
@pytest.mark.parametrize("master", ["connect", "local-cluster[2,1,1024]"])
def test_queries_run_wherever_spark_runs(
    master: str, has_archive: bool, kafka_broker: BrokerThread, tmp_path: Path
) -> None:
    if master == "connect":
        pytest.importorskip("grpc", reason="the extra spark-connect is not installed")
    try:
        use_java(environ := dict(os.environ))
    except JavaNotFoundError as error:
        unavailable(error)
    if not has_archive and use_installed_pyspark(environ) is None:
        pytest.skip("the user's own home is used here")
    kafka_broker.create_topic("t", 2)
    for number in range(300):
        kafka_broker.produce("t", b"x" * 10, partition=number % 2)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(repository=str(REPOSITORY)))
    ended = subprocess.run(
        [sys.executable, str(program), master, kafka_broker.bootstrap_servers, str(tmp_path)],
        cwd=tmp_path,
        env={
            **environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(REPOSITORY),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert ended.returncode == 0, ended.stderr[-5000:]
    outcome = json.loads(ended.stdout.splitlines()[-1])
    assert outcome["counted"] == [300, 3000, 149]
    assert "startingoffset is not known" in outcome["refusal"]
    assert outcome["ended"]
    assert outcome["streamed"] == [300, 300]
    assert outcome["batches"] == 3
