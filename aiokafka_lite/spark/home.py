"""Let Spark's Python processes start in a third of the time, and run the right Python.

Whatever Spark starts in Python has `pyspark.zip` first on its path: the workers of a session, and
for each streaming query a process that plans it. What Python imports from an archive it compiles
each time, and of PySpark that takes a second or two. Spark looks for the archive in its home, so
it is given one that is PySpark's own by links, but for the archive: a folder has its name, and
leads to the package that pip has installed, whose bytecode is there.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final

from aiokafka_lite.spark.cache import cached_folder

_ARCHIVE: Final = Path("python", "lib", "pyspark.zip")
# By which Spark finds YARN, whose executors are sent the archive.
_YARN: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")


def use_installed_pyspark(
    environment: MutableMapping[str, str] = os.environ, package: Path | None = None
) -> Path | None:
    """Let the sessions that are made from now on start Python processes without the archive.

    SPARK_HOME then names a folder of links in the user's cache. Nothing is done where Spark is
    another than the installed PySpark's (SPARK_HOME is set), where YARN is set up, on Windows, and
    where the folder cannot be written.

    Args:
        environment: Where SPARK_HOME is set, and HOME and XDG_CACHE_HOME are looked up.
        package: PySpark's folder; by default that of the one which would be imported.

    Returns:
        The folder, None where nothing was done.
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
    """Let the workers of a local session run this Python, unless PYSPARK_PYTHON names one.

    Otherwise they run the `python3` of the PATH, which in a virtual environment that is not
    activated has no aiokafka_lite. Registering the source does this. Of a session on other machines
    nothing is known here, and nothing is done.
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
    """Return what the folder's links lead to, by their places in it."""
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
        fresh.rename(home)  # as a whole, for whoever starts Spark at the same time
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)
        if not home.is_dir():  # or else somebody was faster
            raise
