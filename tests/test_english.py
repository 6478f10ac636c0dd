"""Plain English: habits that make a sentence hard to read have budgets, which only ever fall.

Counted in the documentation, and in the texts that users meet at run time: log lines, errors, help.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parent.parent
HABITS: Final = {
    "what": r"\b[Ww]hat\b",
    "who": r"\b[Ww]ho(ever|m|se)?\b",
    "nothing": r"\b([Nn]obody|[Nn]othing|none|None of)\b",  # Python's None is no word
    "says": r"\b([Ss]a(ys?|id)|[Tt](ells?|old)|[Hh]ears?)\b",
    "comes": r"\b([Cc](omes?|ame)|[Gg]o(es|ne))\b",
    "anew": r"\b(anew|meanwhile|all the same|by itself|of its own|at hand|in hand|for good)\b",
    "hand out": r"\bhand(s|ed|ing)? out\b",
    "semicolon": ";",
}
# Uses per 10,000 words, in the order of HABITS. Lower a figure after a rewrite; never raise one.
BUDGETS: Final = {
    #                what, who, nothing, says, comes, anew, hand out, semicolon
    "documentation": (7, 3, 6, 1, 2, 3, 1, 9),
    "messages": (2, 3, 7, 1, 1, 2, 1, 16),
}
LEAST_SPACES: Final = 3
WORST_SHOWN: Final = 15


class Text(NamedTuple):
    place: str
    text: str


def documentation() -> Iterator[Text]:
    """Yield the lines of README and docs that are outside of code blocks."""
    for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))):
        is_code = False
        for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
            is_code ^= line.lstrip().startswith("```")
            if not is_code:
                yield Text(f"{page.relative_to(ROOT)}:{number}", line)


def messages() -> Iterator[Text]:
    """Yield strings of some words that are not docstrings, of the package and the demos."""
    for package in ("aiokafka_lite", "pyspark_aiokafka_lite", "demos"):
        for file in sorted(ROOT.glob(f"{package}/**/*.py")):
            for node in strings(ast.parse(file.read_text("utf-8"))):
                text = node.value if isinstance(node, ast.Constant) else spelled(node)
                if isinstance(text, str) and text.count(" ") >= LEAST_SPACES:
                    yield Text(f"{file.relative_to(ROOT)}:{node.lineno}", text)


def strings(node: ast.AST) -> Iterator[ast.Constant | ast.JoinedStr]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Constant | ast.JoinedStr):
            yield child
        if isinstance(child, ast.JoinedStr):
            for part in child.values:
                if isinstance(part, ast.FormattedValue):
                    yield from strings(part)
        elif not is_docstring(child) and not is_type_alias(child):
            yield from strings(child)


def is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def is_type_alias(node: ast.AST) -> bool:
    """A type alias is a string where it names types that are defined later."""
    return isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation).endswith("TypeAlias")


def spelled(node: ast.JoinedStr) -> str:
    """Return an f-string's words, with … for its values."""
    return "".join(str(p.value) if isinstance(p, ast.Constant) else "…" for p in node.values)


@pytest.mark.parametrize("texts", [documentation, messages])
def test_habits_stay_within_their_budgets(texts: Callable[[], Iterator[Text]]) -> None:
    all_texts = list(texts())
    words = sum(len(re.findall(r"[A-Za-z']+", text)) for _, text in all_texts)
    problems = []
    for (habit, pattern), budget in zip(HABITS.items(), BUDGETS[texts.__name__], strict=True):
        uses = [(len(re.findall(pattern, text)), place, text) for place, text in all_texts]
        rate = sum(count for count, _, _ in uses) / words * 10_000
        print(f"{habit}: {rate:.1f} per 10,000 words")  # the figures: pytest -s
        if rate > budget:
            problems.append(f"{habit}: {rate:.1f} per 10,000 words, the budget is {budget}. Worst:")
            worst = sorted((use for use in uses if use[0]), reverse=True)[:WORST_SHOWN]
            problems += [f"    {place}: {text.strip()[:160]}" for _, place, text in worst]
    assert not problems, "\n".join(problems)
