"""Regular expressions in RE2's syntax match what RE2's would, in linear time."""

from __future__ import annotations

import re
import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokafka_lite.broker.groups.kip848 import re2

LEGAL = string.ascii_letters + string.digits + "._-"


@pytest.mark.parametrize(
    ("regex", "matching", "other"),
    [
        ("a.*", "abc", "ba"),
        ("(?i)ABC", "abc", "abx"),
        ("a(?i)b", "aB", "AB"),
        ("(?i:a)b", "Ab", "AB"),
        ("a|b|", "", "ab"),
        ("(a|b)+c{2,3}", "abcc", "abc"),
        ("(?:a|b)+?c{2}", "abcc", "abccc"),
        ("^t-\\d+$", "t-12", "t-"),
        ("\\At\\z", "t", "tt"),
        ("[[:alpha:]]+", "abc", "a1"),
        ("[[:^alpha:]]+", "12", "a1"),
        ("[^a-c.]+", "xyz", "x.z"),
        ("[]a]+", "a", "b"),
        ("[a-]+", "a-", "b"),
        ("[\\d_]+", "1_", "a"),
        ("\\Qa.b\\E", "a.b", "axb"),
        ("(?P<n>x)(?<m>y)", "xy", "yx"),
        ("foo\\b.*", "foo-1", "foo1"),
        ("foo\\B.*", "foo1", "foo-1"),
        ("a{1,}", "aaa", ""),
        ("a{2,2}", "aa", "a"),
        ("a{0}b", "b", "ab"),
        ("a{1000}", "a" * 1000, "a" * 999),
        ("a{1,x}", "a{1,x}", "a"),
        ("a{01}", "a{01}", "a"),
        ("\\pL+\\p{Nd}\\PL", "ab1-", "ab1a"),
        ("\\p{Any}+", "a-1", ""),
        ("\\p{Latin}+", "ab", "a1"),
        ("\\p{Common}+", "1-", "1a"),
        ("\\p{Greek}?", "", "\0"),
        ("\\D+", "a-", "a1"),
        ("\\p{^L}", "1", "a"),
        ("\\x41\\x{42}\\103", "ABC", "abc"),
        ("a\\.b", "a.b", "a-b"),
        ("(a*)*b", "aab", "aa"),
        ("(|a)+", "aa", "b"),
        ("(?s).\\w\\W\\S", "xa-b", "xaab"),
        ("(?s)a.b", "a\nb", "ab"),
        ("a.b", "a-b", "a\nb"),
        ("(?mU)a", "a", "A"),
        ("(?i)a(?-i)b", "Ab", "AB"),
        ("(?i)[a-c]+", "aBc", "d"),
        ("[a-c]+", "abc", "abz"),
        ("[a-a]", "a", "b"),
        ("[b]", "b", "\0"),
        ("[[:alpha:][:digit:]]+", "a1", "a-"),
        ("\\Q.\\Ea", ".a", "."),
        ("a\\b", "a", "ab"),
        ("\\bab", "ab", "-ab"),
        ("a\\n?", "a", "an"),
        ("\\60", "0", "6"),
        ("\\1034", "C4", "C"),
        ("\\0?", "\0", "0"),
        ("", "", "a"),
        ("é*a", "a", "e"),
    ],
)
def test_whole_names_match(regex: str, matching: str, other: str) -> None:
    pattern = re2.compile(regex)
    assert pattern.matches(matching)
    assert not pattern.matches(other)


literals = st.sampled_from(["a", "b", "-", "\\.", ".", "[ab]", "[^a]", "\\w", "\\d"])
regexes = st.recursive(
    literals,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        inner.map("(?:{})*".format),
        inner.map("(?:{})+".format),
        inner.map("(?:{})?".format),
        inner.map("(?:{}){{1,2}}".format),
    ),
    max_leaves=6,
)


@given(regexes, st.text(alphabet="ab1.-", max_size=6))
def test_what_python_understands_too_matches_the_same(regex: str, name: str) -> None:
    assert re2.compile(regex).matches(name) == bool(re.fullmatch(regex, name))


@given(st.text(alphabet="ab(){}[]|*+?^$\\.,-12<>P:iQE", max_size=12))
def test_whatever_the_text_it_is_compiled_or_refused(regex: str) -> None:
    try:
        re2.compile(regex).matches("a-1")
    except re2.RegexError:
        pass


def test_nothing_backtracks() -> None:
    pattern = re2.compile("(a*)*(a*)*(a|a)*b")
    begin = time.monotonic()
    assert not pattern.matches("a" * 249)
    assert time.monotonic() - begin < 5  # Python's takes longer than the sun will last


@pytest.mark.parametrize(
    ("regex", "why"),
    [
        ("(?P<>a)", "invalid named capture"),
        ("(?P<a b>c)", "invalid named capture"),
        ("(?-)a", "invalid or unsupported Perl syntax"),
        ("a{2,1}", "invalid repeat count"),
        ("a{0,1001}", "invalid repeat count"),
        ("\\x4", "invalid escape sequence"),
        ("\\x{}", "invalid escape sequence"),
        ("\\x{41", "invalid escape sequence"),
        ("\\x{110000}", "invalid escape sequence"),
        ("\\p", "invalid character class range"),
        ("\\p{L", "invalid character class range"),
        ("[a-\\", "trailing backslash at end of expression"),
        ("[a-", "missing closing ]"),
        ("[[::]]", "invalid character class range"),
    ],
)
def test_regular_expressions_that_are_none_are_refused(regex: str, why: str) -> None:
    with pytest.raises(re2.RegexError, match=re.escape(why)):
        re2.compile(regex)


def test_largest_code_point_may_be_written_with_zeros_in_front() -> None:
    assert re2.compile("\\x{0010FFFF}").matches(chr(0x10FFFF)) is False


def test_groups_may_be_nested_as_deep_as_re2_allows() -> None:
    assert re2.compile("(" * 100 + "a" + ")" * 100).matches("a")
    with pytest.raises(re2.RegexError):
        re2.compile("(" * 101 + "a" + ")" * 101)


@pytest.mark.parametrize("regex", ["(a{1000}){1000}", "((a{100}){100}){100}", "(" * 5_000])
def test_regular_expressions_that_grow_too_large_are_refused(regex: str) -> None:
    with pytest.raises(re2.RegexError):
        re2.compile(regex)


def test_each_legal_character_stands_for_itself_when_quoted() -> None:
    for char in LEGAL:
        assert re2.compile(f"\\Q{char}\\E").matches(char)
