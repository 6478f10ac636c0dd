"""Builds the extensions. Both are optional: without a compiler the plain Python twins run."""

from __future__ import annotations

from setuptools import Extension, setup

SOURCES = {
    "aiokafka_lite._record": "aiokafka_lite/_record.pyx",
    "aiokafka_lite.records._decode": "aiokafka_lite/records/_decode.pyx",
}


def extensions() -> list[Extension]:
    """Return what to compile; nothing where Cython is missing."""
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    modules = [Extension(name, [source], optional=True) for name, source in SOURCES.items()]
    compiled: list[Extension] = cythonize(
        modules,
        build_dir="build/cython",
        language_level=3,
        compiler_directives={"boundscheck": False, "wraparound": False, "embedsignature": False},
    )
    return compiled


setup(ext_modules=extensions())
