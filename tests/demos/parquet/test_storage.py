from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from aiokafka_lite.structs import TopicPartition
from demos.parquet.commits import Commit, CommitLog
from demos.parquet.errors import PipelineError
from demos.parquet.storage import Storage
from demos.parquet.watermark import Watermark

TP = TopicPartition("t", 0)


def test_commits_come_back_as_they_were_written(spark: SparkSession, tmp_path: Path) -> None:
    log = CommitLog(Storage(spark, str(tmp_path)))
    assert log.last() is None
    log.append(Commit(0, {TP: 5}))
    second = Commit(1, {TP: 9}, Watermark(1000, {TP: 1500}))
    log.append(second)
    assert log.last() == second


def test_two_pipelines_in_one_directory_are_told_apart(spark: SparkSession, tmp_path: Path) -> None:
    log = CommitLog(Storage(spark, str(tmp_path)))
    log.append(Commit(0, {TP: 5}))
    with pytest.raises(PipelineError, match="another pipeline writes to the same directory"):
        log.append(Commit(0, {TP: 7}))
    assert log.read(0).offsets == {TP: 5}


def test_commits_are_kept_for_a_hundred_batches(spark: SparkSession, tmp_path: Path) -> None:
    log = CommitLog(Storage(spark, str(tmp_path)))
    for batch in (0, 1, 99, 100):
        log.append(Commit(batch, {TP: batch}))
    assert log.batches() == [1, 99, 100]


def test_directory_that_cannot_be_one_is_named(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    storage = Storage(spark, str(tmp_path / "file"))
    with pytest.raises(PipelineError, match=r"cannot store the tables in file:.*/file: "):
        storage.write("commits/0.json", "{}")


def test_file_system_that_is_not_there_is_named(spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match=r"cannot store the tables in nowhere://a/b: .*nowhere"):
        Storage(spark, "nowhere://a/b")
