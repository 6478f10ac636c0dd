"""Regular expressions of Java, for names of topics, in the syntax of Python's `re`.

Names of topics are ASCII. So a class of characters, with Java's unions, intersections and
properties, is written as its ASCII characters. Without case, a letter is a class of two. Possessive
quantifiers and atomic groups become a lookahead and a reference to the text that it found.

Reference: the documentation of `java.util.regex.Pattern` (Java 17).
"""

from __future__ import annotations

import re
from typing import Final, NoReturn

ASCII: Final = frozenset(map(chr, range(128)))
LETTERS: Final = frozenset(c for c in ASCII if c.isalpha())
DIGITS: Final = frozenset("0123456789")
WORD: Final = LETTERS | DIGITS | {"_"}
SPACE: Final = frozenset(" \t\n\x0b\f\r")
BLANK: Final = frozenset(" \t")
VERTICAL: Final = frozenset("\n\x0b\f\r")
CONTROLS: Final = frozenset(c for c in ASCII if c < " " or c == "\x7f")
LOWER: Final = frozenset(c for c in LETTERS if c.islower())
UPPER: Final = LETTERS - LOWER
GRAPH: Final = ASCII - CONTROLS - {" "}

_PREDEFINED: Final = {"d": DIGITS, "w": WORD, "s": SPACE, "h": BLANK, "v": VERTICAL}
_CHARACTERS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_PROPERTIES: Final = {
    "lower": LOWER,
    "upper": UPPER,
    "ascii": ASCII,
    "alpha": LETTERS,
    "digit": DIGITS,
    "alnum": LETTERS | DIGITS,
    "punct": GRAPH - LETTERS - DIGITS,
    "graph": GRAPH,
    "print": GRAPH | {" "},
    "blank": BLANK,
    "cntrl": CONTROLS,
    "xdigit": DIGITS | frozenset("abcdefABCDEF"),
    "space": SPACE,
    "javalowercase": LOWER,
    "javauppercase": UPPER,
    "javaletter": LETTERS,
    "javadigit": DIGITS,
    "javaletterordigit": LETTERS | DIGITS,
    "isalphabetic": LETTERS,
    "isletter": LETTERS,
    "isdigit": DIGITS,
    "islowercase": LOWER,
    "isuppercase": UPPER,
    "iswhite_space": SPACE,
    "islatin": LETTERS,
    "inbasiclatin": ASCII,
    "inbasic_latin": ASCII,
}
_ANCHORS: Final = ("^", r"\A", r"\Z", r"\b", r"\B")
_CASED: Final = (LOWER, UPPER)
_CATEGORIES: Final = re.compile(r"(?:Is|gc=|general_category=)?([LMNPSZC][a-z]?)")
_COUNT: Final = re.compile(r"\{(\d+)(?:(,)(\d*))?\}")
_GROUP_NAME: Final = re.compile(r"([A-Za-z][A-Za-z0-9]*)>")
_FLAGS: Final = re.compile(r"([idmsuxU]*)(?:-([idmsuxU]*))?([:)])")


class JavaPatternError(ValueError):
    """A pattern is wrong, or has no equivalent in Python's `re`."""


