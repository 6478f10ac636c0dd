"""Fuzzing by coverage, with atheris: the plain Python twins, and all that is only Python.

libFuzzer decides which inputs are worth more mutations; the mutations are the target's own.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.fuzz.engine import LARGEST_INPUT_BYTES, ROOT, Runner, Violation, write_input
from tests.fuzz.running import OUT, Result

MISSING = (
    "atheris is not installed. It supports Python 3.11 to 3.13: pip install atheris (in Docker "
    "images of Python older than that, leave --guided out)"
)


def fuzz(name: str, seed: int, seconds: float) -> Result:
    """Fuzz one target in another process, which atheris ends by itself."""
    began = time.monotonic()
    environment = {**os.environ, "AIOKAFKA_LITE_IMPL": "python"}
    with tempfile.TemporaryDirectory(prefix="aiokafka-lite-fuzz-") as folder:
        command = [sys.executable, "-m", "tests.fuzz.guided", name, str(seed), str(seconds), folder]
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        inputs = len([*Path(folder).iterdir()])
    result = Result(name, seconds=time.monotonic() - began, pool=inputs)
    for text in re.findall(r"^#(\d+)", ended.stderr, re.MULTILINE):
        result.executions = max(result.executions, int(text))
    for text in re.findall(r"cov: (\d+)", ended.stderr):
        result.outcomes = max(result.outcomes, int(text))
    for rule, key, path in re.findall(r"^BROKEN\t(.*)\t(.*)\t(.*)$", ended.stdout, re.MULTILINE):
        result.found.append((rule, key, path))
    if MISSING in ended.stderr:
        raise SystemExit(MISSING)
    if ended.returncode and not result.found:
        raise SystemExit(f"{name}: exit code {ended.returncode}\n{ended.stderr[-3000:]}")
    return result


def main(name: str, seed: int, seconds: float, folder: Path) -> None:
    """Fuzz in this process, which ends here."""
    try:
        import atheris
    except ImportError:
        raise SystemExit(MISSING) from None
    import aiokafka_lite  # first, because it chooses how its modules are imported

    assert aiokafka_lite.__name__
    with atheris.instrument_imports(include=["aiokafka_lite"]):
        from aiokafka_lite.protocol import source

        # The decoders of messages are generated, not imported.
        compile_plainly: Any = source.compile_function
        source.compile_function = lambda *of: atheris.instrument_func(compile_plainly(*of))
        from tests.fuzz import catalogue

        target = catalogue.make(name)
        seeds = target.seeds()
        runner = Runner(target)
        for content in seeds:
            runner.execute(content)
    for number, content in enumerate(seeds):
        (folder / f"seed-{number}").write_bytes(content)
    keys: set[str] = set()

    def run(content: bytes) -> None:
        found = runner.execute(content)
        if isinstance(found, Violation) and found.key not in keys:
            keys.add(found.key)
            path = write_input(OUT, name, content)
            print(f"BROKEN\t{found.rule}\t{found.key}\t{path}", flush=True)

    def mutate(content: bytes, most: int, number: int) -> bytes:
        rng = random.Random(number)
        if rng.random() < 0.2:
            return bytes(atheris.Mutate(content, most))
        return target.mutate(rng, content, seeds)[:most]

    options = [f"-seed={seed + 1}", f"-max_total_time={int(seconds)}", "-timeout=60"]
    options += [f"-max_len={LARGEST_INPUT_BYTES}", "-rss_limit_mb=0", str(folder)]
    atheris.Setup(["fuzz", *options], run, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    import logging

    logging.disable(logging.CRITICAL)
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4]))
