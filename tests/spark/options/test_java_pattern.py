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
        ("[a-z&&[^m-p]]+$", "flights", True),
        ("^[a-z&&[^m-p]]+$", "planes", False),
        ("^[^a-y&&[^b]]+$", "zb", True),  # the whole class is negated
        (r"^\p{Lower}+\P{Lower}$", "flights1", True),
        ("(?i)^FLIGHTS$", "flights", True),
        ("a(?i)b|c", "C", True),  # the flag holds in the branches that follow
        ("(?:(?i)b)c", "Bc", True),
        ("(?:(?i)b)c", "BC", False),  # and ends with its group
        ("(?i)a(?-i)b", "AB", False),
        ("^a*+ab", "aab", False),  # what is possessed is not given back
        ("^(?>a|ab)c", "abc", False),
        ("^(?:ab?+)+c", "ababc", True),
        (r"\Qa.b\E", "axb", False),
        (r"\Qa.b", "a.b", True),
        (r"^(a)(?<x>b)\2\k<x>$", "abbb", True),
        ("(?x) fl ights # all of them", "flights", True),
        (r"(?x) a\ b", "ab", False),
        (r"\x66\u006c\x{69}\0147", "flig", True),
        (r"^[\w&&\D]+\z", "flights_", True),
        (r"(?i)^\p{Upper}+\p{Lu}$", "flights", True),  # any letter then, as from Java 15 on
        (r"(?i)\P{Upper}", "flights", False),
        (r"^*\b?flights$+", "flights", True),  # Java repeats anchors
    ]
)
def test_pattern_of_java_means_what_it_means_in_java(
    pattern: str, name: str, is_found: bool
) -> None:
    assert (compile_java(pattern).search(name) is not None) is is_found


def test_error_says_what_is_wrong_and_where() -> None:
    with pytest.raises(JavaPatternError, match="'Greek' is not supported, at character 10"):
        compile_java(r"\p{Greek}")
    with pytest.raises(JavaPatternError, match="fixed-width"):
        compile_java("(?<=a+)b")
