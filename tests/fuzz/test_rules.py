"""Every rule is seen to fail: targets with planted faults, and only they, are reported."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from aiokafka_lite.protocol import codec
from aiokafka_lite.protocol.decoding import DecoderSource
from aiokafka_lite.protocol.messages.fetch import FetchRequest
from aiokafka_lite.protocol.messages.metadata import FindCoordinatorRequest, MetadataRequest
from aiokafka_lite.protocol.schema import Message
from tests.fuzz import planted, running, totals
from tests.fuzz.__main__ import main
from tests.fuzz.engine import (
    Broken,
    Found,
    Fuzzer,
    PeakMemory,
    Target,
    read_input,
    write_input,
)
from tests.fuzz.targets.messages import compare_ways
from tests.support.samples import versions

EXECUTIONS = 40


def fuzzed(target: Target, seed: int = 5) -> tuple[Fuzzer, list[bytes]]:
    """Fuzz a target, and return all inputs, too."""
    inputs: list[bytes] = []
    fuzzer = Fuzzer(target, seed)
    fuzzer.runner.before = inputs.append
    # What takes long does so only once.
    fuzzer.run(lambda: fuzzer.count >= EXECUTIONS or bool(fuzzer.found))
    return fuzzer, inputs


@pytest.mark.parametrize(
    ("target", "rule"),
    [
        (planted.Wrong, "answer"),
        (planted.Hang, "hang"),
        (planted.Hungry, "memory"),
        (planted.Holding, "loop"),
    ],
)
def test_a_broken_rule_is_found_with_its_input(target: type[Target], rule: str) -> None:
    if rule == "memory" and not PeakMemory().is_known:
        pytest.skip("this system does not tell the peak of memory")
    fuzzer, _ = fuzzed(target())
    (found,) = fuzzer.found.values()
    assert found.violation.rule == rule
    assert found.content[0] >= 0x80
    if rule != "hang":
        assert len(found.content) == 1  # it is shrunk


def test_memory_that_the_process_has_freed_before_hides_no_growth() -> None:
    if not PeakMemory().is_known:
        pytest.skip("this system does not tell the peak of memory")
    freed = [bytes(100_000) for _ in range(700)]
    above = [bytes(100_000), *(bytes(600 + i) for i in range(100))]  # keep the heap's end in use
    del freed
    fuzzer, _ = fuzzed(planted.Hungry())
    assert fuzzer.found
    del above


def test_no_rule_is_broken_without_a_fault() -> None:
    fuzzer, inputs = fuzzed(planted.Nothing())
    assert not fuzzer.found
    assert any(content and content[0] >= 0x80 for content in inputs)
    assert fuzzer.outcome_count > 2  # an error is an outcome, too
    fuzzer, inputs = fuzzed(planted.Sliced())
    assert not fuzzer.found
    assert any(content and content[0] >= 0x80 for content in inputs)


def test_a_wrong_decoder_of_requests_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs: list[tuple[type[Message], int, bytes]] = [
        (cls, version, codec.encode(cls(), version))
        for cls in (FetchRequest, FindCoordinatorRequest, MetadataRequest)
        for version in versions(cls)
    ]
    inputs.append((FindCoordinatorRequest, 0, b"\xff\xff"))
    for make in ("decoder", "decoder_in_steps"):
        monkeypatch.setattr(codec, make, getattr(codec, make).__wrapped__)  # not cached
    for source in (planted.AlwaysSet, planted.Nullable, planted.OtherInSteps, None):
        with monkeypatch.context() as patch:
            patch.setattr(codec, "DecoderSource", source or DecoderSource)
            with pytest.raises(Broken) if source else nullcontext():
                for cls, version, content in inputs:
                    compare_ways(cls, version, memoryview(content))


@pytest.mark.parametrize(
    ("target", "rule"),
    [(planted.Crash, "crash"), (planted.Deaf, "hang"), (planted.Wrong, "answer")],
)
def test_a_process_that_dies_or_hangs_has_a_witness(
    target: type[Target], rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIOKAFKA_LITE_FUZZ_OUT", str(tmp_path))
    monkeypatch.setattr(running, "DEAF_S", 0.5)
    monkeypatch.setattr(running, "OUT", tmp_path)
    result = running.fuzz(target.name, seed=3, seconds=30, executions=EXECUTIONS)
    ((found, _, path),) = result.found
    assert found == rule
    name, content = read_input(Path(path))
    assert name == target.name
    assert content[0] >= 0x80


def test_a_seed_has_the_same_inputs_each_time() -> None:
    assert fuzzed(planted.Nothing(), 5)[1] == fuzzed(planted.Nothing(), 5)[1]
    assert fuzzed(planted.Nothing(), 5)[1] != fuzzed(planted.Nothing(), 6)[1]


def test_a_failing_input_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fuzzer, _ = fuzzed(planted.Untyped())
    (found,) = fuzzer.found.values()
    assert isinstance(found, Found)
    assert found.violation.rule == "error"
    assert len(found.content) == 1  # it is shrunk
    assert found.content[0] >= 0x80
    path = write_input(tmp_path, planted.Untyped.name, found.content)
    assert main(["--replay", str(path)]) == 1
    assert "IndexError" in capsys.readouterr().out
    assert main(["--replay", str(write_input(tmp_path, planted.Untyped.name, b"\0"))]) == 0


def test_runs_add_up_and_none_counts_twice(tmp_path: Path) -> None:
    file = tmp_path / "totals.jsonl"
    assert totals.new_seed("requests", file) == 1
    for seed, executions in ((1, 100), (2, 70), (1, 300), (1, 20)):
        totals.keep("requests", seed, executions, file)
    totals.keep("responses", 1, 5, file)
    kept = totals.read(file)
    assert [sum(seeds.values()) for seeds in kept.values()] == [370, 5]
    assert "375" in totals.table(kept).splitlines()[-1]
    assert totals.new_seed("requests", file) == 3
