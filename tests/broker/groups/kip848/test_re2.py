"""Regular expressions that RE2 and `re` share match the same names as `re`, in linear time."""

from __future__ import annotations

import re
import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokafka_lite.broker.groups.kip848 import re2
from tests.support.for_each import for_each

LEGAL = string.ascii_letters + string.digits + "._-"


@for_each(
    [
        ("a.*", "abc", "ba"),
        ("(?i)ABC", "abc", "abx"),
        ("(?i)[a-c]+", "aBc", "d"),
        ("(?i)[^a]", "b", "A"),
        ("a|b|", "", "ab"),
        ("(a|b)+c{2,3}", "abcc", "abc"),
        ("(?:a|b)+?c{2}", "abcc", "abccc"),
        ("^t-\\d+$", "t-12", "t-"),
        ("\\At", "t", "tt"),
        ("t|x$y", "t", "xy"),
        ("t$|x", "t", "t\n"),
        ("t|x^y", "t", "xy"),
        ("[^a-c.]+", "xyz", "x.z"),
        ("[a-]+", "a-", "b"),
        ("[\\d_]+", "1_", "a"),
        ("foo\\b.*", "foo-1", "foo1"),
        ("foo\\B.*", "foo1", "foo-1"),
        ("a\\b", "a", "ab"),
        ("\\bab", "ab", "-ab"),
        ("a{1,}", "aaa", ""),
        ("a{2,}?", "aaa", "a"),
        ("a{2,2}", "aa", "a"),
        ("a{0}b", "b", "ab"),
        ("a{999}", "a" * 999, "a" * 998),
        ("\\D+", "a-", "a1"),
        ("\\w+", "a1_", "é"),
        ("a\\.b", "a.b", "a-b"),
        ("(a*)*b", "aab", "aa"),
        ("(|a)+", "aa", "b"),
        ("(?:^)*a", "a", "b"),
        (".\\w\\W\\S", "xa-b", "xaab"),
        ("a.b", "a-b", "a\nb"),
        ("", "", "a"),
        ("()", "", "a"),
    ]
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


@pytest.mark.filterwarnings("error")
@given(st.text(alphabet="ab(){}[]|*+?^$\\.,-12<>P:iQE", max_size=12))
def test_whatever_the_text_it_is_compiled_or_refused(regex: str) -> None:
    try:
        re2.compile(regex).matches("a-1")
    except re2.RegexError:
        pass


def test_nothing_backtracks() -> None:
    begin = time.monotonic()
    for regex in ("(a*)*(a*)*(a|a)*b", "(a?){249}b", ".*-.*-.*-.*-.*-.*b"):
        assert not re2.compile(regex).matches("a-" * 124)
        assert not re2.compile(regex).matches("a" * 249)
    assert time.monotonic() - begin < 5  # Python's takes longer than the sun will last


def test_the_largest_expressions_match_a_name_soon_and_in_little_memory() -> None:
    for regex in ("(.?){660}", ".{1,999}", "(.*a?){390}"):
        pattern = re2.compile(regex)
        began_s = time.thread_time()
        assert pattern.matches("orders-by-country")
        assert time.thread_time() - began_s < 0.05
        assert (pattern._after.cache_info().maxsize or 0) * 1_950 < 1_000_000


@for_each(
    [
        ("a{2,1}", "min repeat greater than max repeat at position 2"),
        ("(?i)(a", "missing ), unterminated subpattern at position 4"),
        ("a{3}{1000}", "not `{1000}` at position 4"),
        ("a{02}", "not `{02}` at position 1"),
        ("(?i)\\p{Latin}\\p{L}", "not `\\p{Latin}\\p{` at position 4"),
        ("(?P<n>a)", "not `(?P<n>a)` at position 0"),
        ("[[:alpha:]]", "not `[[:alpha:]]` at position 0"),
        ("a++", "not `++` at position 1"),
        ("é", "not `é` at position 0"),
        ("(a{999}){999}", "it is too large"),
        ("((){999}){999}", "it is too large"),
        ("(.?){999}(.?){999}(.?){999}", "it is too large"),
        ("a" * 2_001, "it is too large"),
        ("(" * 101 + "a" + ")" * 101, "it has more than 100 nested groups"),
        ("(" * 1_500, "it has more than 100 nested groups"),
    ]
)
def test_other_regular_expressions_are_refused(regex: str, why: str) -> None:
    with pytest.raises(re2.RegexError, match=re.escape(why)):
        re2.compile(regex)


def test_groups_may_be_nested() -> None:
    assert re2.compile("(" * 100 + "a" + ")" * 100).matches("a")


def test_each_legal_character_stands_for_itself_when_escaped() -> None:
    for char in LEGAL:
        assert re2.compile(re.escape(char)).matches(char)
