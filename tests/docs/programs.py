"""Runs the programs of a page one after another in one interpreter, which imports packages once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Final, NamedTuple

_DRIVER: Final = """
import contextlib, io, json, sys, traceback

ended = {}
for name, code in json.load(sys.stdin).items():
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            exec(compile(code, name, "exec", dont_inherit=True), {"__name__": "__main__"})
        except Exception:
            traceback.print_exc()
    ended[name] = out.getvalue(), errors.getvalue()
json.dump(ended, sys.stdout)
"""


class Ended(NamedTuple):
    """What a program wrote, with the traceback of its exception if it had one."""

    stdout: str
    stderr: str


def run_all(programs: Mapping[str, str]) -> dict[str, Ended]:
    """Run programs, each with its own names; warnings are errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _DRIVER],
        input=json.dumps(programs), capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""
    return {name: Ended(*each) for name, each in json.loads(done.stdout).items()}
