"""What README says of the code and of its tests is so."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from aiokafka_lite.broker.handlers.base import HANDLERS, load_handlers
from aiokafka_lite.protocol.registry import API_NAMES

load_handlers()

TESTS = Path(__file__).parents[1]
README = (TESTS.parent / "README.md").read_text()
MOST_PICTURE_BYTES = 60_000
# By the first words of what may be relied on: tests that run on both kinds of broker, or, where
# they say so, on real ones that they start.
RELIED_ON = {
    "Reads can be cancelled.": [
        "consumer/test_cancellation.py::test_a_get_cancelled_at_any_await_loses_no_record",
        "consumer/test_cancellation.py::test_a_storm_of_timeouts_loses_nothing",
    ],
    "Auto-commit excludes the record being processed.": [
        "consumer/test_delivery.py::test_auto_commit_leaves_out_what_is_being_processed",
        "consumer/test_delivery.py::test_a_clean_exit_commits_all_that_was_handed_out",
        "consumer/test_delivery.py::test_a_body_that_fails_leaves_its_record_to_be_read_again",
    ],
    "`stop()` returns within its timeout.": [
        "consumer/test_delivery.py::test_stop_says_what_it_could_not_commit",
        "consumer/test_stop.py::"
        "test_a_stop_cancelled_at_any_await_leaves_nothing_and_the_next_tells_the_rest",
    ],
    "Errors reach your code.": [
        "consumer/test_failures.py::test_a_task_that_died_is_raised_by_every_get_until_the_stop",
        "consumer/test_bad_records.py::test_every_get_goes_on_behind_bad_records",
        "consumer/test_bad_records.py::test_dead_letters_are_written_before_the_position_passes",
        "consumer/test_deserialising.py::test_every_get_deserialises",
    ],
    "A rebalance waits for your work.": [
        "consumer/group/test_finishing_work.py::test_a_rebalance_repeats_nothing_that_is_worked_on",
        "consumer/group/test_kip848.py::test_a_rebalance_does_not_repeat_what_is_in_hand",
        "consumer/group/test_cooperative.py::"
        "test_only_what_moves_is_revoked_through_three_rebalances",
    ],
    "Broker failures lose no records.": [
        "chaos/test_real.py::"
        "test_each_of_three_brokers_is_killed_once_and_no_record_is_lost_or_repeated",
    ],
    "The consumer reports its own health.": [
        "consumer/test_health.py::test_before_the_start_while_it_runs_and_after_the_stop",
        "consumer/test_explain.py::test_the_end_of_the_log",
        "consumer/test_events.py::test_a_rebalance_is_told_by_what_is_revoked_and_assigned",
        "consumer/test_metrics.py::test_records_are_counted_however_they_are_read",
    ],
}


def runs_on_a_real_kafka(path: Path, name: str) -> bool:
    """Whether a test is there, and asks for both brokers or is marked as one for a real one."""
    tree = ast.parse(path.read_text())
    is_marked = any(
        isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "pytestmark"
        and "real_kafka" in ast.unparse(node.value)
        for node in tree.body
    )
    for node in tree.body:
        if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef) and node.name == name:
            return is_marked or "kafka" in {each.arg for each in node.args.args}
    return False


def test_each_thing_to_rely_on_has_tests_on_a_real_kafka() -> None:
    section = README.partition("## What you can rely on")[2].partition("\n## ")[0]
    assert re.findall(r"^- \*\*(.*?)\*\*", section, re.M) == list(RELIED_ON)
    missing = [
        test
        for tests in RELIED_ON.values()
        for test in tests
        if not runs_on_a_real_kafka(TESTS / test.partition("::")[0], test.partition("::")[2])
    ]
    assert missing == []


def test_pictures_are_small_have_a_text_and_load_nothing() -> None:
    pictures = re.findall(r"!\[([^\]]*)\]\((?!https:)([^)]*)\)", README)
    assert len(pictures) == 3
    for text, name in pictures:
        path = TESTS.parent / name
        assert len(text) > 30
        assert path.stat().st_size <= MOST_PICTURE_BYTES
        assert b"url(http" not in path.read_bytes().replace(b'"', b"")


def test_as_many_apis_as_are_told_are_spoken() -> None:
    text = (TESTS.parent / "CHANGELOG.md").read_text()
    assert re.findall(r"(\d+) APIs", text) == [str(len(API_NAMES))]


def test_the_guide_tells_no_count_of_apis_that_could_be_wrong() -> None:
    guide = TESTS.parent.joinpath("docs").glob("*.md")
    assert not [page.name for page in guide if re.search(r"\d+ APIs", page.read_text())]


def test_what_the_guide_says_the_broker_lacks_is_not_there() -> None:
    guide = (TESTS.parent / "docs" / "testing.md").read_text()
    section = guide[guide.index("**Not all requests.**") :].partition("\n- **")[0]
    for word in ("quotas", "ACLs", "reassignments", "elections", "quorum"):
        assert word in section
        stem = word[:-1].lower()
        assert not [key for key in HANDLERS if stem in API_NAMES[key].lower()]
    missing = {API_NAMES[key] for key in set(API_NAMES) - set(HANDLERS)}
    # The embedded broker does not have share groups yet.
    assert {name for name in missing if "Share" not in name} == {"DescribeLogDirs"}
