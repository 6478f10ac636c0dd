"""kcat, as Debian has it, against the embedded broker."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable

import pytest

from aiokafka_lite.broker.thread import BrokerThread

Kcat = Callable[..., str]


@pytest.fixture
def kcat(broker: BrokerThread) -> Kcat:
    """Runs kcat and returns what it printed."""
    command = shutil.which("kcat")
    if command is None:
        pytest.skip("kcat is not installed (Debian: apt-get install kcat)")

    def run(*arguments: str, stdin: bytes = b"") -> str:
        done = subprocess.run(
            [command, "-b", broker.bootstrap_servers, *arguments],
            input=stdin, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    return run


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_kcat_writes_and_reads(kcat: Kcat, codec: str) -> None:
    kcat("-P", "-t", "t", "-K:", "-z", codec, "-H", "name=text", stdin=b"k1:v1\nk2:v2\n")
    read = kcat("-C", "-t", "t", "-o", "beginning", "-e", "-f", "%h %k %s %p %o\n")
    assert read == "name=text k1 v1 0 0\nname=text k2 v2 0 1\n"
    assert kcat("-Q", "-t", "t:0:-1") == "t [0] offset 2\n"


def test_kcat_describes_the_cluster_and_joins_groups(kcat: Kcat, broker: BrokerThread) -> None:
    kcat("-P", "-t", "t", stdin=b"a\nb\n")
    described = json.loads(kcat("-L", "-J"))
    assert described["brokers"] == [{"id": 1, "name": broker.bootstrap_servers}]
    assert [topic["topic"] for topic in described["topics"]] == ["t"]
    from_start = ("-X", "auto.offset.reset=earliest")
    assert kcat("-G", "g", *from_start, "-e", "-f", "%s\n", "t") == "a\nb\n"
