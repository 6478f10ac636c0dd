"""What runs elsewhere is what `make` runs here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
WORKFLOWS = {
    file.stem: file.read_text(encoding="utf-8") for file in (ROOT / ".github/workflows").iterdir()
}

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def script(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]), encoding="utf-8")
    path.chmod(0o755)
    return path


def test_quick_tests_run_on_every_python_that_is_claimed() -> None:
    claimed = re.findall(r"Python :: (3\.\d+)", PROJECT)
    listed = re.search(r"python: \[(.*)\]", WORKFLOWS["checks"])
    assert listed is not None
    assert set(claimed) <= set(re.findall(r"3\.\d+", listed[1]))


def test_quick_tests_run_as_make_runs_them() -> None:
    recipe = re.search(
        r"\$\(PYTEST\) (-p tests\.support\.fast) .*", (ROOT / "Makefile").read_text()
    )
    assert recipe is not None
    assert f"python -m pytest {recipe[1]}" in WORKFLOWS["checks"]


def test_hooks_have_the_versions_of_the_checks() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    needed = set(re.findall(r'"((?:ruff|codespell)[^"]*)"', hooks))
    assert needed == set(re.findall(r'^ +"((?:ruff|codespell)[^"]*)"', PROJECT, re.MULTILINE))


def test_a_night_without_kafka_fails() -> None:
    assert 'REQUIRE_KAFKA: "1"' in WORKFLOWS["nightly"]


@needs_make
def test_an_environment_that_could_not_be_made_is_made_by_the_next_call(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "setup.py"):
        (tmp_path / name).touch()
    (tmp_path / "aiokafka_lite").mkdir()
    # As Debian's without the package python3-venv: it leaves an environment without pip.
    python = script(
        tmp_path / "python", '[ "$2" = venv ] || exit 0',
        "mkdir -p .venv/bin && touch .venv/bin/python && exit 1",
    )  # fmt: skip
    for _ in range(2):
        command = ["make", "test-fast", f"PYTHON={python}"]
        done = subprocess.run(
            command, cwd=tmp_path, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True
        )
        assert done.returncode != 0
        assert "-m venv .venv" in done.stdout
        assert "pip" not in done.stderr


@needs_make
def test_the_matrix_passes_arguments_on_unchanged(tmp_path: Path) -> None:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "matrix", tmp_path / ".ci")
    script(tmp_path / f"python{version}")
    (tmp_path / "Makefile").write_text("test:\n\t@printf '<%s>' $(ARGS)\n")
    # Not TARGET, which `make test-matrix` may have set for this run.
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        [tmp_path / ".ci" / "matrix", "-k", "a or b"],
        env={"PATH": path, "HOME": str(tmp_path), "VERSIONS": version},
        capture_output=True, text=True,
    )  # fmt: skip
    assert "<-k><a or b>" in done.stdout
    assert done.stdout.endswith(f"passed: {version}; failed: none\n")
