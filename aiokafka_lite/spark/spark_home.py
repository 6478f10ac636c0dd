"""Starts Spark's Python processes in a third of the time, and with the right Python.

Each of them imports PySpark from the archive `pyspark.zip` in SPARK_HOME, whose modules Python
compiles each time, in a second or two. So this module makes a SPARK_HOME of links to PySpark's own
files. Only the archive is replaced, by a folder that links to the installed package and its
bytecode.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final


def cached_folder(environment: Mapping[str, str], kind: str, content: str) -> Path:
    """Return the folder in the user's cache for this content, which need not exist yet."""
    base = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "~"), ".cache")
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    return Path(base).expanduser() / "aiokafka-lite" / f"{kind}-{digest}"


_ARCHIVE: Final = Path("python", "lib", "pyspark.zip")
# With these Spark finds YARN, and sends the archive to its executors.
_YARN: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")


def use_installed_pyspark(
    environment: MutableMapping[str, str] = os.environ, package: Path | None = None
) -> Path | None:
    """Make new sessions run Python processes without the archive.

    SPARK_HOME then names a folder of links in the user's cache. The call has no effect if
    SPARK_HOME is already set, if YARN is set up, on Windows, or if the folder cannot be written.

    Args:
        environment: Where SPARK_HOME is set, and HOME and XDG_CACHE_HOME are looked up.
        package: PySpark's folder, by default that of the installed one.

    Returns:
        The folder, or None if the call had no effect.
    """
    if os.name == "nt" or any(name in environment for name in ("SPARK_HOME", *_YARN)):
        return None
    package = package or _installed_package()
    if package is None or not (package / _ARCHIVE).is_file() or not (package / "jars").is_dir():
        return None
    links = _links(package)
    content = "\n".join(f"{link} {target}" for link, target in sorted(links.items()))
    home = cached_folder(environment, "spark", content)
    if not home.is_dir():
        try:
            _make(home, links)
        except OSError:
            return None
    environment["SPARK_HOME"] = str(home)
    return home


def use_drivers_python() -> None:
    """Make the workers of a local session run this Python, unless PYSPARK_PYTHON names one.

    Otherwise they run the `python3` of the PATH, which has no aiokafka_lite if a virtual
    environment is not activated. Registering the source calls this.
    """
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None or "PYSPARK_PYTHON" in os.environ:
        return
    if (context.master or "").startswith("local"):
        context.pythonExec = sys.executable


def _installed_package() -> Path | None:
    found = importlib.util.find_spec("pyspark")
    return None if found is None or found.origin is None else Path(found.origin).parent


def _links(package: Path) -> dict[Path, Path]:
    links = {
        Path(each.name): each
        for each in package.iterdir()
        if each.is_dir()
        and each.name not in ("python", "__pycache__")
        and not (each / "__init__.py").exists()
    }
    archive = package / _ARCHIVE
    links |= {
        each.relative_to(package): each for each in archive.parent.iterdir() if each != archive
    }
    links[_ARCHIVE / package.name] = package
    return links


def _make(home: Path, links: Mapping[Path, Path]) -> None:
    fresh = home.with_name(f"{home.name}.{os.getpid()}")
    try:
        for link, target in links.items():
            (fresh / link).parent.mkdir(parents=True, exist_ok=True)
            (fresh / link).symlink_to(target)
        fresh.rename(home)  # atomically, because another process may start Spark now
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)
        if not home.is_dir():  # otherwise another process was faster
            raise
