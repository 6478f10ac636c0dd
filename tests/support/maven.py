"""Jars for tests and benchmarks, fetched by Maven once and kept in the user's cache folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


class JarsUnavailableError(Exception):
    """Jars cannot be had here; the message says what to install."""


@dataclass(frozen=True, slots=True)
class Jars:
    """A set of jars, with all that they need in turn.

    Attributes:
        folder: Its folder in the cache, which names the versions as well.
        title: What it is, and how large.
        pom: The project file whose dependencies they are.
    """

    folder: str
    title: str
    pom: str

    def fetch(self) -> Path:
        """Return the folder that holds them, fetching them unless they are there.

        Raises:
            JarsUnavailableError: They are not cached, and `mvn` is missing or fails.
        """
        home = cache_dir() / self.folder
        libs = home / "libs"
        if libs.is_dir():
            return libs
        import fcntl  # late: Windows has none, and the harness imports this module

        maven = shutil.which("mvn")
        if maven is None:
            raise JarsUnavailableError(
                "no mvn on the PATH: install Maven (Debian: apt-get install maven) to fetch "
                f"{self.title}"
            )
        home.mkdir(parents=True, exist_ok=True)
        with (home / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two runs at once fetch once
            if not libs.is_dir():
                self._copy(maven, home, libs)
        return libs

    def _copy(self, maven: str, home: Path, libs: Path) -> None:
        print(f"fetching {self.title} through Maven, once …", file=sys.stderr)
        (home / "pom.xml").write_text(self.pom)
        fresh = home / "libs.new"
        shutil.rmtree(fresh, ignore_errors=True)
        done = subprocess.run(
            [maven, "-q", "-B", "-f", str(home / "pom.xml"), "dependency:copy-dependencies",
             f"-DoutputDirectory={fresh}"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            lines = (done.stdout + done.stderr).strip().splitlines()
            raise JarsUnavailableError(f"mvn could not fetch {self.title}: " + " ".join(lines[-3:]))
        fresh.rename(libs)


def cache_dir() -> Path:
    """Where jars are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "aiokafka-lite"
