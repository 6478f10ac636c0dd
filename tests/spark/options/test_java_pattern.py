"""Patterns of Java, as Python reads them; that Java finds the same is in test_options_alike."""

from __future__ import annotations

import pytest

from aiokafka_lite.spark.java_pattern import JavaPatternError, compile_java
from tests.spark.options.patterns import BROKEN, NAMES, NOT_HERE, PATTERNS
from tests.support.for_each import for_each


@for_each(PATTERNS)
def test_patterns_find_some_names_and_not_others(pattern: str) -> None:
    found = [name for name in NAMES if compile_java(pattern).search(name)]
    assert found
    assert found != NAMES


@for_each([*BROKEN, *NOT_HERE])
def test_what_is_broken_or_cannot_be_had_is_an_error(pattern: str) -> None:
    with pytest.raises(JavaPatternError):
        compile_java(pattern)


@for_each(
    [
        (r"^\p{Lower}+\p{Digit}$", "flights1", True),
        ("(?i)^FLIGHTS$", "flights", True),
        ("(?i:b)c", "Bc", True),
        ("(?i:b)c", "BC", False),
        (r"\Qa.b\E", "axb", False),
        (r"\Qa.b", "a.b", True),
        (r"^\Qa.\E+$", "a..", True),
        (r"^(?!test\.)\w+\z", "flights_", True),
        (r"(?i)^\p{Upper}+$", "flights", True),  # any letter then, as from Java 15 on
    ]
)
def test_pattern_of_java_means_what_it_means_in_java(
    pattern: str, name: str, is_found: bool
) -> None:
    assert (compile_java(pattern).search(name) is not None) is is_found


def test_error_says_what_is_wrong_and_where() -> None:
    with pytest.raises(JavaPatternError, match=r"share, not `\\p{Greek}b` at character 4"):
        compile_java(r"abc\p{Greek}b")
    with pytest.raises(JavaPatternError, match="fixed-width"):
        compile_java(r"(?<=a+)b")
