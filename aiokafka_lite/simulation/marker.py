"""Runs the tests that are marked with `kafka_sim`, for the plugin of pytest."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import math
import os
import shlex
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest

from aiokafka_lite.simulation import trial
from aiokafka_lite.simulation.kafka import Kafka
from aiokafka_lite.simulation.trial import Options, TrialOutcome

SEEDS: Final = 100
NAMES: Final = ("seeds", "nodes", "faults", "faults_s", "settle_s")
# The least time in which faults can begin and end.
LEAST_S: Final = 3.0
# Errors of the test that are no failure.
OUTCOMES: Final = (
    pytest.skip.Exception, pytest.xfail.Exception, pytest.exit.Exception, unittest.SkipTest,
)  # fmt: skip


def run_item(
    item: pytest.Function, function: Callable[..., Any], arguments: dict[str, Any]
) -> None:
    """Run a marked test with its seeds, up to the first that fails."""
    __tracebackhide__ = True
    count, options = _options(item)
    if "kafka" not in inspect.signature(function).parameters:
        pytest.fail("a test with @pytest.mark.kafka_sim has an argument kafka", pytrace=False)

    def test(kafka: Kafka) -> Any:
        return function(**{**arguments, "kafka": kafka})

    replayed: int | None = item.config.getoption("--kafka-sim-replay")
    for seed in range(1, count + 1) if replayed is None else (replayed,):
        with trial.quiet(is_logged="caplog" in item.fixturenames):
            try:
                outcome = trial.run(test, options, trial.draw(seed, options))
            except BaseException as error:
                _add(error, f"\nkafka_sim: seed {seed} was running\n{_replay(item, seed)}")
                raise
        if outcome.error is None:
            continue
        if not isinstance(outcome.error, OUTCOMES):
            _add(outcome.error, _report(item, test, options, outcome))
        raise outcome.error


def _add(error: BaseException, note: str) -> None:
    if isinstance(error, pytest.fail.Exception) and not error.pytrace:
        error.msg = f"{error.msg}\n{note}"  # pytest shows no notes of such an error
    else:
        error.add_note(note)  # type: ignore[attr-defined]


def _replay(item: pytest.Function, seed: int) -> str:
    hash_seed = os.environ.get("PYTHONHASHSEED")
    prefix = f"PYTHONHASHSEED={hash_seed} " if hash_seed else ""
    path = os.path.relpath(item.path, item.config.invocation_params.dir)
    node_id = shlex.quote(f"{path}::{item.nodeid.partition('::')[2]}")
    return f"replay:    {prefix}pytest {node_id} --kafka-sim-replay={seed}"


def _report(item: pytest.Function, test: trial.Test, options: Options, failed: TrialOutcome) -> str:
    """Describe a failure: its seed, how to replay it, the shrunk schedule and the timeline."""
    seed, total = failed.draw.seed, len(failed.draw.faults)
    lines = [
        "",
        f"kafka_sim: seed {seed} fails ({failed.virtual_s:.1f} virtual seconds)",
        _replay(item, seed),
    ]
    try:
        with trial.quiet(is_logged=False):
            best = trial.shrink(test, options, failed)
        with trial.quiet(is_logged=True):
            traced = trial.run(test, options, best.draw, is_traced=True)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 — such as a time limit of the test
        return "\n".join([*lines, f"Further runs were interrupted: {error}"])
    page = _write_page(item.config, f"{_file_name(item.nodeid)}-{seed}.html", traced.timeline)
    lines += [
        f"timeline:  {page}",
        f"schedule:  {len(best.draw.faults)} of {total} faults are enough",
        *(f"    {line.strip()}" for line in best.draw.text().splitlines()),
    ]
    if os.environ.get("PYTHONHASHSEED", "random") == "random":
        lines.append(
            "If the replay passes, set PYTHONHASHSEED=0 for both: sets have another order."
        )
    if traced.kind() != failed.kind():
        lines += [
            "A second run with this schedule does not fail. The test depends on something that its",
            "seed does not decide, such as the order of sets (set PYTHONHASHSEED=0) or the date.",
        ]
    return "\n".join(lines)


def _write_page(config: pytest.Config, name: str, text: str) -> Path:
    """Write a page into pytest's cache; or into a temporary folder without a writable cache."""
    cache = getattr(config, "cache", None)
    if cache is not None:
        with contextlib.suppress(OSError):
            page: Path = cache.mkdir("kafka_sim") / name
            page.write_text(text, encoding="utf-8")
            return page
    page = Path(tempfile.mkdtemp(prefix="kafka_sim-")) / name
    page.write_text(text, encoding="utf-8")
    return page


def _file_name(nodeid: str) -> str:
    """Return a name that no other test has, also if characters are replaced or left out."""
    given = nodeid.replace("::", "-")
    name = "".join(char if char.isalnum() or char in "-_." else "_" for char in given)[-150:]
    return name if name == given else f"{name}-{hashlib.sha256(nodeid.encode()).hexdigest()[:8]}"


def _options(item: pytest.Function) -> tuple[int, Options]:
    """Return the number of seeds, and the options: of each, the marker closest to the test wins."""
    given: dict[str, Any] = {}
    for marker in item.iter_markers("kafka_sim"):
        if marker.args:
            _refuse(f"takes options by name only, but this test has {marker.args[0]!r}")
        if unknown := [name for name in marker.kwargs if name not in NAMES]:
            _refuse(f"has no option {unknown[0]!r} (its options are {', '.join(NAMES)})")
        given = {**marker.kwargs, **given}
    seeds, faults = given.pop("seeds", SEEDS), given.pop("faults", "all")
    if (wanted := item.config.getoption("--kafka-sim-seeds")) is not None:
        seeds = wanted
    if not isinstance(faults, str | list | tuple | set | frozenset):
        _refuse(f"takes names of faults, such as ['crash'], not {faults!r}")
    try:
        options = Options(faults=trial.fault_names(faults), **given)
    except ValueError as error:
        _refuse(f"takes other faults: {error}")
    limits: tuple[tuple[str, Any, type, float], ...] = (
        ("seeds", seeds, int, 1),
        ("nodes", options.nodes, int, 1),
        ("faults_s", options.faults_s, float, LEAST_S),
        ("settle_s", options.settle_s, float, 1),
    )
    for name, value, kind, least in limits:
        is_right = isinstance(value, int | kind) and not isinstance(value, bool)
        if not is_right or not least <= value < math.inf:
            number = "whole number" if kind is int else "number"
            _refuse(f"takes a {number} of at least {least:g} for {name!r}, not {value!r}")
    return seeds, options


def _refuse(rule: str) -> NoReturn:
    pytest.fail(f"@pytest.mark.kafka_sim {rule}", pytrace=False)
