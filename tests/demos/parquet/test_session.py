"""Where the command's session takes its settings from."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import signal
from demos.pipeline.session import spark_session
from aiokafka_lite.spark.java import use_java

use_java()
before = signal.getsignal(signal.SIGINT)
with spark_session(None, {"spark.sql.session.timeZone": "Asia/Tokyo"}, is_short=True) as spark:
    assert signal.getsignal(signal.SIGINT) == before
    names = "spark.sql.shuffle.partitions", "spark.sql.session.timeZone", "spark.ui.enabled"
    print(spark.sparkContext.master, *map(spark.conf.get, names))
"""


@pytest.mark.slow
def test_what_is_given_comes_before_sparks_own_settings_and_these_before_the_commands(
    tmp_path: Path,
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.master local[1]\n"
        "spark.sql.shuffle.partitions 7\n"
        "spark.sql.session.timeZone Europe/Paris\n"
    )
    environment = {**os.environ, "SPARK_CONF_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.split() == ["local[1]", "7", "Asia/Tokyo", "false"]
