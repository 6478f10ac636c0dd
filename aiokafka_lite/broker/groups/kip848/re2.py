"""Regular expressions as Kafka's brokers understand them: RE2's syntax, in linear time.

A member of KIP-848 sends its subscription as a regular expression, which the coordinator searches
the topics with (Java: com.google.re2j). Python's `re` has another syntax, and backtracks: a client
could hold the event loop for ever. Here an expression becomes a nondeterministic automaton, which
is made deterministic as far as names need it.

Topics' names are ASCII, so classes are sets of the 128 ASCII characters; other characters in an
expression are legal and match nothing. Nothing is captured.
"""

from __future__ import annotations

import functools
from typing import Final, NamedTuple

from aiokafka_lite.broker.groups.kip848.re2_parser import (
    WORD,
    Alternation,
    Assertion,
    Chars,
    Node,
    RegexError,
    Repetition,
    Sequence,
    parse,
)

__all__ = ["Pattern", "RegexError", "compile"]

MAX_INSTRUCTIONS: Final = 20_000
MAX_CACHED_STEPS: Final = 10_000
END: Final = ""


class _Read(NamedTuple):
    """Go on to the next instruction if the next character is one of these."""

    chars: int


class _Jump(NamedTuple):
    """Go on at all of these instructions."""

    targets: tuple[int, ...]


class _Check(NamedTuple):
    """Go on if this is so at this place."""

    assertion: Assertion


_Instruction = _Read | _Jump | _Check


class Pattern:
    """A regular expression, ready to match whole names."""

    def __init__(self, program: tuple[_Instruction, ...]) -> None:
        self._program = program
        self._after = functools.lru_cache(MAX_CACHED_STEPS)(self._find_after)

    def matches(self, text: str) -> bool:
        """Say whether all of a text matches."""
        states = frozenset({0})
        # What matters of the character before is only whether it belongs to a word.
        before = END
        for char in text:
            states = self._after(states, before, char)
            if not states:
                return False
            before = "w" if _is_word(char) else "-"
        return bool(self._after(states, before, END))

    def _find_after(self, states: frozenset[int], before: str, char: str) -> frozenset[int]:
        """Return the states after a character; after the end, whether there is any is the match."""
        seen: set[int] = set()
        waiting = list(states)
        after: set[int] = set()
        bit = 1 << ord(char) if char else 0
        while waiting:
            place = waiting.pop()
            if place in seen:
                continue
            seen.add(place)
            if place == len(self._program):
                if char == END:
                    after.add(place)
                continue
            match self._program[place]:
                case _Read(chars):
                    if chars & bit:
                        after.add(place + 1)
                case _Jump(targets):
                    waiting += targets
                case _Check(assertion):
                    if _holds(assertion, before, char):
                        waiting.append(place + 1)
        return frozenset(after)


def compile(regex: str) -> Pattern:
    """Compile a regular expression of RE2's syntax.

    Raises:
        RegexError: It is none, or one of a size that RE2 would refuse.
    """
    compiler = _Compiler()
    compiler.add(parse(regex))
    return Pattern(tuple(compiler.program))


class _Compiler:
    """Writes the program of a syntax tree; after its last instruction the text has matched."""

    def __init__(self) -> None:
        self.program: list[_Instruction] = []

    def add(self, node: Node) -> None:
        if len(self.program) > MAX_INSTRUCTIONS:
            raise RegexError("invalid repeat count")
        match node:
            case Chars(mask):
                self.program.append(_Read(mask))
            case Assertion():
                self.program.append(_Check(node))
            case Sequence(parts):
                for part in parts:
                    self.add(part)
            case Alternation(parts):
                self._add_alternation(parts)
            case Repetition():
                self._add_repetition(node)

    def _add_alternation(self, parts: tuple[Node, ...]) -> None:
        fork = self._reserve()
        starts, ends = [], []
        for part in parts:
            starts.append(len(self.program))
            self.add(part)
            ends.append(self._reserve())
        self.program[fork] = _Jump(tuple(starts))
        for end in ends:
            self.program[end] = _Jump((len(self.program),))

    def _add_repetition(self, node: Repetition) -> None:
        for _ in range(node.least):
            self.add(node.part)
        if node.most is None:
            fork = self._reserve()
            self.add(node.part)
            self.program.append(_Jump((fork,)))
            self.program[fork] = _Jump((fork + 1, len(self.program)))
            return
        forks = []
        for _ in range(node.most - node.least):
            forks.append(self._reserve())
            self.add(node.part)
        for fork in forks:
            self.program[fork] = _Jump((fork + 1, len(self.program)))

    def _reserve(self) -> int:
        self.program.append(_Jump(()))
        return len(self.program) - 1


def _holds(assertion: Assertion, before: str, char: str) -> bool:
    is_boundary = (before == "w") != (char != END and _is_word(char))
    match assertion:
        case Assertion.BEGIN:
            return before == END
        case Assertion.END:
            return char == END
        case Assertion.BOUNDARY:
            return is_boundary
        case Assertion.NO_BOUNDARY:
            return not is_boundary


def _is_word(char: str) -> bool:
    return bool(WORD >> ord(char) & 1)
