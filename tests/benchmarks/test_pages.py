"""Figures of README and the documentation are those of the runs that are kept, and of no other."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import pages, results
from benchmarks.__main__ import keep_run
from benchmarks.catalogue import FULL, scenarios
from benchmarks.figures import BEYOND, WALL_NS
from benchmarks.goals import GOALS
from benchmarks.machine import Machine
from benchmarks.results import (
    Failure,
    Kind,
    Run,
    Shown,
    Spread,
    Summary,
    describe_run,
    keep,
    load,
    shown,
)
from benchmarks.scenarios import Scenario
from benchmarks.spark import catalogue as spark_catalogue
from benchmarks.tables import about_run, goal_table

MACHINE = Machine("Test CPU", 2, "Linux 6", "3.11", 0.5)
CHOSEN: Mapping[Kind, tuple[Scenario, ...]] = {
    "bench": scenarios(FULL),
    "spark": spark_catalogue.scenarios(spark_catalogue.FULL),
}


def a_run(
    kind: Kind = "bench", at: str = "2026-11-23T10:00:00+00:00", *, is_quick: bool = False,
    figure: float = 100.0, ours: float = 1.0, family: str = "", commit: str = "abcdef12",
) -> Run:  # fmt: skip
    """A run in which everybody has the same figures, and we have them times `ours`."""
    summaries = {}
    chosen = [each for each in CHOSEN[kind] if not family or each.family == family]
    for scenario in chosen:
        for contestant in scenario.contestants:
            best = figure * (ours if contestant.name.startswith("lite") else 1.0)
            spread = Spread(best, best * 1.5, best * 2)
            figures = {each.key: spread for each in scenario.figures}
            summary = Summary(scenario.name, contestant.name, 3, figures, "1.2")
            summaries[scenario.name, contestant.name] = summary
    run = describe_run(kind, at, MACHINE, chosen, summaries, is_quick=is_quick, is_own_kafka=True)
    return replace(run, commit=commit, is_dirty=False)


PAGE = """Text before.

<!-- figures: readme comparison -->
what stood here
<!-- /figures -->

<!-- figures: family hold -->
<!-- /figures -->

Text behind: 42.
"""


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A root with one page, and where results are kept."""
    monkeypatch.setattr(pages, "PAGES", ("README.md",))
    (tmp_path / "README.md").write_text(PAGE)
    return tmp_path, tmp_path / "results"


def test_a_kept_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = a_run()
    path = keep(run, tmp_path)
    assert path.name == "bench-20261123-100000-abcdef12.json"
    again = load(path)
    assert again.summaries == run.summaries
    assert [each.name for each in again.questions] == [each.name for each in run.questions]
    assert (again.machine, again.label) == (run.machine, "2026-11-23, commit abcdef12")
    assert again.versions["Kafka"]
    assert again.versions["aiokafka"] == "1.2"


def test_the_newest_full_run_is_shown_and_a_quick_one_only_without(tmp_path: Path) -> None:
    keep(a_run(at="2026-11-25T10:00:00+00:00", is_quick=True), tmp_path)
    quick = shown("bench", tmp_path)
    assert quick.main.is_quick
    assert "**A quick run**" in pages.about(quick)
    for day in ("24", "23"):
        keep(a_run(at=f"2026-11-{day}T10:00:00+00:00"), tmp_path)
    full = shown("bench", tmp_path)
    assert full.main.day == "2026-11-24"
    assert [run.day for run in full.of("bulk")] == ["2026-11-23", "2026-11-24"]
    assert "quick" not in pages.about(full)
    assert shown("spark", tmp_path).runs == []


