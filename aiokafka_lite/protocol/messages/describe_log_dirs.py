"""DescribeLogDirs (key 35): the size of each partition's log, by folder of a broker.

v2 is flexible; v3 an error of the whole; v4 sizes of the volume (KIP-827); v5 cordoned folders
(KIP-1066).
"""

from __future__ import annotations

from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    int16,
    int32,
    int64,
    string,
)


class DescribeLogDirsPartition(Struct):
    """The replica of a partition: its size in bytes and how far it lags behind."""

    partition_index: int = int32("0+")
    partition_size: int = int64("0+")
    offset_lag: int = int64("0+")
    is_future_key: bool = boolean("0+")


class DescribeLogDirsTopic(Struct):
    """A topic in the folder."""

    name: str = string("0+")
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition, "0+")


class DescribeLogDirsResult(Struct):
    """A folder and what it holds."""

    error_code: int = int16("0+")
    log_dir: str = string("0+")
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic, "0+")
    total_bytes: int = int64("4+", default=-1, ignorable=True)
    usable_bytes: int = int64("4+", default=-1, ignorable=True)
    is_cordoned: bool = boolean("5+", ignorable=True)


class DescribeLogDirsResponse(Response):
    """Contents by folder."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("3+", ignorable=True)
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult, "0+")


class DescribableLogDirTopic(Struct):
    """Partitions to look for."""

    topic: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class DescribeLogDirsRequest(
    Request[DescribeLogDirsResponse], key=35, versions="1-5", flexible="2+"
):
    """Where are these partitions? Null asks for all."""

    topics: list[DescribableLogDirTopic] | None = array(DescribableLogDirTopic, "0+", nullable="0+")
