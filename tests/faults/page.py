"""Writes docs/reliability.md: `python -m tests.faults.page`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from tests.faults.rows import ROWS, SECTIONS

PAGE: Final = Path(__file__).parents[2] / "docs" / "reliability.md"
OUTCOMES: Final = Path(__file__).with_name("outcomes.json")
PEERS: Final = ("aiokafka", "confluent-kafka", "kafka-python")
HEAD: Final = """\
# Faults, and how clients behave

This page lists 72 faults of networks, brokers, groups, applications and security. The column
aiokafka_lite describes what the [tests](#tests) check. The other columns were measured with
{versions}.

`make faults` plays the faults to these clients, on the embedded broker. Each client runs in its own
process, with default settings, a request timeout of 10 s and a session timeout of 6 s.

| outcome | |
|---|---|
| delivers | every good record is returned once |
| `Name` | a read or a callback reports this error. Other partitions are read |
| recovers, stops | all records are returned later, or no more records |
| others stop | no records of other partitions are returned |
| drops earlier | good records before the bad one are not returned |
| lost, repeats | records are skipped, or returned twice, without an error |
| accepts it, garbage | the bad batch, or altered records, are returned |
| hangs | neither records nor an error for 30 s |
| – | not measured, or not applicable |
"""

SHORT: Final = {
    "earlier records missing": "drops earlier",
    "then delivers": "recovers",
    "then continues": "skips it",
}
Outcomes: TypeAlias = "dict[str, dict[str, dict[str, str]]]"
"""By row, variant of its fault, and client."""


def load() -> Outcomes:
    outcomes: Outcomes = json.loads(OUTCOMES.read_text())["outcomes"]
    return outcomes


def keep(found: Outcomes, versions: Mapping[str, str]) -> None:
    """Replace outcomes in the file, and write the page."""
    outcomes = load() if OUTCOMES.exists() else {}
    for row, variants in found.items():
        for variant, by_client in variants.items():
            outcomes.setdefault(row, {}).setdefault(variant, {}).update(by_client)
    ordered = {row: outcomes[row] for row in ROWS if row in outcomes}
    kept = {"versions": versions, "outcomes": ordered}
    OUTCOMES.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(page())


def cell(variants: Mapping[str, Mapping[str, str]], client: str) -> str:
    """Return the outcomes of a client: the most frequent one, then others with their variants."""
    found: dict[str, list[str]] = {}
    for variant, outcomes in variants.items():
        if client in outcomes:
            found.setdefault(shown(outcomes[client]), []).append(variant)
    first, *others = sorted(found, key=lambda each: -len(found[each])) or ["–"]
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
    kept = json.loads(OUTCOMES.read_text())
    first, second, third = (f"{name} {kept['versions'][name]}" for name in PEERS)
    yield HEAD.format(versions=f"{first}, {second} and {third}")
    for title, rows in SECTIONS.items():
        yield f"## {title}\n\n| | fault | aiokafka_lite | {' | '.join(PEERS)} |"
        yield "|---|---|---|---|---|---|"
        for row in rows:
            variants = kept["outcomes"].get(row.name, {})
            cells = row.name, row.fault, row.here, *(cell(variants, peer) for peer in PEERS)
            yield f"| {' | '.join(cells)} |"
        yield ""
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
