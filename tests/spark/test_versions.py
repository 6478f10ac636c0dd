"""The source with every PySpark that it is for, each in a virtual environment of its own.

The environments are made on first use, outside of the repository, and kept: PySpark is 400 MB.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.spark.java import JavaNotFoundError, use_java
from tests.support.required import unavailable
from tests.support.spark import version_checks
from tests.support.spark.session import REPOSITORY

RELEASES = ("4.0", "4.1", "4.2", "4.3")
INSTALL_TIMEOUT_S = 900
CHECKS_TIMEOUT_S = 600
# Spark gives a worker ten seconds to start, which no setting changes. A busy machine needs more.
WORKER_IS_LATE = "Python worker failed to connect back"
ATTEMPTS = 3

ENVIRONMENTS = Path(
    os.environ.get("AIOKAFKA_LITE_SPARK_ENVIRONMENTS")
    or Path(tempfile.gettempdir()) / f"aiokafka-lite-spark-{os.getuid()}"
)


def environment(release: str) -> Path:
    """Return the interpreter of an environment that has a release of PySpark and this package."""
    folder = ENVIRONMENTS / f"py{sys.version_info[0]}{sys.version_info[1]}-pyspark-{release}"
    python = folder / "bin/python"
    pip = (str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check")
    if not (folder / ".installed").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        wanted = [f"pyspark~={release}.0", "pyarrow>=15"]
        subprocess.run([*pip, *wanted], check=True, timeout=INSTALL_TIMEOUT_S)
        (folder / ".installed").touch()
    # Not editable: that Spark finds the package by itself is looked at, too.
    again = [*pip, "--force-reinstall", "--no-deps", str(REPOSITORY)]
    subprocess.run(again, check=True, timeout=INSTALL_TIMEOUT_S)
    needed = ["cramjam>=2.8", "crc32c>=2.4", "async-timeout>=4.0.3; python_version < '3.11'"]
    subprocess.run([*pip, *needed], check=True, timeout=INSTALL_TIMEOUT_S)
    return python


@pytest.mark.slow
@pytest.mark.timeout(2 * INSTALL_TIMEOUT_S + ATTEMPTS * CHECKS_TIMEOUT_S)
@pytest.mark.parametrize("release", RELEASES)
def test_a_release_of_pyspark_reads_a_topic_in_each_way(
    release: str, kafka_broker: BrokerThread, tmp_path: Path
) -> None:
    try:
        use_java(environ := dict(os.environ))
    except JavaNotFoundError as error:
        unavailable(error)
    python = environment(release)
    kafka_broker.create_topic("full", 2)
    kafka_broker.create_topic("empty", 2)
    for number in range(version_checks.ROWS):
        kafka_broker.produce("full", b"x" * 100, partition=number % 2)
    for attempt in range(ATTEMPTS):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        ended = subprocess.run(
            [
                str(python),
                str(Path(version_checks.__file__)),
                kafka_broker.bootstrap_servers,
                "full",
                "empty",
                str(folder),
            ],
            cwd=folder,  # not where the repository's own package would be found
            env={**environ, "PYSPARK_PYTHON": str(python)},
            capture_output=True,
            text=True,
            check=False,
            timeout=CHECKS_TIMEOUT_S,
        )
        if ended.returncode == 0 or WORKER_IS_LATE not in ended.stderr:
            break
    assert ended.returncode == 0, ended.stderr[-5000:]
    outcome = json.loads(ended.stdout.splitlines()[-1])
    assert outcome["checked"]
    assert outcome["pyspark"].startswith(f"{release}.")
