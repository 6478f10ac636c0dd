"""Matches names with regular expressions in linear time, as Kafka does with RE2.

The syntax is what RE2 and Python's `re` share (`protocol.regex`). `re` backtracks, so a client's
`(a*)*b` could block the event loop for years. Here `re` therefore matches only single characters
and anchors in a nondeterministic automaton.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Final, TypeAlias

from aiokafka_lite.protocol.regex import IGNORE_CASE, tokens_of

__all__ = ["Pattern", "RegexError", "compile"]

# A step takes about 0.5 us for each state that it is in: `x{1,999}` has 2,000.
MAX_STATES: Final = 2_000
MAX_DEPTH: Final = 100
# Of all cached steps of a pattern, at most.
MAX_CACHED_STATES: Final = 1_000_000
_SHOWN_CHARACTERS: Final = 12


class RegexError(ValueError):
    """A regular expression is invalid, too large, or has syntax that is not supported."""


class _State:
    """A state of the automaton."""

    def __init__(self, atom: re.Pattern[str] | None, *following: _State) -> None:
        # Matches one character or an anchor. Without it, the next states are entered at once.
        self.atom = atom
        self.following = [*following]  # the next states, empty only for the last state


# Returns the first state of a part of an expression, given the state that follows the part.
_Part: TypeAlias = Callable[[_State], _State]


class Pattern:
    def __init__(self, first: _State, state_count: int) -> None:
        self._first = first
        self._after = functools.lru_cache(MAX_CACHED_STATES // state_count)(self._find_after)

    def matches(self, text: str) -> bool:
        states = frozenset({self._first})
        before = ""
        for char in (*text, ""):
            states = self._after(states, before, char)
            if not states:
                return False
            before = char
        return True

    def _find_after(self, states: frozenset[_State], before: str, char: str) -> frozenset[_State]:
        """Return the states after a character. After the text, only the last state remains."""
        text, place = before + char, len(before)
        seen: set[_State] = set()
        waiting = list(states)
        after: set[_State] = set()
        while waiting:
            state = waiting.pop()
            if state in seen:
                continue
            seen.add(state)
            if not state.following:
                if not char:
                    after.add(state)
            elif state.atom is None:
                waiting += state.following
            elif found := state.atom.match(text, place):
                if found.end() > place:
                    after.update(state.following)
                else:
                    waiting += state.following
        return frozenset(after)


def compile(regex: str) -> Pattern:
    body = regex.removeprefix(IGNORE_CASE)
    flags = re.ASCII if body == regex else re.ASCII | re.IGNORECASE
    if len(body) > MAX_STATES:
        raise RegexError("it is too large")
    tokens, rest = tokens_of(body)
    if rest:
        raise RegexError(
            "the embedded broker supports only syntax that RE2 and Python's `re` share, not "
            f"`{rest[:_SHOWN_CHARACTERS]}` at position {len(regex) - len(rest)}"
        )
    depth = 0
    for symbol in tokens:
        depth += symbol.startswith("(") - (symbol == ")")
        if depth > MAX_DEPTH:
            raise RegexError(f"it has more than {MAX_DEPTH} nested groups")
    try:
        re.compile(regex, re.ASCII)
    except re.error as error:
        raise RegexError(str(error)) from None
    compiler = _Compiler(tokens, flags)
    return Pattern(compiler.alternation()(_State(None)), compiler.state_count)


class _Compiler:
    def __init__(self, tokens: list[str], flags: re.RegexFlag) -> None:
        self._tokens = iter(tokens)
        self._flags = flags
        self.state_count = 0

    def alternation(self) -> _Part:
        parts: list[_Part] = []
        branches = [parts]
        for symbol in self._tokens:
            if symbol == ")":
                break
            if symbol == "|":
                parts = []
                branches.append(parts)
            elif symbol in ("(", "(?:"):
                parts.append(self.alternation())
            elif symbol[0] in "*+?{":
                parts.append(self._repetition(parts.pop(), *_counts(symbol)))
            else:
                # "$" would also match before a line feed.
                atom = re.compile(r"\Z" if symbol == "$" else symbol, self._flags)
                parts.append(functools.partial(self._state, atom))
        return lambda after: self._state(None, *(_in_order(parts, after) for parts in branches))

    def _repetition(self, part: _Part, least: int, most: int | None) -> _Part:
        def link(after: _State) -> _State:
            if most is None:
                first = self._state(None, after)
                first.following.append(part(first))
            else:
                first = after
                for _ in range(most - least):
                    first = self._state(None, part(first), after)
            for _ in range(least):
                first = part(first)
            return first

        return link

    def _state(self, atom: re.Pattern[str] | None, *following: _State) -> _State:
        self.state_count += 1
        if self.state_count > MAX_STATES:
            raise RegexError("it is too large")
        return _State(atom, *following)


def _in_order(parts: list[_Part], after: _State) -> _State:
    for part in reversed(parts):
        after = part(after)
    return after


def _counts(quantifier: str) -> tuple[int, int | None]:
    """Return a quantifier's minimum and maximum, if it has one."""
    if quantifier[0] in "*+?":
        return int(quantifier[0] == "+"), 1 if quantifier[0] == "?" else None
    least, comma, most = quantifier.strip("{}?").partition(",")
    return int(least), int(most) if most else None if comma else int(least)
