"""The real Kafka of a test run ends with the run, and `make kafka` knows of one that is up."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import real_kafka

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


def test_a_kafka_is_up_if_its_process_runs_and_its_port_is_open(tmp_path: Path) -> None:
    state = tmp_path / "running.json"
    assert real_kafka.running_address(state) is None
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        state.write_text(json.dumps({"pid": os.getpid(), "address": f"{address},127.0.0.1:1"}))
        assert real_kafka.running_address(state) == f"{address},127.0.0.1:1"
    assert real_kafka.running_address(state) is None  # another process has its number


@pytest.mark.parametrize(("port", "nodes"), [("0", "1"), ("65536", "1"), ("65534", "3")])
def test_a_port_that_does_not_exist_is_refused(
    port: str, nodes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        real_kafka.main(["--port", port, "--nodes", nodes])
    assert "ports are numbers from 1 to 65535" in capsys.readouterr().err
