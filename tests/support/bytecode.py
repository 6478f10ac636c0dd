"""Bytecode of a fresh clone: the workers of pytest-xdist compile it together, each file once.

All workers import the same modules at the same time. Without this, each of them compiles every
module of the package, and rewrites the assertions of every module of tests.
"""

from __future__ import annotations

import compileall
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from _pytest.assertion import rewrite  # pytest has no public function that only writes the file

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = ("aiokafka_lite", "benchmarks", "demos", "tests")


def sources() -> Sequence[Path]:
    """Return the files that the tests may import, always in the same order."""
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def is_rewritten(path: Path) -> bool:
    """Whether pytest imports the file with its assertions rewritten."""
    return path.name.startswith("test_") or path.name == "conftest.py"


def rewritten_file(path: Path) -> Path:
    """Return where pytest keeps the bytecode of a file whose assertions it rewrites."""
    return rewrite.get_cache_dir(path) / (path.stem + rewrite.PYC_TAIL)


def compile_files(paths: Sequence[Path], config: pytest.Config) -> None:
    """Write the bytecode of files that have none or an old one. A file with an error has none."""
    if sys.dont_write_bytecode:
        return
    for path in paths:
        if not is_rewritten(path):
            compileall.compile_file(path, quiet=2)
            continue
        target = rewritten_file(path)
        if target.exists() and target.stat().st_mtime >= path.stat().st_mtime:
            continue
        try:
            of_source, code = rewrite._rewrite_test(path, config)
        except SyntaxError:
            continue
        target.parent.mkdir(exist_ok=True)
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, of_source, target)


def compile_share(config: pytest.Config) -> None:
    """Compile this worker's share of the sources, if the run has all tests."""
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    name: str = config.workerinput["workerid"]  # type: ignore[attr-defined]  # by pytest-xdist
    count: int = config.workerinput["workercount"]  # type: ignore[attr-defined]
    compile_files(sources()[int(name.removeprefix("gw")) % count :: count], config)
