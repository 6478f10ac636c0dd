"""AIOKAFKA_LITE_IMPL: which modules a process runs."""

from __future__ import annotations

import modulefinder
import os
import re
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from aiokafka_lite import _implementation
from aiokafka_lite._implementation import COMPILED as COMPILED_MODULES
from aiokafka_lite._implementation import built_library
from aiokafka_lite.records import COMPILED
from tests.support.extensions import NOT_BUILT, stale_extensions

IMPORTED = """
import sys
from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite.consumer.fetching import source
files = [getattr(m, "__file__", None) or "" for n, m in sys.modules.items() if "aiokafka_lite" in n]
print(sum(file.endswith((".so", ".pyd")) for file in files))
"""

# The first copy of the package is forgotten, and another one is imported.
ANOTHER_COPY = """
import sys
import aiokafka_lite.consumer
for name in [name for name in sys.modules if name.startswith("aiokafka_lite")]:
    del sys.modules[name]
sys.path.insert(0, {folder!r})
import aiokafka_lite.consumer
names = [name for name in sys.modules if name.startswith("aiokafka_lite")]
files = [getattr(sys.modules[name], "__file__", None) or "" for name in names]
print(len(files) > 50, all(file.startswith({folder!r}) for file in files))
"""


def run(code: str, implementation: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "AIOKAFKA_LITE_IMPL": implementation},
        capture_output=True,
        text=True,
        check=False,
    )


def test_python_runs_no_compiled_module() -> None:
    done = run(IMPORTED, "python")
    assert done.stdout == "0\n", done.stderr


def test_python_finds_no_module_that_there_is_not() -> None:
    found = "import importlib.util; print(importlib.util.find_spec('aiokafka_lite.typo'))"
    done = run(found, "python")
    assert done.stdout == "None\n", done.stderr


@pytest.mark.skipif(not COMPILED, reason="there are no extensions")
@pytest.mark.parametrize("implementation", ["", "compiled"])
def test_compiled_modules_are_used_that_are_built(implementation: str) -> None:
    done = run(IMPORTED, implementation)
    assert int(done.stdout) > 5, done.stderr


@pytest.mark.skipif(not COMPILED, reason="there are no extensions")
def test_tools_find_and_import_the_file_of_the_compiled_modules() -> None:
    """Programs that freeze applications follow imports, and others import all files of modules."""
    scan = modulefinder.ModuleFinder.scan_opcodes
    source = Path(str(_implementation.__file__)).read_text("utf-8")
    found = list(scan(modulefinder.ModuleFinder(), compile(source, "", "exec")))
    assert ("absolute_import", (("_compiled",), "aiokafka_lite")) in found
    for implementation in ("compiled", "python"):
        done = run("import aiokafka_lite._compiled", implementation)
        assert done.returncode == 0, done.stderr


def test_another_copy_of_the_package_uses_its_own_modules(tmp_path: Path) -> None:
    """Also if the first copy is compiled, and this one is not."""
    package, copy = Path(str(_implementation.__file__)).parent, tmp_path / "aiokafka_lite"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    done = run(ANOTHER_COPY.format(folder=str(tmp_path)), "")
    assert done.stdout == "True True\n", done.stderr


def test_compiled_modules_that_are_not_built_are_an_error_if_they_are_asked_for(
    tmp_path: Path,
) -> None:
    assert built_library(str(tmp_path)) is None
    library = tmp_path / f"_compiled{EXTENSION_SUFFIXES[0]}"
    library.touch()
    assert built_library(str(tmp_path)) == str(library)
    code = "import os; os.path.exists = lambda path: '_compiled' not in path; import aiokafka_lite"
    assert "installed without its compiled modules" in run(code, "compiled").stderr
    assert run(code, "").returncode == 0


def test_all_modules_that_are_compiled_are_known() -> None:
    setup = Path(__file__).parents[1].joinpath("setup.py").read_text("utf-8")
    built = re.findall(r'"aiokafka_lite/([a-z_/]+)\.pyx?"', setup)
    assert sorted(each.replace("/", ".") for each in built) == sorted(COMPILED_MODULES)


def test_the_note_on_the_decoder_names_its_cause() -> None:
    note = "from aiokafka_lite.cli.main import decoder_note; print(decoder_note())"
    assert "because AIOKAFKA_LITE_IMPL is python" in run(note, "python").stdout
    not_found = NOT_BUILT.format(name="aiokafka_lite.records._decode")
    assert "contains no compiled extensions" in run(f"import sys; {not_found}; {note}", "").stdout


def test_an_implementation_that_there_is_not_is_an_error() -> None:
    assert (
        "must be compiled or python, not 'cython'" in run("import aiokafka_lite", "cython").stderr
    )


def test_a_module_that_changed_after_it_was_compiled_is_stale(tmp_path: Path) -> None:
    built = "_compiled.x86.so"
    for number, name in enumerate(("c.pxd", "c.py", "a.pxd", "b.py", built, "a.py", "b.pxd")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (number, number))
    assert set(stale_extensions(tmp_path)) == {"a.py", "b.py"}
    os.utime(tmp_path / built)
    assert stale_extensions(tmp_path) == []
    (tmp_path / "a.x86.so").touch()
    assert stale_extensions(tmp_path) == ["a.x86.so"]
