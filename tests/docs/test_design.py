"""The files, classes and methods that docs/design.md names exist."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import aiokafka_lite

ROOT = Path(__file__).parents[2]
PACKAGE = Path(aiokafka_lite.__file__).parent
PAGE = (ROOT / "docs" / "design.md").read_text()
JAVAS = {"Integer"}


def test_files_that_are_named_exist_where_it_says() -> None:
    linked = set(re.findall(r"\]\(([\w.]+\.md)", PAGE))
    named = set(re.findall(r"[\w./]+\.(?:pyx|pyi|py|md|toml|yml)\b", PAGE)) - linked
    assert len(named) > 100
    assert [name for name in sorted(named) if not is_there(name)] == []


def is_there(name: str) -> bool:
    """Whether there is such a file of the package, or of the repository, or of its tests."""
    return any((folder / name).exists() for folder in (PACKAGE, ROOT, ROOT / "tests"))


@cache
def members() -> dict[str, set[str]]:
    """Return what each class of the package has, with what its bases have."""
    own: dict[str, set[str]] = defaultdict(set)
    bases: dict[str, set[str]] = defaultdict(set)
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                own[node.name] |= set(names_in(node))
                bases[node.name] |= {ast.unparse(base).partition("[")[0] for base in node.bases}
    inherited: dict[str, set[str]] = {}
    for name in own:
        found, todo = {name}, list(bases[name])
        while todo:
            if (base := todo.pop()) not in found:
                found.add(base)
                todo += bases.get(base, ())
        inherited[name] = set().union(*(own.get(each, set()) for each in found))
    return inherited


def names_in(node: ast.ClassDef) -> list[str]:
    """Return the methods of a class and its attributes."""
    names = []
    for each in ast.walk(node):
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names.append(each.name)
        elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            names.append(each.id)
        elif (
            isinstance(each, ast.Attribute)
            and isinstance(each.ctx, ast.Store)
            and isinstance(each.value, ast.Name)
            and each.value.id == "self"
        ):
            names.append(each.attr)
    return names


def test_classes_and_methods_that_are_named_exist() -> None:
    code = " ".join(re.findall(r"```.*?```|`[^`]+`", PAGE, re.DOTALL))
    named = set(re.findall(r"(?<![\w.])([A-Z][a-z]\w+)\.(_?[a-z]\w+|[A-Z_]{3,})\b(?!\.\w)", code))
    assert len(named) > 100
    missing = [
        f"{name}.{member}"
        for name, member in named
        if name not in JAVAS and member not in members().get(name, set())
    ]
    assert sorted(missing) == []
