"""Wheels and source distributions, built of a copy of this checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PARTS: Final = ("CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py")
TREES: Final = ("aiokafka_lite", "demos", "pyspark_aiokafka_lite", "tests")


def copied_checkout(copy: Path) -> Path:
    """Copy what releases are built of, without what was built of it; return the copy."""
    copy.mkdir()
    for name in PARTS:
        shutil.copy(ROOT / name, copy)
    for name in TREES:
        ignored = shutil.ignore_patterns("*.so", "*.c", "__pycache__")
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    return copy


def build(checkout: Path, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run one of setup.py's commands; distributions are written to `dist`."""
    to_dist = ["--dist-dir", "dist"] if "dist" in command else []
    return subprocess.run(
        [sys.executable, "setup.py", "-q", *command.split(), *to_dist],
        cwd=checkout,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def built(checkout: Path, command: str, **environment: str) -> Path:
    """Build one distribution and return it."""
    done = build(checkout, command, **environment)
    assert done.returncode == 0, done.stderr
    (distribution,) = (checkout / "dist").iterdir()
    return distribution
