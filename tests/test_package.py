"""What importing aiokafka_lite brings, and what it must not."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import aiokafka_lite
from aiokafka_lite import records

ROOT = Path(__file__).parent.parent
IMPORT_ROUNDS = 15

# What an import may load beyond `import asyncio`: each costs every program that uses us.
BEYOND_ASYNCIO = {"async_timeout", "bisect", "copy", "cython_runtime", "random", "zlib"}
# Of our own, what only some consumers need: they import it when they do.
NOT_AT_IMPORT = (
    "aiokafka_lite._record_py",
    "aiokafka_lite.bad_records",
    "aiokafka_lite.broker",
    "aiokafka_lite.consumer.delivery.application",
    "aiokafka_lite.consumer.group.commits",
    "aiokafka_lite.consumer.delivery.deserialising",
    "aiokafka_lite.consumer.monitoring.events",
    "aiokafka_lite.consumer.fetching.fetcher",
    "aiokafka_lite.consumer.group",
    "aiokafka_lite.consumer.positions.resolver",
    "aiokafka_lite.consumer.running",
    "aiokafka_lite.deserializers",
    "aiokafka_lite.records.behind",
    "aiokafka_lite.records.build",
    "aiokafka_lite.records.compression",
)


def run_python(code: str, *options: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    return done.stdout + done.stderr


# Without the extension a record is a dataclass.
compiled_only = pytest.mark.skipif(not records.COMPILED, reason="the extension is not built")


@compiled_only
def test_import_loads_little_beyond_asyncio() -> None:
    code = (
        "import asyncio, sys\n"
        "before = set(sys.modules)\n"
        "from aiokafka_lite import AIOKafkaConsumer\n"
        "print(*set(sys.modules) - before)"
    )
    loaded = set(run_python(code).split())
    assert "aiokafka_lite.consumer.consumer" in loaded
    assert not {module for module in loaded if module.startswith(NOT_AT_IMPORT)}
    packages = {module.partition(".")[0] for module in loaded if not module.startswith("_")}
    assert packages <= {"aiokafka_lite", *BEYOND_ASYNCIO}


def test_package_alone_loads_nothing_but_its_version() -> None:
    code = "import sys, aiokafka_lite; print(*(n for n in sys.modules if n.startswith('aiokafka')))"
    assert set(run_python(code).split()) == {"aiokafka_lite", "aiokafka_lite._version"}
    assert "asyncio" not in run_python("import sys, aiokafka_lite; print(*sys.modules)").split()


def test_modules_are_attributes_as_in_aiokafka() -> None:
    code = (
        "import aiokafka_lite as aiokafka; "
        "print(aiokafka.errors.KafkaError.__name__, aiokafka.structs.TopicPartition.__name__, "
        "aiokafka.abc.ConsumerRebalanceListener.__name__, aiokafka.helpers.__name__, "
        "aiokafka.consumer.AIOKafkaConsumer.__name__)"
    )
    names = run_python(code).split()
    assert names == [
        "KafkaError", "TopicPartition", "ConsumerRebalanceListener", "aiokafka_lite.helpers",
        "AIOKafkaConsumer",
    ]  # fmt: skip


def test_import_is_silent_and_warns_of_nothing() -> None:
    assert run_python("from aiokafka_lite import *", "-W", "error") == ""


def import_costs_s(packages: Sequence[str], cache: Path) -> list[float]:
    """Return the least CPU time that the import of each took in several processes.

    They take turns, so that a busy machine is busy for all; compiled modules are kept in
    `cache`, so that none pays for compiling its source.
    """
    environment = {"PYTHONPYCACHEPREFIX": str(cache), "PYTHONDONTWRITEBYTECODE": ""}
    code = "from time import process_time as t; start = t(); import {}; print(t() - start)"
    costs: dict[str, list[float]] = {package: [] for package in packages}
    for package in [*packages] * IMPORT_ROUNDS:
        costs[package].append(float(run_python(code.format(package), **environment)))
    return [min(costs[package]) for package in packages]


@compiled_only
def test_import_takes_less_than_aiokafkas(tmp_path: Path) -> None:
    ours, theirs = import_costs_s(["aiokafka_lite.consumer", "aiokafka"], tmp_path)
    assert ours <= 0.95 * theirs  # 0.77 to 0.83 measured (Python 3.11, busy machine)


PACKAGES = [
    "aiokafka_lite", "aiokafka_lite.abc", "aiokafka_lite.bad_records", "aiokafka_lite.broker",
    "aiokafka_lite.client", "aiokafka_lite.consumer", "aiokafka_lite.consumer.group",
    "aiokafka_lite.coordinator.assignors", "aiokafka_lite.deserializers", "aiokafka_lite.errors",
    "aiokafka_lite.events", "aiokafka_lite.helpers", "aiokafka_lite.records",
    "aiokafka_lite.structs",
]  # fmt: skip


@pytest.mark.parametrize("name", PACKAGES)
def test_every_name_is_there_for_star_imports_and_dir(name: str) -> None:
    module = importlib.import_module(name)
    namespace: dict[str, object] = {}
    exec(f"from {name} import *", namespace)  # noqa: S102 -- of our own names
    assert set(getattr(module, "__all__", ())) <= namespace.keys() & set(dir(module))
    assert not hasattr(module, "no_such_name")


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
