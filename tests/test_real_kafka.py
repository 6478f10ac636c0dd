"""The real Kafka of a test run ends with the run, however that ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

# Formats nothing, and serves for longer than this test waits, with a pipe open as a sign of life.
JAVA = """\
#!/bin/sh
case "$*" in *StorageTool*) exit 0;; esac
exec 4>"$LIFE"
echo "Kafka Server started"
exec sleep 30
"""
RUN = """\
import os, signal
from tests.support.real_kafka import RealKafka

with RealKafka() as kafka:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nodes_end_when_the_process_that_started_them_is_killed(tmp_path: Path) -> None:
    java, life = tmp_path / "java", tmp_path / "life"
    java.write_text(JAVA)
    java.chmod(0o755)
    os.mkfifo(life)
    settings = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "KAFKA_LIBS": str(tmp_path),
        "LIFE": str(life),
        "TMPDIR": str(tmp_path),
    }
    sign = os.open(life, os.O_RDONLY | os.O_NONBLOCK)
    try:
        done = subprocess.run([sys.executable, "-c", RUN], env={**os.environ, **settings})
        assert done.returncode == -signal.SIGKILL
        readable, _, _ = select.select([sign], [], [], 10)
        assert readable, "the node outlives the process"
        assert os.read(sign, 1) == b""
    finally:
        os.close(sign)
