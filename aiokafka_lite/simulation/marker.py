"""Runs the tests that are marked with `kafka_sim`, for the plugin of pytest."""

from __future__ import annotations

import inspect
import os
import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from aiokafka_lite.simulation import trial
from aiokafka_lite.simulation.kafka import Kafka
from aiokafka_lite.simulation.trial import Options, TrialOutcome

SEEDS: Final = 100
NAMES: Final = ("seeds", "nodes", "faults", "faults_s", "settle_s")
# The least time in which faults can begin and end.
LEAST_S: Final = 3.0


def run_item(
    item: pytest.Function, function: Callable[..., Any], arguments: dict[str, Any]
) -> None:
    """Run a marked test with its seeds, up to the first that fails."""
    __tracebackhide__ = True
    marker = item.get_closest_marker("kafka_sim")
    if marker is None:
        pytest.fail("the test has lost its marker kafka_sim", pytrace=False)
    count, options = _options(item, marker)
    if "kafka" not in inspect.signature(function).parameters:
        pytest.fail("a test with @pytest.mark.kafka_sim has an argument kafka", pytrace=False)

    def test(kafka: Kafka) -> Any:
        return function(**{**arguments, "kafka": kafka})

    replayed: int | None = item.config.getoption("--kafka-sim-replay")
    for seed in range(1, count + 1) if replayed is None else (replayed,):
        with trial.quiet(is_logged="caplog" in item.fixturenames):
            outcome = trial.run(test, options, trial.draw(seed, options))
        if outcome.error is None:
            continue
        if isinstance(outcome.error, pytest.skip.Exception | KeyboardInterrupt | SystemExit):
            raise outcome.error
        outcome.error.add_note(_report(item, test, options, outcome))  # type: ignore[attr-defined]
        raise outcome.error


def _report(item: pytest.Function, test: trial.Test, options: Options, failed: TrialOutcome) -> str:
    """Describe a failure: its seed, how to replay it, the shrunk schedule and the timeline."""
    seed, total = failed.draw.seed, len(failed.draw.faults)
    with trial.quiet(is_logged=False):
        best = trial.shrink(test, options, failed)
    with trial.quiet(is_logged=True):
        traced = trial.run(test, options, best.draw, is_traced=True)
    page = _folder(item.config) / f"{_file_name(item.nodeid)}-{seed}.html"
    page.write_text(traced.timeline, encoding="utf-8")
    hash_seed = os.environ.get("PYTHONHASHSEED")
    prefix = f"PYTHONHASHSEED={hash_seed} " if hash_seed else ""
    lines = [
        "",
        f"kafka_sim: seed {seed} fails ({failed.virtual_s:.1f} virtual seconds)",
        f"replay:    {prefix}pytest {shlex.quote(item.nodeid)} --kafka-sim-replay={seed}",
        f"timeline:  {page}",
        f"schedule:  {len(best.draw.faults)} of {total} faults are enough",
        *(f"    {line.strip()}" for line in best.draw.text().splitlines()),
    ]
    if hash_seed in (None, "random"):
        lines.append(
            "If the replay passes, set PYTHONHASHSEED=0 for both: sets have another order."
        )
    if traced.kind() != failed.kind():
        lines += [
            "A second run with this schedule does not fail. The test depends on something that its",
            "seed does not decide, such as the order of sets (set PYTHONHASHSEED=0) or the date.",
        ]
    return "\n".join(lines)


def _folder(config: pytest.Config) -> Path:
    cache = getattr(config, "cache", None)
    if cache is None:
        return Path(tempfile.mkdtemp(prefix="kafka_sim-"))
    folder: Path = cache.mkdir("kafka_sim")
    return folder


def _file_name(nodeid: str) -> str:
    name = nodeid.replace("::", "-")
    return "".join(char if char.isalnum() or char in "-_." else "_" for char in name)[-150:]


def _options(item: pytest.Function, marker: pytest.Mark) -> tuple[int, Options]:
    given = dict(marker.kwargs)
    if marker.args:
        _refuse(f"takes options by name only, but this test has {marker.args[0]!r}")
    if unknown := [name for name in given if name not in NAMES]:
        _refuse(f"has no option {unknown[0]!r} (its options are {', '.join(NAMES)})")
    seeds = item.config.getoption("--kafka-sim-seeds") or given.pop("seeds", SEEDS)
    given.pop("seeds", None)
    try:
        names = trial.fault_names(given.pop("faults", "all"))
    except ValueError as error:
        _refuse(f"takes other faults: {error}")
    options = Options(faults=names, **given)
    for name, value, least in (
        ("seeds", seeds, 1),
        ("nodes", options.nodes, 1),
        ("faults_s", options.faults_s, LEAST_S),
        ("settle_s", options.settle_s, 1),
    ):
        if isinstance(value, bool) or not isinstance(value, int | float) or value < least:
            _refuse(f"takes a number of at least {least:g} for {name!r}, not {value!r}")
    return int(seeds), options


def _refuse(rule: str) -> Any:
    pytest.fail(f"@pytest.mark.kafka_sim {rule}", pytrace=False)
