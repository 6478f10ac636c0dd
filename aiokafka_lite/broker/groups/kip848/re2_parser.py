"""The syntax of RE2: from a regular expression to its tree.

Errors have the words of Java's port (com.google.re2j.Parser), which reach clients by way of Kafka.
Greedy and lazy repetition match the same whole names, so laziness is read and forgotten.
"""

from __future__ import annotations

import enum
import string
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

MAX_REPEAT: Final = 1_000
MAX_DEPTH: Final = 100
MAX_CODE_POINT: Final = 0x10FFFF

INVALID_ESCAPE: Final = "invalid escape sequence"
INVALID_RANGE: Final = "invalid character class range"
INVALID_NAME: Final = "invalid named capture"
INVALID_PERL: Final = "invalid or unsupported Perl syntax"
INVALID_REPEAT: Final = "invalid nested repetition operator"
INVALID_REPEAT_COUNT: Final = "invalid repeat count"
DUPLICATE_NAME: Final = "duplicate capture group name"
MISSING_BRACKET: Final = "missing closing ]"
MISSING_PAREN: Final = "missing closing )"
TOO_MANY_PARENS: Final = "regexp/syntax: internal error"
MISSING_ARGUMENT: Final = "missing argument to repetition operator"
TRAILING_BACKSLASH: Final = "trailing backslash at end of expression"


class RegexError(ValueError):
    """A regular expression breaks the rules.

    Attributes:
        description: What is wrong, in RE2's words.
    """

    def __init__(self, description: str) -> None:
        super().__init__(description)
        self.description = description


def mask_of(chars: Iterable[str]) -> int:
    """Return a set of ASCII characters as the bits of a number; others are left out."""
    mask = 0
    for char in chars:
        if char.isascii():
            mask |= 1 << ord(char)
    return mask


_ASCII: Final = tuple(map(chr, range(128)))
ALL: Final = mask_of(_ASCII)
NEWLINE: Final = mask_of("\n")
WORD: Final = mask_of(string.ascii_letters + string.digits + "_")
_PERL_CLASSES: Final[Mapping[str, int]] = {
    "d": mask_of(string.digits),
    "s": mask_of("\t\n\f\r "),
    "w": WORD,
}
_POSIX_CLASSES: Final[Mapping[str, int]] = {
    "alnum": mask_of(string.ascii_letters + string.digits),
    "alpha": mask_of(string.ascii_letters),
    "ascii": ALL,
    "blank": mask_of("\t "),
    "cntrl": mask_of([*map(chr, range(32)), "\x7f"]),
    "digit": mask_of(string.digits),
    "graph": mask_of(map(chr, range(0x21, 0x7F))),
    "lower": mask_of(string.ascii_lowercase),
    "print": mask_of(map(chr, range(0x20, 0x7F))),
    "punct": mask_of(string.punctuation),
    "space": mask_of("\t\n\v\f\r "),
    "upper": mask_of(string.ascii_uppercase),
    "word": WORD,
    "xdigit": mask_of(string.hexdigits),
}
_CONTROLS: Final[Mapping[str, str]] = {
    "a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
}  # fmt: skip
_CATEGORIES: Final = (
    "C Cc Cf Co Cs L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps S Sc Sk Sm So "
    "Z Zl Zp Zs "
)
# Scripts besides Latin and Common have no ASCII characters: these are the widespread ones.
_OTHER_SCRIPTS: Final = (
    "Arabic Armenian Bengali Bopomofo Cherokee Coptic Cyrillic Devanagari Ethiopic Georgian Greek "
    "Gujarati Gurmukhi Han Hangul Hebrew Hiragana Inherited Kannada Katakana Khmer Lao Malayalam "
    "Mongolian Myanmar Oriya Runic Sinhala Syriac Tamil Telugu Thaana Thai Tibetan "
)


# --- The tree ---------------------------------------------------------------------------------
class Assertion(enum.Enum):
    """What has to be so at a place. Names have one line: ^ and $ stand for its ends."""

    BEGIN = enum.auto()
    END = enum.auto()
    BOUNDARY = enum.auto()
    NO_BOUNDARY = enum.auto()


@dataclass(frozen=True)
class Chars:
    """One character of a set."""

    mask: int


@dataclass(frozen=True)
class Sequence:
    """One after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Alternation:
    """Any of these."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Repetition:
    """So many times; without a limit if `most` is None."""

    part: Node
    least: int
    most: int | None


Node: TypeAlias = "Chars | Assertion | Sequence | Alternation | Repetition"


# --- The parser -------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Flags:
    ignores_case: bool = False
    dot_takes_newline: bool = False


def parse(regex: str) -> Node:
    """Return the tree of a regular expression.

    Raises:
        RegexError: It is none.
    """
    return _Parser(regex).whole()