def compile_java(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of Java so that it finds the same names of topics."""
    try:
        return re.compile(_Translation(_unquoted(pattern)).whole(), re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise JavaPatternError(
            f"this source cannot translate the pattern to Python: {error}"
        ) from error


def _unquoted(pattern: str) -> str:
    r"""Replace \Q...\E by an escape for each of its characters."""
    parts: list[str] = []
    pos = 0
    while (at := pattern.find("\\", pos)) >= 0:
        if pattern[at + 1 : at + 2] != "Q":
            parts.append(pattern[pos : at + 2])
            pos = at + 2
            continue
        end = pattern.find("\\E", at + 2)
        end = len(pattern) if end < 0 else end
        parts.append(pattern[pos:at])
        parts.extend(f"\\x{{{ord(c):x}}}" for c in pattern[at + 2 : end])
        pos = end + 2
    return "".join([*parts, pattern[pos:]])


class _Translation:
    """Translates a pattern by recursive descent. Its methods return Python's syntax."""

    def __init__(self, text: str) -> None:
        self._text: Final = text
        self._pos = 0
        self._ignores_case = False
        self._has_comments = False
        self._groups = 0
        self._atomic = 0
        self._names: dict[str, int] = {}

    def whole(self) -> str:
        translated = self._alternatives()
        if self._pos < len(self._text):
            self._refuse("a ) has no matching (")
        return translated

    def _refuse(self, reason: str) -> NoReturn:
        raise JavaPatternError(f"{reason}, at character {min(self._pos, len(self._text)) + 1}")

    def _peek(self) -> str:
        if self._has_comments:
            self._skip_comments()
        return self._text[self._pos : self._pos + 1]

    def _next(self) -> str:
        character = self._peek()
        self._pos += 1
        return character

    def _skip_comments(self) -> None:
        text = self._text
        while self._pos < len(text) and (text[self._pos] in SPACE or text[self._pos] == "#"):
            if text[self._pos] == "#":
                line_end = text.find("\n", self._pos)
                self._pos = len(text) - 1 if line_end < 0 else line_end
            self._pos += 1

    def _take(self, expected: str) -> bool:
        if not self._text.startswith(expected, self._pos):
            return False
        self._pos += len(expected)
        return True

    # --- Sequences and groups ----------------------------------------------------------------
    def _alternatives(self) -> str:
        branches = [self._sequence()]
        while self._peek() == "|":
            self._pos += 1
            branches.append(self._sequence())
        return "|".join(branches)

    def _sequence(self) -> str:
        parts: list[str] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._quantified(self._atom()))
        return "".join(parts)

    def _atom(self) -> str:
        match character := self._next():
            case "(":
                return self._group()
            case "[":
                return _class(self._class())
            case "\\":
                return self._escape()
            case "." | "^":
                return character
            case "$":
                return r"\Z"
            case "*" | "+" | "?" | "{":
                self._pos -= 1
                self._refuse(f"the quantifier {character} must follow an expression")
        return self._literal(character)

    def _literal(self, character: str) -> str:
        return _class(self._cased(character)) if self._ignores_case else re.escape(character)

    def _cased(self, character: str) -> frozenset[str]:
        if self._ignores_case and character in LETTERS:
            return frozenset((character.lower(), character.upper()))
        return frozenset((character,))

    def _group(self) -> str:
        flags = self._ignores_case, self._has_comments
        opening = self._opening()
        if opening is None:  # flags up to the end of the enclosing group
            return ""
        inside = self._alternatives()
        if self._next() != ")":
            self._refuse("a ( has no matching )")
        self._ignores_case, self._has_comments = flags
        return self._once(inside) if opening == "(?>" else f"{opening}{inside})"

    def _opening(self) -> str | None:
        if not self._take("?"):
            return self._capturing()
        for kind in (":", "=", "!", ">", "<=", "<!"):
            if self._take(kind):
                return f"(?{kind}"
        if self._take("<"):
            named = _GROUP_NAME.match(self._text, self._pos)
            if named is None or named[1] in self._names:
                self._refuse(
                    "the name of a capturing group (?<name>...) is missing, invalid or used twice"
                )
            self._pos = named.end()
            self._names[named[1]] = self._groups + 1
            return self._capturing()
        flags = _FLAGS.match(self._text, self._pos)
        if flags is None:
            self._refuse("the characters after (? are not supported")
        self._pos = flags.end()
        for letters, is_on in ((flags[1], True), (flags[2] or "", False)):
            if "i" in letters:
                self._ignores_case = is_on
            if "x" in letters:
                self._has_comments = is_on
        return "(?:" if flags[3] == ":" else None

    def _capturing(self) -> str:
        self._groups += 1
        return f"(?P<g{self._groups}>"

    def _once(self, inside: str) -> str:
        """Write a group that is matched in one way at most, like an atomic group."""
        self._atomic += 1
        name = f"a{self._atomic}"
        return f"(?:(?=(?P<{name}>{inside}))(?P={name}))"

    def _quantified(self, atom: str) -> str:
        character = self._peek()
        if character == "{":
            count = _COUNT.match(self._text, self._pos)
            if count is None:
                self._refuse("braces must contain a number of repetitions: {2}, {2,} or {2,4}")
            self._pos = count.end()
            quantifier = count[0]
        elif character and character in "*+?":
            self._pos += 1
            quantifier = character
        else:
            return atom
        if not atom:
            self._refuse(f"the quantifier {quantifier} must follow an expression")
        if atom in _ANCHORS:  # which only Java repeats
            atom = f"(?:{atom})"
        if self._peek() == "+":
            self._pos += 1
            return self._once(atom + quantifier)
        if self._peek() == "?":
            self._pos += 1
            quantifier += "?"
        return atom + quantifier

    # --- Escapes -----------------------------------------------------------------------------
    def _escape(self) -> str:
        character = self._text[self._pos : self._pos + 1]
        if "1" <= character <= "9":
            return self._reference()
        match character:
            case "A" | "B" | "b" if not self._text.startswith("b{", self._pos):
                self._pos += 1
                return f"\\{character}"
            case "Z" | "z":
                self._pos += 1
                return r"\Z"
            case "R":
                self._pos += 1
                return r"(?:\r\n|[\n-\r])"
            case "k":
                named = _GROUP_NAME.match(self._text, self._pos + 2)
                if named is None or named[1] not in self._names:
                    self._refuse("\\k must be followed by the <name> of an earlier capturing group")
                self._pos = named.end()
                return self._back(self._names[named[1]])
        found = self._escaped()
        return self._literal(found) if isinstance(found, str) else _class(found)

    def _reference(self) -> str:
        """Read the number of a group: as many digits as there are groups for."""
        number = int(self._next())
        while (digit := self._text[self._pos : self._pos + 1]) and digit in DIGITS:
            if number * 10 + int(digit) > self._groups:
                break
            number = number * 10 + int(digit)
            self._pos += 1
        if number > self._groups:
            self._refuse(
                f"\\{number} refers to a capturing group, but no group {number} exists before it"
            )
        return self._back(number)

    def _back(self, group: int) -> str:
        return f"(?i:(?P=g{group}))" if self._ignores_case else f"(?P=g{group})"

    def _escaped(self) -> str | frozenset[str]:
        character = self._text[self._pos : self._pos + 1]
        self._pos += 1
        if character.lower() in _PREDEFINED:
            found = _PREDEFINED[character.lower()]
            return found if character.islower() else ASCII - found
        if character in _CHARACTERS:
            return _CHARACTERS[character]
        match character:
            case "p" | "P":
                found = self._property()
                return found if character == "p" else ASCII - found
            case "x" if self._take("{"):
                return self._code(r"([0-9A-Fa-f]{1,6})\}", 16)
            case "x":
                return self._code(r"([0-9A-Fa-f]{2})", 16)
            case "u":
                return self._code(r"([0-9A-Fa-f]{4})", 16)
            case "0":
                return self._code(r"([0-3]?[0-7]{1,2})", 8)
            case "c" if self._pos < len(self._text):
                self._pos += 1
                return chr(ord(self._text[self._pos - 1]) ^ 64)
        if not character or (character.isascii() and character.isalnum()):
            self._pos -= 1
            self._refuse(f"the escape \\{character} is not supported")
        return character

    def _code(self, digits: str, base: int) -> str:
        found = re.compile(digits).match(self._text, self._pos)
        if found is None or int(found[1], base) > 0x10FFFF:
            self._refuse(
                "\\x, \\u and \\0 must be followed by a character code, such as \\x41 or \\u0041"
            )
        self._pos = found.end()
        return chr(int(found[1], base))

    def _property(self) -> frozenset[str]:
        if self._take("{"):
            end = self._text.find("}", self._pos)
            if end < 0:
                self._refuse("a \\p{ has no matching }")
            name, self._pos = self._text[self._pos : end], end + 1
        else:
            name = self._text[self._pos : self._pos + 1]
            self._pos += 1
        if (found := _PROPERTIES.get(name.lower())) is not None:
            return LETTERS if self._ignores_case and found in _CASED else found
        if (category := _CATEGORIES.fullmatch(name)) is None:
            self._refuse(f"the character property {name!r} is not supported")
        import unicodedata  # late: hardly any pattern asks for categories

        if self._ignores_case and category[1] in ("Lu", "Ll", "Lt"):
            return LETTERS
        return frozenset(c for c in ASCII if unicodedata.category(c).startswith(category[1]))

    # --- Classes -----------------------------------------------------------------------------
    def _class(self) -> frozenset[str]:
        is_negated = self._take("^")
        found: frozenset[str] | None = None
        while True:
            operand = self._operand(is_first=found is None)
            if operand is None:
                self._refuse("a character class [...] is empty, or one side of && in it is empty")
            found = operand if found is None else found & operand
            if self._take("&&"):
                continue
            if self._next() != "]":
                self._refuse("a [ has no matching ]")
            return ASCII - found if is_negated else found

    def _operand(self, *, is_first: bool) -> frozenset[str] | None:
        """Read a union up to && or the end of the class. None if it is empty."""
        found: set[str] | None = None
        while (character := self._peek()) and (character != "]" or is_first):
            if character == "&" and self._text.startswith("&&", self._pos):
                break
            is_first = False
            if character == "[":
                self._pos += 1
                members = self._class()
            else:
                members = self._members()
            found = {*(found or ()), *members}
        return None if found is None else frozenset(found)

    def _members(self) -> frozenset[str]:
        first = self._member()
        if not isinstance(first, str):
            return first
        is_range = self._peek() == "-" and self._text[self._pos + 1 : self._pos + 2] not in "[]"
        if not is_range:
            return self._cased(first)
        self._pos += 1
        last = self._member()
        if not isinstance(last, str) or last < first:
            self._refuse(
                "a range in a character class must have two characters in ascending order, such as "
                "a-z"
            )
        within = (c for c in ASCII if first <= c <= last)
        return frozenset(cased for c in within for cased in self._cased(c))

    def _member(self) -> str | frozenset[str]:
        character = self._next()
        return self._escaped() if character == "\\" else character


def _class(characters: frozenset[str]) -> str:
    return f"[{re.escape(''.join(sorted(characters)))}]" if characters else "(?!)"
