"""Spark's processes say when they do not all run the same aiokafka_lite."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from types import ModuleType
from unittest import mock

import pytest
from pyspark import cloudpickle

from aiokafka_lite.spark import KafkaDataSource, process
from aiokafka_lite.spark.process import Build, own_build
from aiokafka_lite.spark.readers import KafkaBatchReader
from aiokafka_lite.spark.schema import default_schema
from tests.support.extensions import but_for_plain_python

OPTIONS = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "t"}
OTHERS = {
    "version": own_build()._replace(version="0.0.9", home="/there/aiokafka_lite"),
    "decoder": own_build()._replace(
        is_compiled=not own_build().is_compiled, home="/there/aiokafka_lite"
    ),
}


class Own(KafkaDataSource):
    """A user's own source."""


def the_source() -> object:
    return KafkaDataSource


def a_source() -> object:
    return KafkaDataSource(OPTIONS)


def a_reader() -> object:
    return KafkaBatchReader(OPTIONS, default_schema(include_headers=False))


@pytest.fixture(autouse=True)
def nothing_said() -> None:
    process.compare.cache_clear()


def loaded(dumped: bytes) -> object:
    return pickle.loads(dumped)  # noqa: S301 -- our own


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


def pickled_by(sender: Build, thing: object, pickler: ModuleType) -> bytes:
    with (
        mock.patch("aiokafka_lite.spark.readers.own_build", return_value=sender),
        mock.patch("aiokafka_lite.spark.source.own_build", return_value=sender),
    ):
        dumped: bytes = pickler.dumps(thing)
    return dumped


@pytest.mark.parametrize("pickler", [pickle, cloudpickle], ids=lambda each: each.__name__)
@pytest.mark.parametrize("make", [the_source, a_source, a_reader])
@pytest.mark.parametrize("what", OTHERS)
def test_what_differs_from_the_process_before_is_said_once(
    what: str,
    make: Callable[[], object],
    pickler: ModuleType,
    caplog: pytest.LogCaptureFixture,
) -> None:
    dumped = pickled_by(OTHERS[what], make(), pickler)
    for _ in range(2):
        loaded(dumped)
    (said,) = warnings_of(caplog)
    assert "another build of aiokafka_lite" in said
    assert str(OTHERS[what]) in said
    assert str(own_build()) in said


@pytest.mark.parametrize("make", [the_source, a_source, a_reader])
def test_nothing_is_said_where_all_run_the_same(
    make: Callable[[], object], caplog: pytest.LogCaptureFixture
) -> None:
    thing = make()
    found = loaded(cloudpickle.dumps(thing))  # type: ignore[no-untyped-call]
    assert type(found) is type(thing)
    assert but_for_plain_python("\n".join(warnings_of(caplog))) == ""


def test_a_worker_in_plain_python_says_so(caplog: pytest.LogCaptureFixture) -> None:
    plain = own_build()._replace(is_compiled=False)
    with mock.patch("aiokafka_lite.spark.process.own_build", return_value=plain):
        loaded(pickled_by(plain, KafkaDataSource, pickle))
    (said,) = warnings_of(caplog)
    assert "decoded by plain Python" in said


def test_a_source_of_the_users_own_is_pickled_by_its_name() -> None:
    for pickler in (pickle, cloudpickle):
        assert loaded(pickler.dumps(Own)) is Own
