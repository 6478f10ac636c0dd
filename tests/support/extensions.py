"""Python code that makes an extension module look as if it were missing, or broken."""

from __future__ import annotations

NOT_BUILT = "sys.modules[{name!r}] = None"  # makes its import a ModuleNotFoundError
BROKEN = """
class Broken:
    def find_spec(self, name, path, target=None):
        if name == {name!r}:
            raise ImportError("undefined symbol")
sys.meta_path.insert(0, Broken())
"""
