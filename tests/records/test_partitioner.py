"""Both partitioners find the partitions that Java's does."""

from __future__ import annotations

import subprocess
import sys
from array import array
from typing import Any

import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given
from hypothesis import strategies as st

from aiokafka_lite.records import _partitioner_py, partitioner
from tests.support.extensions import BROKEN, NOT_BUILT
from tests.support.for_each import for_each

MODULE = "aiokafka_lite.records._partitioner"

# mypy takes the compiled functions for the plain ones.
MURMUR2 = {"python": _partitioner_py.murmur2}
PARTITION_FOR_KEY = {"python": _partitioner_py.partition_for_key}
if partitioner.murmur2 is not _partitioner_py.murmur2:
    MURMUR2["compiled"] = partitioner.murmur2
    PARTITION_FOR_KEY["compiled"] = partitioner.partition_for_key
each_way = pytest.mark.parametrize("way", MURMUR2)

keys = st.binary(max_size=40)


# The signed values that Kafka's own UtilsTest expects.
@each_way
@for_each(
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ]
)
def test_murmur2_agrees_with_java(key: bytes, signed: int, way: str) -> None:
    assert MURMUR2[way](key) == signed & 0xFFFFFFFF


@each_way
@given(keys)
def test_murmur2_agrees_with_aiokafka(way: str, key: bytes) -> None:
    assert MURMUR2[way](key) == aiokafka_murmur2(key)


@each_way
@given(keys, st.integers(1, 100))
def test_partition_is_the_positive_hash_shared_out(way: str, key: bytes, count: int) -> None:
    partition = PARTITION_FOR_KEY[way](key, count)
    assert partition == (aiokafka_murmur2(key) & 0x7FFFFFFF) % count


@each_way
def test_key_may_be_anything_like_bytes(way: str) -> None:
    content = bytes(range(200, 224))
    likes: list[Any] = [bytearray(content), memoryview(content), memoryview(array("q", content))]
    likes.append(memoryview(content * 2)[: len(content)])
    assert {MURMUR2[way](like) for like in likes} == {MURMUR2[way](content)}


@each_way
@for_each(["key", None, 5, [1]])
def test_key_of_another_type_is_refused(key: Any, way: str) -> None:
    with pytest.raises(TypeError, match=f"key must be bytes.*not {type(key).__name__}"):
        PARTITION_FOR_KEY[way](key, 3)


@each_way
@for_each([0, -1])
def test_topic_without_partitions_is_refused(count: int, way: str) -> None:
    with pytest.raises(ValueError, match=f"must be at least 1, not {count}"):
        PARTITION_FOR_KEY[way](b"key", count)


REPORT = """
from aiokafka_lite.records import partitioner
print(partitioner.murmur2(b"21") - 2**32)
"""


def run(prepare: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys\n{prepare}\n{REPORT}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_plain_python_runs_where_the_extension_is_not_built() -> None:
    result = run(NOT_BUILT.format(name=MODULE))
    assert (result.stdout.strip(), result.stderr) == ("-973932308", "")


@pytest.mark.skipif("compiled" not in MURMUR2, reason="the extension is not built")
def test_broken_extension_is_not_hidden() -> None:
    result = run(BROKEN.format(name=MODULE))
    assert result.returncode != 0
    assert "undefined symbol" in result.stderr
