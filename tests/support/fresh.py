"""An environment in which only what a page says to install can be imported.

Made of links to the distributions that are installed here, in a tenth of a second and without a
network; what `pip install` brings into a new environment differs in versions only.
"""

from __future__ import annotations

import os
import subprocess
import venv
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import aiokafka_lite

HOME: Final = Path(aiokafka_lite.__file__).parent
OURS: Final = "aiokafka-lite"
# Commands are not linked: their first line names the interpreter of the environment they are of.
COMMAND: Final = """\
#!{python}
import sys
from {point.module} import {point.attr}
sys.exit({point.attr}())
"""


class Fresh:
    """A virtual environment of its own.

    Args:
        path: Where to make it.
        with_pip: Whether it can install something itself, which takes three seconds.
    """

    def __init__(self, path: Path, *, with_pip: bool = False) -> None:
        self.path = path
        venv.create(path, symlinks=True, with_pip=with_pip)
        self.python = path / "bin" / "python"
        (self._packages,) = path.glob("lib/python*/site-packages")

    def link(self, requirements: Iterable[str]) -> None:
        """Make these distributions and what they need importable; ours is the one under test."""
        for found in _with_dependencies(requirements):
            names = {Path(file).parts[0] for file in found.files or ()}
            if _name(found) == OURS:
                self._link(HOME)
                # What was found may be the tree's own metadata, where it was built in place.
                names = {name for name in names if name.endswith((".dist-info", ".egg-info"))}
            for name in names - {"..", "__pycache__"}:
                self._link(Path(str(found.locate_file(name))))
            for point in found.entry_points.select(group="console_scripts"):
                script = self.path / "bin" / point.name
                script.write_text(COMMAND.format(python=self.python, point=point))
                script.chmod(0o755)

    def _link(self, source: Path) -> None:
        target = self._packages / source.name
        if not target.exists():  # some share a folder
            target.symlink_to(source)

    def run(self, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run one of the environment's programs, and nothing of what is set for the tests here."""
        theirs = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "PYTEST", "VIRTUAL_ENV", "COVERAGE"))
        }
        return subprocess.run(
            [str(self.path / "bin" / command[0]), *command[1:]],
            cwd=cwd,
            env=theirs,
            capture_output=True,
            text=True,
            check=False,
        )


def _with_dependencies(requirements: Iterable[str]) -> Iterator[Distribution]:
    wanted = [Requirement(each) for each in requirements]
    seen: set[tuple[str, str]] = set()
    for requirement in wanted:
        found = distribution(requirement.name)
        extras = ("", *requirement.extras)
        new = [extra for extra in extras if (_name(found), extra) not in seen]
        seen.update((_name(found), extra) for extra in new)
        if "" in new:
            yield found
        for needed in map(Requirement, (found.requires or ()) if new else ()):
            marker = needed.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in new):
                wanted.append(needed)


def _name(found: Distribution) -> str:
    return canonicalize_name(found.metadata["Name"])
