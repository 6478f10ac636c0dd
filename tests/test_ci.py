"""What runs elsewhere is what `make` runs here."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
WORKFLOWS = {
    file.stem: file.read_text(encoding="utf-8") for file in (ROOT / ".github/workflows").iterdir()
}


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
