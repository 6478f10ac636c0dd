"""For tests of what is compiled, and of what is not: code that makes an extension look missing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import aiokafka_lite
from aiokafka_lite._implementation import LIBRARY

NOT_BUILT = "sys.modules[{name!r}] = None"  # makes its import a ModuleNotFoundError
BROKEN = """
import aiokafka_lite

class Broken:
    def find_spec(self, name, path, target=None):
        if name == {name!r}:
            raise ImportError("undefined symbol")
sys.meta_path.insert(0, Broken())
"""


def compiled_in_place(package: Path) -> Iterator[Path]:
    """Yield the modules in plain Python that are compiled as they are."""
    for layout in package.rglob("*.pxd"):
        module = layout.with_suffix(".py")
        if module.exists():
            yield module


def fields_of(kind: type) -> list[str]:
    """Return the fields of a class that is compiled in place, as its .pxd declares them."""
    package = Path(str(aiokafka_lite.__file__)).parents[1]
    layout = package.joinpath(*kind.__module__.split(".")).with_suffix(".pxd").read_text()
    body = re.search(rf"^cdef class {kind.__name__}\b[^\n]*:\n(.*?)(?=^\S|\Z)", layout, re.M | re.S)
    assert body is not None, f"{kind} has no .pxd"
    return re.findall(r"^    cdef (?:public |readonly )?[\w ]+ (\w+)$", body[1], re.M)


def stale_extensions(package: Path) -> list[str]:
    """Return the modules that have changed since they were compiled: Python runs them as before.

    Also files of single modules, of an earlier build: plain Python would load them.
    """
    changed = [
        module
        for built in package.glob(f"{LIBRARY}.*.so")
        for module in compiled_in_place(package)
        for source in (module, module.with_suffix(".pxd"))
        if built.stat().st_mtime < source.stat().st_mtime
    ]
    single = [built for built in package.rglob("*.so") if not built.match(f"{LIBRARY}.*")]
    return [str(path.relative_to(package)) for path in (*changed, *single)]


def but_for_plain_python(said: str) -> str:
    """Return what a process has logged, less that records are decoded by plain Python."""
    lines = said.splitlines(keepends=True)
    return "".join(line for line in lines if "decoded by plain Python" not in line)
