"""For tests of what is compiled, and of what is not: code that makes an extension look missing."""

from __future__ import annotations

NOT_BUILT = "sys.modules[{name!r}] = None"  # makes its import a ModuleNotFoundError
BROKEN = """
class Broken:
    def find_spec(self, name, path, target=None):
        if name == {name!r}:
            raise ImportError("undefined symbol")
sys.meta_path.insert(0, Broken())
"""


def but_for_plain_python(said: str) -> str:
    """Return what a process has logged, less that records are decoded by plain Python."""
    lines = said.splitlines(keepends=True)
    return "".join(line for line in lines if "decoded by plain Python" not in line)
