"""What `import aiokafka_lite` brings, and what it must not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import aiokafka_lite

ROOT = Path(__file__).parent.parent
IMPORT_ROUNDS = 20
NOISE = 1.15  # by which two such measurements of one package differed on a busy machine


def run_python(code: str, *options: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    return done.stdout + done.stderr


def test_import_loads_no_extra() -> None:
    loaded = run_python("import aiokafka_lite, sys; print(*sys.modules)").split()
    assert "aiokafka_lite.consumer.consumer" in loaded
    extras = {"aiohttp", "pyarrow", "uvloop", "numpy", "matplotlib", "rich", "pyspark"}
    assert not extras & set(loaded)


def test_import_is_silent_and_warns_of_nothing() -> None:
    assert run_python("import aiokafka_lite", "-W", "error") == ""


def import_costs_us(packages: Sequence[str], cache: Path) -> list[int]:
    """Least of several runs: microseconds that the interpreter itself counts for an import.

    Runs take turns, so that a busy machine is busy for all; compiled modules are kept in
    `cache`, so that none pays for compiling its source.
    """
    environment = {"PYTHONPYCACHEPREFIX": str(cache), "PYTHONDONTWRITEBYTECODE": ""}
    costs: dict[str, list[int]] = {package: [] for package in packages}
    for package in [*packages] * IMPORT_ROUNDS:
        output = run_python(f"import {package}", "-X", "importtime", **environment)
        found = re.search(rf"\|\s*(\d+) \| {package}\n", output)
        assert found is not None
        costs[package].append(int(found[1]))
    return [min(costs[package]) for package in packages]


@pytest.mark.slow  # a comparison of times: for a machine that does nothing else
def test_import_takes_no_longer_than_aiokafkas(tmp_path: Path) -> None:
    ours, theirs = import_costs_us(["aiokafka_lite", "aiokafka"], tmp_path)
    assert ours <= theirs * NOISE


def test_public_names_are_aiokafkas_consumer_names() -> None:
    for name in (
        "AIOKafkaConsumer", "ConsumerRebalanceListener", "ConsumerRecord", "ConsumerStoppedError",
        "IllegalOperation", "OffsetAndMetadata", "OffsetAndTimestamp", "TopicPartition",
    ):  # fmt: skip
        assert name in aiokafka_lite.__all__
        assert getattr(aiokafka_lite, name).__name__ == name


def test_version_is_the_projects() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{aiokafka_lite.__version__}"' in text


def test_every_python_claimed_is_one_that_was_tested() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    claimed = re.findall(r"Python :: (3\.\d+)", text)
    readme = (ROOT / "README.md").read_text()
    assert claimed == ["3.10", "3.11", "3.12", "3.13"]
    assert "3.10 to 3.13" in readme