class _Parser:
    """Reads from the left, one expression only."""

    def __init__(self, regex: str) -> None:
        self._regex = regex
        self._at = 0
        self._names: set[str] = set()

    def whole(self) -> Node:
        tree = self._alternation(_Flags(), depth=0)
        if self._at < len(self._regex):
            raise RegexError(TOO_MANY_PARENS)
        return tree

    def _alternation(self, flags: _Flags, *, depth: int) -> Node:
        """Read up to the end or a closing parenthesis, which is left there."""
        if depth > MAX_DEPTH:
            raise RegexError(INVALID_REPEAT_COUNT)
        branches: list[Node] = []
        parts: list[Node] = []
        has_repeated = False
        while self._at < len(self._regex) and not self._sees(")"):
            counts = self._repetition()
            if counts is not None:
                if has_repeated:
                    raise RegexError(INVALID_REPEAT)
                if not parts:
                    raise RegexError(MISSING_ARGUMENT)
                parts.append(Repetition(parts.pop(), *counts))
                has_repeated = True
                continue
            has_repeated = False
            if self._take("|"):
                branches.append(Sequence(tuple(parts)))
                parts = []
            elif self._take("("):
                inner = self._group_flags(flags) if self._take("?") else flags
                if self._regex[self._at - 1] == ")":
                    flags = inner  # (?i) counts from here to the end of what it stands in
                    continue
                parts.append(self._alternation(inner, depth=depth + 1))
                if not self._take(")"):
                    raise RegexError(MISSING_PAREN)
            elif self._take("\\Q"):
                quoted, _, rest = self._regex[self._at :].partition("\\E")
                self._at = len(self._regex) - len(rest)
                parts += [self._literal(char, flags) for char in quoted]
            else:
                parts.append(self._atom(flags))
        last = Sequence(tuple(parts))
        return Alternation((*branches, last)) if branches else last

    def _repetition(self) -> tuple[int, int | None] | None:
        """Read a repetition operator, if there is one."""
        counts: tuple[int, int | None] | None = None
        if self._take("*"):
            counts = (0, None)
        elif self._take("+"):
            counts = (1, None)
        elif self._take("?"):
            counts = (0, 1)
        elif self._sees("{"):
            counts = self._counts()
        if counts is not None:
            self._take("?")
        return counts

    def _counts(self) -> tuple[int, int | None] | None:
        """Read {2}, {2,} or {2,3}; whatever else begins with a brace is literal."""
        end = self._regex.find("}", self._at)
        low, comma, high = self._regex[self._at + 1 : max(end, self._at)].partition(",")
        if not (_is_number(low) and (_is_number(high) or not high)):
            return None
        least = int(low)
        most = int(high) if high else None if comma else least
        if least > MAX_REPEAT or (most is not None and not least <= most <= MAX_REPEAT):
            raise RegexError(INVALID_REPEAT_COUNT)
        self._at = end + 1
        return least, most

    def _group_flags(self, flags: _Flags) -> _Flags:
        """Read what follows "(?": a name, or flags up to ":" or ")"."""
        if self._take("P<") or self._take("<"):
            name, bracket, _ = self._regex[self._at :].partition(">")
            is_legal = bool(name) and all(WORD & mask_of(char) for char in name)
            if not (bracket and is_legal):
                raise RegexError(INVALID_NAME)
            if name in self._names:
                raise RegexError(DUPLICATE_NAME)
            self._names.add(name)
            self._at += len(name) + 1
            return flags
        is_set = is_complete = True
        while self._at < len(self._regex):
            char = self._next()
            if char in ":)" and is_complete:
                return flags
            if char == "-" and is_set:
                is_set = is_complete = False
                continue
            if char == "i":
                flags = _Flags(is_set, flags.dot_takes_newline)
            elif char == "s":
                flags = _Flags(flags.ignores_case, is_set)
            elif char not in "mU":
                break
            is_complete = True
        raise RegexError(INVALID_PERL)

    def _atom(self, flags: _Flags) -> Node:
        char = self._next()
        match char:
            case "^":
                return Assertion.BEGIN
            case "$":
                return Assertion.END
            case ".":
                return Chars(ALL if flags.dot_takes_newline else ALL & ~NEWLINE)
            case "[":
                return self._bracketed(flags)
            case "\\":
                return self._escaped(flags)
        return self._literal(char, flags)

    def _literal(self, char: str, flags: _Flags) -> Chars:
        chars = (char.lower(), char.upper()) if flags.ignores_case else (char,)
        return Chars(mask_of(one for one in chars if len(one) == 1))

    def _escaped(self, flags: _Flags) -> Node:
        for letter, assertion in _ASSERTIONS.items():
            if self._take(letter):
                return assertion
        mask = self._class_escape()
        if mask is not None:
            return Chars(mask)
        return self._literal(self._character_escape(), flags)

    def _class_escape(self) -> int | None:
        """Read what follows a backslash if it stands for a class, such as d or pL."""
        if self._at >= len(self._regex):
            raise RegexError(TRAILING_BACKSLASH)
        letter = self._regex[self._at]
        if letter.lower() in _PERL_CLASSES:
            self._at += 1
            mask = _PERL_CLASSES[letter.lower()]
            return mask if letter.islower() else ALL & ~mask
        if letter not in "pP":
            return None
        self._at += 1
        name, is_negative = self._unicode_class_name(), letter == "P"
        mask = _unicode_mask(name)
        return ALL & ~mask if is_negative else mask

    def _unicode_class_name(self) -> str:
        if self._at >= len(self._regex):
            raise RegexError(INVALID_RANGE)
        name = self._next()
        if name == "{":
            name, brace, _ = self._regex[self._at :].partition("}")
            if not brace:
                raise RegexError(INVALID_RANGE)
            self._at += len(name) + 1
        return name

    def _character_escape(self) -> str:
        """Read what follows a backslash if it stands for one character."""
        char = self._next()
        if char in string.octdigits:
            digits = char
            while len(digits) < 3 and self._peek() in string.octdigits:
                digits += self._next()
            if char != "0" and len(digits) == 1:
                raise RegexError(INVALID_ESCAPE)  # a reference to a group
            return chr(int(digits, 8))
        if char == "x":
            return self._hexadecimal()
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char.isascii() and not char.isalnum():
            return char
        raise RegexError(INVALID_ESCAPE)

    def _hexadecimal(self) -> str:
        if self._take("{"):
            digits, brace, _ = self._regex[self._at :].partition("}")
            is_whole = bool(digits and brace)
            self._at += len(digits) + 1
        else:
            digits = self._regex[self._at : self._at + 2]
            is_whole = len(digits) == 2
            self._at += 2
        if not (is_whole and all(char in string.hexdigits for char in digits)):
            raise RegexError(INVALID_ESCAPE)
        value = int(digits, 16)
        if value > MAX_CODE_POINT:
            raise RegexError(INVALID_ESCAPE)
        return chr(value)

    # -- [classes] -----------------------------------------------------------------------------

    def _bracketed(self, flags: _Flags) -> Chars:
        is_negative = self._take("^")
        mask = 0
        is_first = True
        while is_first or not self._sees("]"):
            is_first = False
            named = self._named_class()
            if named is None and self._sees("\\"):
                self._at += 1
                named = self._class_escape()
                self._at -= named is None
            mask |= self._range(flags) if named is None else named
        self._at += 1
        return Chars(ALL & ~mask if is_negative else mask)

    def _named_class(self) -> int | None:
        """Read [:alpha:] or [:^alpha:]; without the end of one, "[" is literal."""
        end = self._regex.find(":]", self._at + 2)
        if not self._sees("[:") or end == -1:
            return None
        name = self._regex[self._at + 2 : end]
        mask = _POSIX_CLASSES.get(name.removeprefix("^"))
        if mask is None:
            raise RegexError(INVALID_RANGE)
        self._at = end + 2
        return ALL & ~mask if name.startswith("^") else mask

    def _range(self, flags: _Flags) -> int:
        low = high = self._class_character()
        if self._sees("-") and not self._sees("-]"):
            self._at += 1
            high = self._class_character()
            if high < low:
                raise RegexError(INVALID_RANGE)
        chars = [char for char in _ASCII if low <= char <= high]
        if flags.ignores_case:
            chars += [char.swapcase() for char in chars]
        return mask_of(chars)

    def _class_character(self) -> str:
        if self._at >= len(self._regex):
            raise RegexError(MISSING_BRACKET)
        char = self._next()
        if char != "\\":
            return char
        if self._at >= len(self._regex):
            raise RegexError(TRAILING_BACKSLASH)
        return self._character_escape()

    # -- reading -------------------------------------------------------------------------------

    def _sees(self, text: str) -> bool:
        return self._regex.startswith(text, self._at)

    def _take(self, text: str) -> bool:
        found = self._sees(text)
        if found:
            self._at += len(text)
        return found

    def _peek(self) -> str:
        """Return the next character, a space at the end."""
        return self._regex[self._at] if self._at < len(self._regex) else " "

    def _next(self) -> str:
        self._at += 1
        return self._regex[self._at - 1]


_ASSERTIONS: Final[Mapping[str, Assertion]] = {
    "A": Assertion.BEGIN,
    "z": Assertion.END,
    "b": Assertion.BOUNDARY,
    "B": Assertion.NO_BOUNDARY,
}


def _is_number(text: str) -> bool:
    """Say whether RE2 reads this as a count: decimal, without leading zeros."""
    is_decimal = text.isascii() and text.isdecimal() and len(text) < 10
    return is_decimal and not (len(text) > 1 and text.startswith("0"))


def _unicode_mask(name: str) -> int:
    """Return the ASCII characters of a general category or a script."""
    if name.startswith("^"):
        return ALL & ~_unicode_mask(name[1:])
    if name == "Any":
        return ALL
    if name in _CATEGORIES.split():
        return mask_of(char for char in _ASCII if unicodedata.category(char).startswith(name))
    if name == "Latin":
        return _POSIX_CLASSES["alpha"]
    if name == "Common":
        return ALL & ~_POSIX_CLASSES["alpha"]
    if name in _OTHER_SCRIPTS.split():
        return 0
    raise RegexError(INVALID_RANGE)
