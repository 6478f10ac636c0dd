"""Builds the extensions. Both are optional: without a compiler their plain Python twins run."""

from __future__ import annotations

from setuptools import Extension, setup

SOURCES = {
    "aiokafka_lite._record": "aiokafka_lite/_record.pyx",
    "aiokafka_lite.records._columns": "aiokafka_lite/records/_columns.pyx",
    "aiokafka_lite.records._decode": "aiokafka_lite/records/_decode.pyx",
    "aiokafka_lite.consumer.delivery._iteration": "aiokafka_lite/consumer/delivery/_iteration.pyx",
}
LAYOUTS = [
    "aiokafka_lite/_record.pxd",
    "aiokafka_lite/records/_columns.pxd",
    "aiokafka_lite/records/_cursor.pxd",
]


def extensions() -> list[Extension]:
    """Return what to compile; nothing where Cython is missing."""
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    # The dependencies go into the source distribution; the C code made of them does not.
    modules = [
        Extension(name, [source], depends=[source, *LAYOUTS]) for name, source in SOURCES.items()
    ]
    compiled: list[Extension] = cythonize(
        modules,
        build_dir="build/cython",
        language_level=3,
        compiler_directives={"boundscheck": False, "wraparound": False, "embedsignature": False},
    )
    for module in compiled:
        module.optional = True  # cythonize does not keep it
    return compiled


setup(ext_modules=extensions())