def test_a_family_measured_by_itself_is_shown_of_its_own_run_which_is_named() -> None:
    whole = a_run(figure=100, ours=0.5)
    newer = a_run(
        at="2026-11-25T10:00:00+00:00", figure=70, ours=0.25, family="trickle", commit="fedcba98"
    )
    older = a_run(at="2026-11-20T10:00:00+00:00", figure=30, family="hold", commit="01234567")
    quick = a_run(at="2026-11-26T10:00:00+00:00", figure=9, is_quick=True, commit="89abcdef")
    runs = Shown([older, whole, newer, quick])
    assert runs.main is whole
    assert runs.best("trickle", "lite poll", "cpu_us") == 70 * 0.25
    assert runs.best("plain", "lite poll", "cpu_ns") == 100 * 0.5
    assert runs.best("hold-lz4", "lite async for", "late_p99_ms") == 100 * 0.5
    assert runs.best("nonsense", "lite poll", "cpu_ns") is None
    about = pages.about(runs)
    assert "commit `abcdef12`" in about
    assert "measured in separate runs | `trickle` (2026-11-25, commit fedcba98) |" in about
    assert "01234567" not in about
    assert "89abcdef" not in about
    assert "commit `fedcba98`" in pages.family(runs, "trickle")
    assert "commit" not in pages.family(runs, "bulk")
    # A goal, too, is that of the run which its family is shown of: half, or a quarter.
    goals = goal_table(pages.goals_of(runs))
    assert "`trickle`, lite async for, age p50: at most 1 × confluent poll | 0.25 | met |" in goals
    assert "`hold-lz4`" in goals
    assert "`scaling, records" in goals


def test_goals_that_the_run_did_not_measure_are_counted_and_not_missed() -> None:
    floor = {("plain", "floor"), ("lz4", "floor"), ("zstd", "floor"), ("big", "floor")}
    run = a_run(ours=0.05, family="bulk")
    summaries = {
        key: replace(
            each, figures={name: it for name, it in each.figures.items() if name != BEYOND.key}
        )
        for key, each in run.summaries.items()
        if key not in floor
    }
    text = pages.missed_goals(Shown([replace(run, summaries=summaries)]))
    wall = [goal for goal in GOALS if goal.scenario == "plain" and goal.figure == WALL_NS]
    unknown = len(GOALS) - len(wall)
    assert text == f"All {len(wall)} benchmark goals were met. {unknown} were not measured.\n"
    table = pages.family(Shown([replace(run, summaries=summaries)]), "bulk")
    assert "| aiokafka getmany | 100 (200) | 100 (200) | – | – |" in table
    assert "| aiokafka getmany | 100 (200) | 100 (200) | 100 (200) | 20.00 |" in pages.family(
        Shown([run]), "bulk"
    )


def test_a_separate_run_names_only_versions_that_differ() -> None:
    whole = a_run()
    whole = replace(whole, versions={**whole.versions, "Kafka": "4.30", "aiokafka_lite": "1, c 2"})
    newer = replace(whole, versions={**whole.versions, "Kafka": "4.3", "aiokafka_lite": "1"})
    assert "| versions | Kafka 4.3 |" in about_run(newer, whole)
    assert "versions" not in about_run(whole, whole)


def test_tables_omit_contestants_on_uvloop() -> None:
    text = pages.family(Shown([a_run()]), "trickle")
    assert "lite poll" in text
    assert "uvloop" not in text


def test_the_broker_table_has_one_row_per_scenario_with_all_servers() -> None:
    rows = pages.broker_table(Shown([a_run()])).splitlines()[2:]
    assert len(rows) == len([each for each in CHOSEN["bench"] if each.family == "broker"])
    assert all(row.endswith("| 100 | 100 | 100 |") for row in rows)


def test_a_family_that_nobody_has_measured_says_how_to_measure_it() -> None:
    runs = Shown([a_run(family="trickle")])
    assert "results of `make bench ARGS='--scenario hold'` are not" in pages.family(runs, "hold")
    assert "ARGS='--scenario broker'" in pages.broker_ratios(runs)
    short = pages.readme_comparison(Shown([a_run(family="bulk")]))
    assert "full speed" in short
    assert "1,000 records a second" not in short
    assert "1,000 records a second: CPU" in pages.compared(runs)


