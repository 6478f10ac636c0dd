from __future__ import annotations

import ast

from tests.mutants.changes import changes_of
from tests.support.for_each import for_each


def made(body: str) -> list[str]:
    """Return the body of a function after each change of it."""
    source = "def f():\n" + "".join(f"    {line}\n" for line in body.splitlines())
    return [
        ast.unparse(ast.parse(change.apply(source)).body[0].body)  # type: ignore[attr-defined]
        for change in changes_of(source)
    ]


@for_each(
    [
        ("return a < b", ["return a <= b"]),
        ("return a is None", ["return a is not None"]),
        ("return a and b", ["return a or b"]),
        ("return not a", ["return a"]),
        ("return a + b", ["return a - b"]),
        ("return 'ü' + b, 3", ["return ('ü' + b, 4)"]),
        ("return 1_000", ["return 2000"]),
        ("a = True", ["a = False"]),
        ("call(a)", ["pass"]),
        ("await call(a)", ["pass"]),
        ("while a:\n    break", ["while a:\n    continue"]),
        ("if a:\n    b = c", ["if False:\n    b = c"]),
        (
            "if (\n    a == b\n):\n    c = d",
            ["if False:\n    c = d", "if a != b:\n    c = d"],
        ),
    ]
)
def test_a_piece_of_a_function_is_replaced(body: str, changed: list[str]) -> None:
    assert sorted("".join(ast.unparse(ast.parse(each))) for each in made(body)) == sorted(changed)


@for_each(
    [
        "X = 3 < 4",
        "def f(a: 3 = 4): 'text'",
        "def f():\n    raise ValueError(1 + 2)",
        "def f():\n    assert a < b",
        "def f():\n    log.debug('%s', 1)",
        "def f():\n    return f'{a + 1}'",
        "def __repr__(self):\n    return a + b",
    ]
)
def test_text_types_and_what_runs_at_the_import_stay(source: str) -> None:
    assert changes_of(source) == []
