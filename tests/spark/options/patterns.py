"""Patterns for names of topics in Java's syntax, and names to find with them."""

from __future__ import annotations

from random import Random
from typing import Final

NAMES: Final = [
    "flights",
    "Flights",
    "FLIGHTS-2013",
    "prod.flights.v1",
    "prod.flights.v12",
    "prod_weather",
    "test.flights",
    "a",
    "A.b",
    "aab",
    "abab",
    "a-b",
    "b",
    "0",
    "2013-01",
    "__internal",
    "x.y.z",
    "a+b",
]

PATTERNS: Final = [
    "flights",
    "^flights$",
    r"^prod\..*",
    "flights|weather",
    "(?i)flights",
    "(?i:FL)ights",
    "(?i)[f-g]L",
    "(?i)[^a-z]",
    "(?i)^[^A-E]",
    r"\d{4}-\d\d",
    r"v\d+$",
    r"v\d{2,}",
    r"v\d{1}?$",
    r"^\w+$",
    r"\W",
    r"^\S\z",
    r"^[\w.]+\Z",
    r"^\Aa",
    r"\bb\b",
    r"\Bb",
    r"^\p{Lower}+$",
    r"\p{Upper}",
    r"^\p{Alpha}+$",
    "[a-]b",
    r"[.\-_]",
    r"^[\d-]+$",
    r"\Q.\E",
    r"^\Qprod.\Efl",
    r"^\Qa",
    "(?=.*v1$)prod",
    "^(?!prod)f",
    r"(?<=prod\.)fl",
    r"(?<!prod\.)flights$",
    "a{2}",
    "^a{1,2}?b",
    "(a|b){2}",
    "^(?:a|b)+$",
    ".{12,}",
    r"a\+b",
    r"^[\w.-]+$",
]

BROKEN: Final = [
    "*a",
    "a{",
    "a{2,1}",
    "(a",
    "a)",
    "[a",
    "[b-a]",
    "(?<1>a)",
    "(?<n>a)(?<n>b)",
    r"\y",
    r"\p{Foo}",
    r"\x6",
    r"\u12",
    "\\",
    "(?k)a",
    "a**",
    r"\k<n>",
    "a+++",
    "[a&&",
    "[]",
    "[^]",
    "a{,2}",
    r"[a-\d]",
    r"\08",
    r"\Ea",
]
"""What Java refuses as well."""

NOT_HERE: Final = [
    r"\p{IsGreek}",
    r"\X",
    r"\Ga",
    "(?<=a{1,2})b",
    "(?<=a+)b",
    "{1}",
    "a{2}{3}",
    r"\b{g}",
    "[&&a]",
    "[a&&]",
    r"\1(a)",
    r"\N{LATIN SMALL LETTER A}",
    "F(?i)LIGHTS|PROD",
    r"\p{Punct}",
    r"^\P{Alnum}",
    r"^\p{javaLowerCase}+$",
    r"^\p{L}+$",
    r"\p{Nd}",
    r"\pN$",
    r"^\p{IsAlphabetic}+$",
    r"^[\p{L}&&[^a]]+$",
    "^[a-z&&[^b]]+$",
    "^[a-z&&[a-f]]+$",
    "^[a-d[x-z.]]+$",
    "^[^a-z&&[^0-9]]",
    "[]x]",
    "^a++b",
    "^a*+b",
    "^(?>a*)b",
    r"^(ab)\1$",
    r"^(?<first>a)\k<first>b",
    "(?x) ^ fl ights $ # all",
    r"\x66l",
    r"\u0046l",
    r"\x{66}l",
    r"\0146l",
    "(?s)^x.y",
    "(?m)^x",
    "^(?-i)a",
    "]|flights",
    "[+]",
    r"[\d-f]",
    "[[:alpha:]]b",
    "[a&b]b",
    "x{1}+",
    r"(?i)^\P{Upper}",
    r"(?i)^\p{Lu}+$",
    "^*a$+",
]
"""What Java takes, but is not in the syntax that Java and Python's `re` share."""

_ATOMS: Final = r"""
a b A . - _ 1 ^ $ \. \- \d \w \W \D \s \S \b \B \A \z \Z \Qa.\E \Q*\E
[ab] [^a] [^a-c] [.-] [-a] [a-] [^\d_] [\w.] \p{Lower} \p{Alnum} \p{Upper} # ] [a&&b] (?i)
"""
_OPENINGS: Final = ["(", "(?:", "(?>", "(?=", "(?!", "(?<=", "(?<!", "(?i:"]
_QUANTIFIERS: Final = ["*", "+", "?", "{2}", "{1,2}", "{0,}"]


def random_pattern(random: Random, depth: int = 0) -> str:
    """Make up a pattern, most of which mean something."""
    parts: list[str] = []
    for _ in range(random.choice([1, 1, 2, 2, 3])):
        choice = random.random() if depth < 3 else 1.0
        if choice < 0.22:
            part = f"{random.choice(_OPENINGS)}{random_pattern(random, depth + 1)})"
        elif choice < 0.3:
            part = "|".join(random_pattern(random, depth + 1) for _ in range(2))
        else:
            part = random.choice(_ATOMS.split())
        if random.random() < 0.3:
            part += random.choice(_QUANTIFIERS) + random.choice(["", "", "", "?", "+"])
        parts.append(part)
    return "".join(parts)