def test_blocks_are_written_of_the_newest_run_and_checked(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root, results = folders
    keep(a_run(figure=100, ours=0.5), results)
    assert pages.update(root, results, is_check=True) == pages.EXIT_DIFFERS
    assert "run `make figures`" in capsys.readouterr().err
    assert (root / "README.md").read_text() == PAGE
    assert pages.update(root, results, is_check=False) == 0
    assert pages.update(root, results, is_check=True) == 0
    written = (root / "README.md").read_text()
    assert written.startswith("Text before.\n")
    assert written.endswith("Text behind: 42.\n")
    assert "| 50 ns | 100 ns | 100 ns |" in written
    assert "(2026-11-23, commit abcdef12)" in written
    assert ">50</text>" in (root / pages.PICTURE).read_text()
    assert "50.00 (100.00)" in written  # of the family
    assert "what stood here" not in written
    # By hand, and by another run: both are found.
    (root / "README.md").write_text(written.replace("| 50 ns |", "| 9 ns |"))
    assert pages.update(root, results, is_check=True) == pages.EXIT_DIFFERS
    (root / "README.md").write_text(written)
    keep(a_run(at="2026-11-24T10:00:00+00:00", figure=77), results)
    assert pages.update(root, results, is_check=True) == pages.EXIT_DIFFERS


def test_without_a_run_blocks_say_how_to_make_one(folders: tuple[Path, Path]) -> None:
    root, results = folders
    assert pages.update(root, results, is_check=False) == 0
    assert "No run is stored yet. Run `make bench`" in (root / "README.md").read_text()


def test_every_block_can_be_made_of_a_whole_run() -> None:
    runs = {"bench": Shown([a_run()]), "spark": Shown([a_run("spark")])}
    families = {each.family for each in CHOSEN["bench"]}
    for name in (*pages.BLOCKS, *(f"family {family}" for family in families)):
        text = pages.rewrite(f"<!-- figures: {name} -->\n<!-- /figures -->", runs)
        assert "are not stored" not in text, name
        assert any(character.isdigit() for character in text), name
    with pytest.raises(pages.PageError, match="there is no block 'nonsense'"):
        pages.rewrite("<!-- figures: nonsense -->\n<!-- /figures -->", runs)


def test_sparks_ranges_are_those_of_all_runs_which_are_named_beside_the_rule() -> None:
    first = a_run("spark", ours=0.25)
    second = a_run("spark", "2026-11-24T10:00:00+00:00", ours=0.5)
    runs = Shown([first, second])
    text = pages.BLOCKS["spark ranges"](runs)
    assert "the table gives the smallest and the largest speed-up" in text
    assert f"{first.label}; {second.label}" in text
    assert "| count and sum of lengths | 2.0 to 4.0 | 2.0 to 4.0 |" in text
    goals = pages.BLOCKS["spark goals"](runs)
    assert "`agg`, lite, wall: 2.6 × less than jvm | 4.00, 2.00 | met in 1 of 2 runs |" in goals


OPTIONS = {"quick": False, "keep": True, "bootstrap": None, "scenario": None, "only": None}


@pytest.mark.parametrize(
    ("given", "failures", "why"),
    [
        ({"scenario": ["plain"]}, [], "lz4, zstd, big did not run"),
        ({"scenario": ["bulk"]}, [], ""),
        ({"scenario": ["bulk"], "only": ["lite"]}, [], "--only was given"),
        ({"rounds": 1}, [], "--rounds was given"),
        ({}, [Failure("plain", "lite poll", "died")], "a contestant failed"),
        ({"quick": True}, [], ""),
    ],
)
def test_only_whole_families_without_failures_are_kept(
    given: dict[str, object],
    failures: list[Failure],
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(results.keep, "__defaults__", (tmp_path,))
    run = a_run()
    options = Namespace(**{**OPTIONS, **given})
    asked = set(options.scenario or ())
    chosen = [each for each in CHOSEN["bench"] if not asked or asked & {each.name, each.family}]
    ran = describe_run(
        "bench", run.at, MACHINE, chosen, run.summaries, is_quick=False, is_own_kafka=True
    )
    keep_run(ran, options, CHOSEN["bench"], failures)
    told = capsys.readouterr()
    assert bool(list(tmp_path.iterdir())) == (not why)
    assert (f"not kept: {why}" in told.err) if why else ("make figures" in told.out)


def test_the_pages_of_the_project_are_up_to_date() -> None:
    assert pages.main(["--check"]) == 0
    for name in pages.PAGES:
        assert "<!-- figures: " in (results.ROOT / name).read_text()
