"""The settings of librdkafka, asked of the library that confluent-kafka has."""

from __future__ import annotations

import ctypes
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

import confluent_kafka
import pytest


class TheirSetting(NamedTuple):
    """A line of librdkafka's list: `client` is C, P or * for both."""

    client: str
    default: str


@cache
def librdkafka_settings() -> dict[str, TheirSetting]:
    """Return every setting by its name; of two with one name, the global one."""
    libraries = list(Path(f"{confluent_kafka.__path__[0]}.libs").glob("librdkafka*"))
    if not libraries:
        pytest.skip("confluent-kafka has no librdkafka of its own here")
    librdkafka, libc = ctypes.CDLL(str(libraries[0])), ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    with tempfile.NamedTemporaryFile("r") as file:
        stream = ctypes.c_void_p(libc.fopen(file.name.encode(), b"w"))
        librdkafka.rd_kafka_conf_properties_show(stream)
        libc.fclose(stream)
        lines = file.read().splitlines()
    found: dict[str, TheirSetting] = {}
    for line in lines:
        cells = [cell.strip() for cell in line.split(" | ")]
        if len(cells) > 4 and cells[1] in ("C", "P", "*"):
            found.setdefault(cells[0], TheirSetting(cells[1], cells[3]))
    assert len(found) > 150
    return found
