"""CRC32C, loaded on first use."""

from __future__ import annotations

import importlib.machinery
from typing import Protocol, cast


class _Crc32c(Protocol):
    def __call__(self, content: bytes | bytearray | memoryview, crc: int = 0, /) -> int: ...


def _import_first(content: bytes | bytearray | memoryview, crc: int = 0, /) -> int:
    return loaded()(content, crc)


def _load() -> _Crc32c:
    """Return the function of crc32c's extension: the package imports 60 modules, in 20 ms."""
    package = importlib.machinery.PathFinder.find_spec("crc32c")
    extension = package and importlib.machinery.PathFinder.find_spec(
        "crc32c._crc32c", package.submodule_search_locations
    )
    if extension is None or extension.loader is None:  # the package's layout has changed
        import crc32c

        return cast(_Crc32c, crc32c.crc32c)
    from importlib.util import module_from_spec

    module = module_from_spec(extension)
    extension.loader.exec_module(module)
    return cast(_Crc32c, module.crc32c)


#: Call it as `checksum.crc32c`, so that all calls but the first reach the package's function.
crc32c: _Crc32c = _import_first


def loaded() -> _Crc32c:
    """Return the package's function itself, for callers that keep it."""
    global crc32c
    if crc32c is _import_first:
        crc32c = _load()
    return crc32c
