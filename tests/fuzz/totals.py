"""How many inputs have been run without a broken rule, added up over many runs (`--keep`).

A line of `totals.jsonl` has one target, with or without AddressSanitizer: the executions by seed. A
run of a seed has the same inputs as the beginning of a longer one: only the longer one counts. A
run that broke a rule has no executions. `--seed` repeats it after the fault was fixed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

from tests.fuzz.engine import IS_ASAN

FILE: Final = Path(__file__).parent / "totals.jsonl"
# By target, and whether AddressSanitizer was used: the number of executions by seed.
Totals: TypeAlias = dict[tuple[str, bool], dict[int, int]]


def read(file: Path = FILE) -> Totals:
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    entries = map(json.loads, lines)
    return {
        (entry["target"], entry["asan"]): {int(n): count for n, count in entry["seeds"].items()}
        for entry in entries
    }


def new_seed(target: str, file: Path = FILE) -> int:
    """Return a seed that no kept run of a target has used in this build."""
    return max(read(file).get((target, IS_ASAN), {}), default=0) + 1


def keep(target: str, seed: int, executions: int, file: Path = FILE) -> None:
    """Add the executions of a run, 0 if a rule was broken."""
    totals = read(file)
    seeds = totals.setdefault((target, IS_ASAN), {})
    seeds[seed] = max(seeds.get(seed, 0), executions)
    lines = [
        json.dumps({"target": name, "asan": is_asan, "seeds": dict(sorted(seeds.items()))})
        for (name, is_asan), seeds in sorted(totals.items())
    ]
    file.write_text("".join(f"{line}\n" for line in lines), "utf-8")


def table(totals: Mapping[tuple[str, bool], Mapping[int, int]]) -> str:
    """Return the executions of each target without and with AddressSanitizer."""
    sums = {key: sum(seeds.values()) for key, seeds in totals.items()}
    rows = [
        (name, sums.get((name, False), 0), sums.get((name, True), 0))
        for name in sorted({name for name, _ in sums})
    ]
    rows.append(("all", sum(row[1] for row in rows), sum(row[2] for row in rows)))
    lines = [f"{'target':22}{'executions':>14}{'with ASan':>14}"]
    lines += [f"{name:22}{plain:14,}{with_asan:14,}" for name, plain, with_asan in rows]
    return "\n".join(lines)
