from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

from tests.support.bytecode import compile_files, rewritten_file


def test_workers_compile_modules_and_rewrite_tests_and_leave_out_what_is_no_python(
    tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    test, broken, module = (tmp_path / name for name in ("test_a.py", "test_b.py", "c.py"))
    test.write_text("def test(): assert 1 == 2\n")
    broken.write_text("def test(:\n")
    module.write_text("assert 1 == 2\n")
    compile_files([broken, test, module], pytestconfig)
    assert not rewritten_file(broken).exists()
    assert Path(importlib.util.cache_from_source(str(module))).exists()
    assert rewrite._read_pyc(test, rewritten_file(test)) is not None
    compile_files([test], pytestconfig)  # it is there

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    other = tmp_path / "test_d.py"
    other.write_text("")
    compile_files([other], pytestconfig)
    assert not rewritten_file(other).exists()
