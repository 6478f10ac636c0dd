"""Logs in memory and in a folder; the same tests go through both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aiokafka_lite.broker.log.partition_log import PartitionLog
from aiokafka_lite.broker.log.storage import FolderStore, MemoryStore
from tests.broker.logs import open_log

OpenLog = Callable[[int], PartitionLog]


@pytest.fixture(params=["memory", "folder"])
def new_log(request: pytest.FixtureRequest, tmp_path: Path) -> OpenLog:
    """Make a log with segments of a given size; a folder's second one finds what the first left."""
    if request.param == "memory":
        return lambda segment_bytes: open_log(MemoryStore(segment_bytes))
    return lambda segment_bytes: open_log(FolderStore(tmp_path / "log", segment_bytes))
