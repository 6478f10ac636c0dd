"""Small changes of a source file, each of which a test should notice."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_SIZE: Final = 1_000
_LOGS: Final = frozenset({"debug", "info", "warning", "error", "exception", "log"})


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """A piece of a file and its replacement; lines count from 1, columns are bytes.

    Attributes:
        around: The line that it begins in, without indentation.
    """

    line: int
    column: int
    end_line: int
    end_column: int
    old: str
    new: str
    around: str

    def apply(self, source: str) -> str:
        """Return the source with this change."""
        lines = source.encode().splitlines(keepends=True)
        head = lines[self.line - 1][: self.column]
        tail = lines[self.end_line - 1][self.end_column :]
        middle = head + self.new.encode() + tail
        return b"".join([*lines[: self.line - 1], middle, *lines[self.end_line :]]).decode()

    def __str__(self) -> str:
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{old}  ->  {new}"


def changes_of(source: str) -> list[Change]:
    """Return every change of a file's functions, in order of their places."""
    found = _Finder(source)
    found.visit(ast.parse(source))
    return sorted(found.changes)


class _Finder(ast.NodeVisitor):
    def __init__(self, source: str) -> None:
        self.changes: list[Change] = []
        self._lines = source.encode().splitlines()
        self._depth = 0

    def _add(self, node: ast.expr | ast.stmt, new: str) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        lines = self._lines[node.lineno - 1 : node.end_lineno]
        around = lines[0].strip().decode()
        # The end first: both may be in one line. ast.get_source_segment splits the file each time.
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        place = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
        self.changes.append(Change(*place, b"\n".join(lines).decode(), new, around))

    def _replace(self, node: ast.expr, new: ast.expr) -> None:
        self._add(node, f"({ast.unparse(new)})")

    # --- Where changes are made: in the bodies of functions, but for what says types ------------
    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name == "__repr__":
            return
        self._depth += 1
        for statement in node.body:
            self.visit(statement)
        self._depth -= 1

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            if self._depth:
                self._replace(node.test, ast.Constant(False))
            self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        """Leave it alone: it says what is so."""

    def visit_Raise(self, node: ast.Raise) -> None:
        """Leave out an error's text."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave out texts for people."""

    # --- The changes ------------------------------------------------------------------------
    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant) or _is_log(node.value):
            return
        if self._depth and not isinstance(node.value, (ast.Yield, ast.YieldFrom)):
            self._add(node, "pass")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        other = _COMPARISONS.get(type(node.ops[0]))
        if self._depth and other is not None:
            new = copy.deepcopy(node)
            new.ops[0] = other()
            self._replace(node, new)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        if self._depth:
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            self._replace(node, ast.BoolOp(other, node.values))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if self._depth and isinstance(node.op, ast.Not):
            self._replace(node, node.operand)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        other = _ARITHMETIC.get(type(node.op))
        if self._depth and other is not None and not _is_text(node):
            self._replace(node, ast.BinOp(node.left, other(), node.right))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if not self._depth:
            return
        if isinstance(node.value, bool):
            self._add(node, str(not node.value))
        elif isinstance(node.value, int):
            # No rule depends on the neighbour of a buffer's size, or of a time.
            is_size = node.value >= _SIZE
            self._add(node, str(node.value * 2 if is_size else node.value + 1))

    def visit_Break(self, node: ast.Break) -> None:
        self._add(node, "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._add(node, "break")


def _is_log(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _LOGS
    )


def _is_text(node: ast.BinOp) -> bool:
    sides: Iterator[ast.expr] = iter((node.left, node.right))
    return any(
        isinstance(side, ast.JoinedStr)
        or (isinstance(side, ast.Constant) and isinstance(side.value, (str, bytes)))
        for side in sides
    )
