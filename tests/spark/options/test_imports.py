"""What parsing options imports: it happens in every process that Spark starts."""

from __future__ import annotations

import subprocess
import sys

import pytest

from aiokafka_lite.records import COMPILED

PROGRAM = """
import sys
from aiokafka_lite.spark.options import parse_options
given = {"kafka.bootstrap.servers": "a:1", "subscribe": "flights", "startingOffsets": "earliest"}
given.update(zip(sys.argv[1::2], sys.argv[2::2]))
parse_options(given, is_streaming=False)
unwanted = {"asyncio", "ssl", "pyspark", "pyarrow", "dataclasses", "difflib", "cryptography"}
unwanted |= {"aiokafka_lite.client.sasl", "inspect", "tempfile", "unicodedata"}
unwanted |= {f"aiokafka_lite.{name}" for name in ("settings.jaas", "settings.tls")}
unwanted |= {"aiokafka_lite.spark.java_pattern"}
print(*sorted(unwanted & set(sys.modules)))
"""


def imported(*options: str) -> set[str]:
    ran = subprocess.run(
        [sys.executable, "-S", "-c", PROGRAM, *options],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    return set(ran.stdout.split())


def test_plain_options_import_nothing_that_takes_time() -> None:
    # A record in plain Python is a dataclass.
    assert imported() <= (set() if COMPILED else {"dataclasses", "inspect"})


@pytest.mark.parametrize(
    ("option", "needed"),
    [
        (("kafka.security.protocol", "SSL"), {"ssl", "aiokafka_lite.settings.tls"}),
        (("kafka.client.rack", "a"), set()),
    ],
)
def test_tls_is_imported_for_tls_only(option: tuple[str, str], needed: set[str]) -> None:
    assert needed <= imported(*option)
    assert "asyncio" not in imported(*option)


def test_credentials_need_no_event_loop() -> None:
    jaas = "org.apache.kafka.common.security.plain.PlainLoginModule required username=a password=b;"
    found = imported(
        *("kafka.security.protocol", "SASL_PLAINTEXT"),
        *("kafka.sasl.mechanism", "PLAIN"),
        *("kafka.sasl.jaas.config", jaas, "kafka.bootstrap.servers", "127.0.0.1:1"),
    )
    assert "aiokafka_lite.client.sasl" in found
    assert not found & {"asyncio", "ssl"}
