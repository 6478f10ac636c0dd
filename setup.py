"""Builds the extensions; each has a twin in plain Python, which is several times slower.

A wheel that is built from a checkout has the extensions, or is not built. On a user's machine, from
a source distribution, and in an editable installation they may be missing: there the plain Python
runs, and says so. AIOKAFKA_LITE_EXTENSIONS decides otherwise:

    required    fail when they cannot be compiled
    optional    go on without
    none        do not compile: a wheel for every platform (py3-none-any)
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError, CompileError
from setuptools.modified import newer, newer_group

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
SOURCES = (
    "aiokafka_lite/_compiled.pyx",
    "aiokafka_lite/_record.pyx",
    "aiokafka_lite/records/_build.pyx",
    "aiokafka_lite/records/_columns.pyx",
    "aiokafka_lite/records/_decode.pyx",
    "aiokafka_lite/records/_partitioner.pyx",
    "aiokafka_lite/consumer/fetching/_small.pyx",
    "aiokafka_lite/consumer/delivery/_iteration.pyx",
    "aiokafka_lite/consumer/processing/_calls.pyx",
)
# Modules in plain Python that are compiled as they are.
IN_PLACE = (
    "aiokafka_lite/client/backoff.py",
    "aiokafka_lite/client/channel.py",
    "aiokafka_lite/client/frames.py",
    "aiokafka_lite/client/wire.py",
    "aiokafka_lite/consumer/assignment/cursor.py",
    "aiokafka_lite/consumer/assignment/progress.py",
    "aiokafka_lite/consumer/assignment/reads.py",
    "aiokafka_lite/consumer/assignment/works.py",
    "aiokafka_lite/consumer/buffer/budget.py",
    "aiokafka_lite/consumer/buffer/chunk.py",
    "aiokafka_lite/consumer/buffer/chunk_queue.py",
    "aiokafka_lite/consumer/buffer/time_slice.py",
    "aiokafka_lite/consumer/buffer/waiter.py",
    "aiokafka_lite/consumer/delivery/next_record.py",
    "aiokafka_lite/consumer/delivery/ready.py",
    "aiokafka_lite/consumer/delivery/record_cursor.py",
    "aiokafka_lite/consumer/delivery/steady.py",
    "aiokafka_lite/consumer/fetching/choice.py",
    "aiokafka_lite/consumer/fetching/counts.py",
    "aiokafka_lite/consumer/fetching/in_flight.py",
    "aiokafka_lite/consumer/fetching/session.py",
    "aiokafka_lite/consumer/fetching/small.py",
    "aiokafka_lite/consumer/gate.py",
    "aiokafka_lite/consumer/processing/allowance.py",
    "aiokafka_lite/consumer/processing/lanes.py",
    "aiokafka_lite/consumer/processing/steps.py",
)
# As IN_PLACE, but each class keeps the memory of freed objects for new ones: of as many as one read
# of `run` makes. Otherwise such reads would start garbage collections, which visit all objects of
# the handlers. With the trashcan, freeing a long chain of objects does not overflow the stack.
POOLED = ("aiokafka_lite/consumer/processing/job.py",)
POOL = {"freelist": 2_000, "trashcan": True}  # Cython ignores these in a .pxd beside a .py
LIBRARY = "aiokafka_lite._compiled"
TRANSLATED = Path("build/cython")
CHOICES = ("required", "optional", "none")


def choice() -> str:
    """Return whether the extensions have to be built: one of CHOICES."""
    wanted = os.environ.get("AIOKAFKA_LITE_EXTENSIONS", "")
    if not wanted:
        is_source_distribution = HERE.joinpath("PKG-INFO").exists()
        is_wheel = "bdist_wheel" in sys.argv and not is_source_distribution
        return "required" if is_wheel else "optional"
    if wanted not in CHOICES:
        sys.exit(f"AIOKAFKA_LITE_EXTENSIONS is {wanted!r}: it is one of {', '.join(CHOICES)}")
    return wanted


def has_old_translation() -> bool:
    """Return whether to translate all modules, because this file has other directives since.

    Cython does not notice that. Files of modules that are no longer compiled are not translated.
    """
    modules = (Path(source) for source in (*SOURCES, *IN_PLACE, *POOLED))
    translated = (TRANSLATED / module.with_suffix(".c") for module in modules)
    return any(newer(__file__, str(path)) for path in translated if path.exists())


def extensions(wanted: str) -> list[Extension]:
    """Return what to compile; nothing where Cython is missing and need not be there."""
    if wanted == "none":
        return []
    try:
        from Cython.Build import cythonize
        from Cython.Compiler.Options import get_directive_defaults
    except ImportError:
        if wanted == "required":
            raise
        return []
    # Cython has no defaults of these, and accepts only directives that have one.
    get_directive_defaults().update({"freelist": 0, "trashcan": None})
    # Debugging information would be four fifths of the files.
    compile_args = ["-g0"] if sys.platform != "win32" else []
    if sys.platform == "linux":
        # Calls of Python's C functions take no jump through a table of this module.
        compile_args.append("-fno-plt")

    # The modules are linked into one file, which `_implementation.py` loads them from: they share
    # the table of Python's functions, so fewer cache lines are cold, and the wheel is smaller.
    def to_compile(sources: tuple[str, ...]) -> list[Extension]:
        return [
            Extension(source.rpartition(".")[0].replace("/", "."), [source]) for source in sources
        ]

    is_changed = has_old_translation()
    unchecked = {"boundscheck": False, "wraparound": False}
    # The types of fields and methods are in the .pxd beside each. Methods are those of built-in
    # types: no functions of Cython, no pickling, and a single argument has no keyword. So more
    # of a read's code is still in the CPU's caches after a wait.
    in_place = {
        "annotation_typing": False,
        "embedsignature": False,
        "binding": False,
        "always_allow_keywords": False,
        "auto_pickle": False,
    }
    compiled: list[Extension] = [
        *cythonize(
            to_compile(SOURCES),
            build_dir=str(TRANSLATED),
            force=is_changed,
            language_level=3,
            compiler_directives={**unchecked, "embedsignature": False},
        ),
        *cythonize(
            to_compile(IN_PLACE),
            build_dir=str(TRANSLATED),
            force=is_changed,
            language_level=3,
            compiler_directives=in_place,
        ),
        *cythonize(
            to_compile(POOLED),
            build_dir=str(TRANSLATED),
            force=is_changed,
            language_level=3,
            compiler_directives=in_place | POOL,
        ),
    ]
    return [
        Extension(
            LIBRARY,
            [source for module in compiled for source in module.sources],
            depends=["setup.py", *SOURCES, *IN_PLACE, *POOLED],
            extra_compile_args=compile_args,
            extra_link_args=["-Wl,-s"] if sys.platform == "linux" else [],
            export_symbols=[f"PyInit_{module.name.rpartition('.')[2]}" for module in compiled],
            optional=wanted == "optional",
        )
    ]


def long_description() -> str:
    """Return README.md for where the files that it links to are not: with whole addresses."""
    project = tomllib.loads(HERE.joinpath("pyproject.toml").read_text("utf-8"))["project"]
    source, version = project["urls"]["Source"], project["version"]
    text = HERE.joinpath("README.md").read_text("utf-8")
    text = re.sub(r"(!\[[^\]]*\]\()(?![a-z]+:)", rf"\1{source}/raw/v{version}/", text)
    return re.sub(r"\]\((?![a-z]+:|#)", f"]({source}/blob/v{version}/", text)


class BuildExtensions(build_ext):
    """Compiles modules at the same time, and only those that changed.

    If that fails, it says how to go on.
    """

    has_failed = False

    def run(self) -> None:
        super().run()
        if not self.has_failed:
            return
        for is_in_place in {False, self.inplace}:
            self.inplace = is_in_place
            Path(self.get_ext_fullpath(LIBRARY)).unlink(missing_ok=True)
        self.warn("no extension is built, because at least one failed: plain Python replaces them")

    def build_extension(self, ext: Extension) -> None:
        self.compiler.compile = functools.partial(self._compile, self.compiler.compile)
        try:
            super().build_extension(ext)
        except (BaseError, CCompilerError, OSError) as error:
            self.has_failed = True
            if ext.optional:
                raise
            sys.exit(
                f"error: {error}\n"
                "A wheel of a checkout has the extensions. They need a C compiler and Python's "
                "headers (Debian: gcc and python3-dev). With AIOKAFKA_LITE_EXTENSIONS=optional in "
                "the environment it is built without them if one fails: records are then decoded "
                "in plain Python, several times slower."
            )

    def _compile(
        self, compile: Callable[..., list[str]], sources: list[str], output_dir: str, **how: Any
    ) -> list[str]:
        def compiled(source: str) -> str:
            (path,) = self.compiler.object_filenames([source], output_dir=output_dir)
            if self.force or newer_group([source, __file__], path):
                try:
                    compile([source], output_dir=output_dir, **how)
                except (BaseError, CCompilerError, OSError) as error:
                    name = Path(source).stem
                    raise CompileError(f"{name} cannot be compiled: {error}") from error
            return path

        with ThreadPoolExecutor(os.cpu_count()) as threads:
            return list(threads.map(compiled, sources))


setup(
    cmdclass={"build_ext": BuildExtensions},
    ext_modules=extensions(choice()),
    long_description=long_description(),
    long_description_content_type="text/markdown",
)
