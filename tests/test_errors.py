"""The error hierarchy: Kafka's codes, aiokafka's names."""

from __future__ import annotations

import inspect
import pickle
import traceback
from pathlib import Path

import aiokafka.errors
import pytest

from aiokafka_lite import errors
from aiokafka_lite.structs import TopicPartition
from tests.support.java import JavaTools

ERRORS_PROBE = """
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.protocol.Errors;
public class Probe {
    public static void main(String[] arguments) {
        for (Errors e : Errors.values()) {
            Exception x = e.exception();
            System.out.println(e.code() + " " + e.name() + " " + (x instanceof RetriableException)
                + " " + (x instanceof InvalidMetadataException));
        }
    }
}
"""


def aiokafka_errors() -> dict[str, type[Exception]]:
    return {
        name: value
        for name, value in vars(aiokafka.errors).items()
        if inspect.isclass(value) and issubclass(value, Exception)
    }


@pytest.mark.java
async def test_codes_names_and_flags_are_kafkas(java_tools: JavaTools, tmp_path: Path) -> None:
    source = tmp_path / "Probe.java"
    source.write_text(ERRORS_PROBE)
    done = await java_tools.run(str(source))
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) > 130, done.stderr
    for code, name, retriable, invalid_metadata in lines:
        error = errors.for_code(int(code))
        assert (error.errno, error.message) == (int(code), name)
        assert error.retriable is (retriable == "true"), name
        assert error.invalid_metadata is (invalid_metadata == "true"), name
        assert error.description.endswith("."), name


def test_every_name_of_aiokafka_is_there_with_its_code() -> None:
    for name, theirs in aiokafka_errors().items():
        ours = getattr(errors, name)
        assert name in errors.__all__
        assert issubclass(ours, errors.KafkaError) == issubclass(theirs, aiokafka.errors.KafkaError)
        if issubclass(theirs, aiokafka.errors.BrokerResponseError):
            assert ours.errno == getattr(theirs, "errno", ours.errno), name


def test_public_errors_are_shown_under_the_path_that_programs_import() -> None:
    classes = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    assert classes | {"for_code"} == set(errors.__all__)
    for name in classes:
        assert getattr(errors, name).__module__ == "aiokafka_lite.errors", name
    lines = traceback.format_exception_only(errors.CommitFailedError("late"))
    assert lines[0].startswith("aiokafka_lite.errors.CommitFailedError: ")


def test_unknown_code_is_unknown_error() -> None:
    assert errors.for_code(29_999) is errors.UnknownError
    assert errors.for_code(3) is errors.UnknownTopicOrPartitionError


def test_error_prints_as_aiokafkas_does() -> None:
    for name in ("KafkaError", "UnknownTopicOrPartitionError", "IllegalStateError"):
        ours, theirs = getattr(errors, name), getattr(aiokafka.errors, name)
        assert str(ours("x")) == str(theirs("x"))
        assert str(ours()) == str(theirs())


def test_error_carries_its_place() -> None:
    error = errors.CorruptRecordException("bad").at(TopicPartition("t", 1), 7)
    assert (error.tp, error.offset) == (("t", 1), 7)
    assert errors.CorruptRecordException("bad").tp is None
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 -- our own bytes
    assert (again.tp, again.offset, str(again)) == (error.tp, error.offset, str(error))


def test_code_declared_twice_is_refused() -> None:
    with pytest.raises(TypeError, match="twice"):

        class Again(errors.BrokerResponseError, code=3, name="AGAIN"):
            """Not allowed."""


def test_users_subclass_keeps_its_parents_code() -> None:
    class Mine(errors.NotCoordinatorError):
        """A user's own."""

    assert Mine.errno == 16
    assert errors.for_code(16) is errors.NotCoordinatorError


def test_timeout_and_stopped_errors_are_what_aiokafka_makes_them() -> None:
    assert not issubclass(errors.ConsumerStoppedError, errors.KafkaError)
    assert not issubclass(errors.IllegalOperation, errors.KafkaError)
    assert issubclass(errors.WrongLoopError, AssertionError)
