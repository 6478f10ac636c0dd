"""CRC32C, loaded on first use: without the command line that the wheel's package has as well."""

from __future__ import annotations

import importlib.machinery
from typing import Protocol, cast

__all__ = ["crc32c"]


class _Crc32c(Protocol):
    def __call__(self, content: bytes | bytearray | memoryview, crc: int = 0, /) -> int: ...


def _import_first(content: bytes | bytearray | memoryview, crc: int = 0, /) -> int:
    return loaded()(content, crc)


def _load() -> _Crc32c:
    """Return the wheel's function.

    The package imports argparse, email and 60 other modules for its command line and its version:
    20 ms in which the event loop would stand still at the first batch. The extension module in it
    takes one.
    """
    package = importlib.machinery.PathFinder.find_spec("crc32c")
    extension = package and importlib.machinery.PathFinder.find_spec(
        "crc32c._crc32c", package.submodule_search_locations
    )
    if extension is None or extension.loader is None:  # another layout than today's
        import crc32c

        return cast(_Crc32c, crc32c.crc32c)
    from importlib.util import module_from_spec

    module = module_from_spec(extension)
    extension.loader.exec_module(module)
    return cast(_Crc32c, module.crc32c)


#: Called through this module, so that the second call already goes to the wheel's function.
crc32c: _Crc32c = _import_first


def loaded() -> _Crc32c:
    """Return the wheel's function itself, for who keeps it."""
    global crc32c
    if crc32c is _import_first:  # whoever took hold of that before calls it again
        crc32c = _load()
    return crc32c
