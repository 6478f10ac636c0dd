"""A short piece of the fuzzing, the same each time; and the inputs that have found faults."""

from __future__ import annotations

import base64
import json
import logging
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz import catalogue, corpus
from tests.fuzz.engine import Fuzzer, Runner
from tests.support.rounds import LONG, RANDOM_S, in_time, random_rounds

# About a second each, after the seeds of the target.
MUTATIONS = {
    "record-sets": 1_000,
    "rows": 120,
    "payloads": 700,
    "responses": 700,
    "small-answers": 800,
    "consumer-protocol": 700,
    "requests": 220,
    "requests-with-sasl": 150,
    "sasl-server": 300,
    "sasl-client": 300,
    "coordinator-records": 70,
    "data-directory": 50,
    "spark-options": 500,
    "spark-checkpoints": 1_000,
}
FOUND = Path(__file__).parent / "found.jsonl"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Turn logging off: the targets log thousands of warnings."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@random_rounds
@pytest.mark.parametrize("name", catalogue.TARGETS)
def test_every_rule_is_kept(name: str) -> None:
    if reason := catalogue.missing(name):
        pytest.skip(reason)
    first = random.randrange(2**32) if LONG else 0
    seeds = in_time(range(first, first + 10**6), RANDOM_S / 4) if LONG else [first]
    for seed in seeds:
        fuzzer = Fuzzer(catalogue.make(name), seed)
        fuzzer.run(lambda fuzzer=fuzzer: fuzzer.mutation_count >= MUTATIONS[name])  # type: ignore[misc]
        reports = [
            f"seed {seed}: {found.violation.report}\n{found.content.hex()}"
            for found in fuzzer.found.values()
        ]
        assert not reports, "\n\n".join(reports)
        assert fuzzer.outcome_count > 3


def test_inputs_that_found_faults_find_them_no_more() -> None:
    lines = FOUND.read_text("utf-8").splitlines()
    assert lines
    for line in lines:
        entry = json.loads(line)
        if catalogue.missing(entry["target"]):
            continue
        runner = Runner(catalogue.make(entry["target"]))
        outcome = runner.execute(base64.b64decode(entry["input"]))
        assert isinstance(outcome, str), f"{entry['fault']}: {outcome}"


def test_the_corpus_is_small_and_of_several_kafkas() -> None:
    entries = corpus.recorded()
    assert corpus.FILE.stat().st_size <= 300_000
    assert {entry.source for entry in entries} >= {"4.3.1"}
    assert {entry.kind for entry in entries} == set(corpus.Kind)
    assert corpus.unpacked(corpus.packed(entries[:20])) == entries[:20]
