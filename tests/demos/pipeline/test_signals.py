"""What a signal does to the command, before there is a pipeline and within."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import cast

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException, PySparkRuntimeError

from aiokafka_lite.cli.problems import Interrupted
from demos.parquet import Pipeline
from demos.pipeline.job import Stopping, spark_errors
from demos.pipeline.problems import QueryError


class RunningPipeline:
    """Knows how often it was told to stop."""

    def __init__(self) -> None:
        self.stops = 0

    def stop(self) -> None:
        self.stops += 1


@pytest.fixture(autouse=True)
def usual_ctrl_c() -> Iterator[None]:
    """What a shell leaves to a program in the foreground; in the background SIGINT is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def pipeline() -> RunningPipeline:
    return RunningPipeline()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_spark_starts_is_heeded_when_it_has(
    number: signal.Signals, code: int, pipeline: RunningPipeline
) -> None:
    said: list[str] = []
    before = signal.getsignal(number)
    with Stopping(said.append).on_signals() as stopping:
        signal.raise_signal(number)
        assert said == [
            "Stopping as soon as Spark has started (a second signal stops the pipeline immediately)"
        ]
        with (
            pytest.raises(Interrupted) as raised,
            stopping.behind_a_batch_of(cast("Pipeline", pipeline)),
        ):
            pytest.fail("the pipeline began")
    assert raised.value.exit_code == code
    assert signal.getsignal(number) == before


def test_a_signal_within_a_batch_stops_the_pipeline_behind_it(pipeline: RunningPipeline) -> None:
    said: list[str] = []
    with Stopping(said.append).on_signals() as stopping:
        with stopping.behind_a_batch_of(cast("Pipeline", pipeline)):
            signal.raise_signal(signal.SIGTERM)
            assert pipeline.stops == 1
            assert said == [
                "Stopping after this batch (a second signal stops the pipeline immediately)"
            ]
        with pytest.raises(Interrupted, match="SIGTERM"):
            stopping.raise_if_received()


@pytest.mark.parametrize(
    "error",
    [
        Py4JNetworkError("Answer from Java side is empty"),
        ConnectionRefusedError(111, "Connection refused"),
        PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={}),
    ],
)
def test_a_java_that_is_gone_is_the_signals_doing_or_told_of(error: Exception) -> None:
    with Stopping(lambda _: None).on_signals() as stopping:
        with pytest.raises(QueryError), spark_errors(stopping):
            raise error
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Interrupted, match="SIGTERM"), spark_errors(stopping):
            raise error
        # But a query that fails while it is stopped has failed.
        with pytest.raises(QueryError, match="not so"), spark_errors(stopping):
            raise PySparkException("not so")


def test_a_second_ctrl_c_is_not_waited_for(pipeline: RunningPipeline) -> None:
    with Stopping(lambda _: None).on_signals() as stopping:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert pipeline.stops == 0
        with pytest.raises(Interrupted):
            stopping.raise_if_received()
