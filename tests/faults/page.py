"""Writes docs/reliability.md: `python -m tests.faults.page`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from tests.faults.rows import PEERS, ROWS, SECTIONS

PAGE: Final = Path(__file__).parents[2] / "docs" / "reliability.md"
OUTCOMES: Final = Path(__file__).with_name("outcomes.json")
HEAD: Final = """\
# Faults, and how clients behave

The column aiokafka_lite describes what the [tests](#tests) of 72 faults check. The other columns
were measured with {versions}.

`make faults` plays the faults to these clients, on the embedded broker. They have default settings,
a request timeout of 10 s and a session timeout of 6 s.

| outcome | |
|---|---|
| ✓ | delivers: every good record is returned once |
| `Name` | a read or a callback reports this error. Other partitions are read |
| recovers, stops | all records are returned later, or no more records |
| others stop | no records of other partitions are returned |
| drops earlier | good records before the bad one are not returned |
| lost, repeats | records are skipped, or returned twice, without an error |
| accepts it, garbage | the bad batch, or altered records, are returned |
| hangs | neither records nor an error for 30 s |
| has no … | not applicable |
| – | not measured |
"""

FOUND: Final = """\
## Found by simulation

[Seeds](design.md#testing-with-virtual-time) found ten bugs in reads, positions, connections,
commits and static members, which are fixed.
"""

SHORT: Final = {
    "earlier records missing": "drops earlier",
    "then delivers": "recovers",
    "then continues": "skips it",
    "delivers": "✓",
}
Outcomes: TypeAlias = "dict[str, dict[str, dict[str, str]]]"
"""By row, variant of its fault, and client."""


def load() -> Outcomes:
    """Return the outcomes. A peer's name is followed by the version that was measured."""
    outcomes: Outcomes = json.loads(OUTCOMES.read_text())
    return outcomes


def keep(found: Outcomes, versions: Mapping[str, str]) -> None:
    """Replace outcomes in the file, and write the page. `versions` are those of `found`."""
    outcomes = load() if OUTCOMES.exists() else {}
    for row, variants in found.items():
        for variant, by_client in variants.items():
            kept = outcomes.setdefault(row, {}).setdefault(variant, {})
            for client, outcome in by_client.items():
                for each in [each for each in kept if each.partition(" ")[0] == client]:
                    del kept[each]
                kept[f"{client} {versions.get(client, '')}".rstrip()] = outcome
    ordered = {row: outcomes[row] for row in ROWS if row in outcomes}
    OUTCOMES.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(page())


def newest(outcomes: Outcomes, peer: str) -> str:
    """Return the newest version of a peer of which an outcome is kept."""
    names = {name for row in outcomes.values() for by_client in row.values() for name in by_client}
    measured = [name.split(" ")[1] for name in names if name.startswith(f"{peer} ")]
    return max(measured, key=lambda version: [int(part) for part in re.findall(r"\d+", version)])


def cell(variants: Mapping[str, Mapping[str, str]], peer: str, version: str, otherwise: str) -> str:
    """Return the outcomes of a peer: the most frequent one, then others with their variants.

    Outcomes of another version than this one name theirs.
    """
    found: dict[str, list[str]] = {}
    for variant, outcomes in variants.items():
        for name, outcome in outcomes.items():
            client, _, measured = name.partition(" ")
            if client == peer:
                text = shown(outcome) + ("" if measured == version else f" in {measured}")
                found.setdefault(text, []).append(variant)
    first, *others = sorted(found, key=lambda each: -len(found[each])) or [otherwise]
    if not others:
        return first
    count = sum(map(len, found.values()))

    def named(outcome: str) -> str:
        names = found[outcome]
        return f"{outcome} ({', '.join(names) if len(names) < 3 else f'{len(names)} of {count}'})"

    return " · ".join([named(first) if len(found[first]) < 3 else first, *map(named, others)])


def is_a_fault(outcome: str) -> bool:
    """Whether no client should have this outcome of any fault."""
    return (
        re.search("lost|hangs|accepts|garbage|missing|others|crashes|reached|BUG", outcome)
        is not None
    )


def shown(outcome: str) -> str:
    outcome = re.sub(r"\berror ([\w?]+)", r"`\1`", outcome)
    outcome = re.sub(r"\d+ unread", "stops", outcome)
    for long, short in SHORT.items():
        outcome = outcome.replace(long, short)
    return outcome


def lines() -> Iterator[str]:
    kept = load()
    versions = {peer: newest(kept, peer) for peer in PEERS}
    first, second, third = (f"{name} {version}" for name, version in versions.items())
    yield HEAD.format(versions=f"{first}, {second} and {third}")
    for title, rows in SECTIONS.items():
        yield f"## {title}\n\n| | fault | aiokafka_lite | {' | '.join(PEERS)} |"
        yield "|---|---|---|---|---|---|"
        for row in rows:
            found = (
                cell(kept.get(row.name, {}), peer, version, row.otherwise.get(peer, "–"))
                for peer, version in versions.items()
            )
            yield f"| {' | '.join([row.name, row.fault, row.here, *found])} |"
        yield ""
    yield FOUND
    yield "## Tests\n\n```text"
    for rows in SECTIONS.values():
        for row in rows:
            for number, test in enumerate(row.tests):
                yield f"{'' if number else row.name:5} {test}"
    yield "```"


def page() -> str:
    """Return the page."""
    return "\n".join(lines()) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
