"""Each field has one module that writes it: read from the sources, plain Python and Cython."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import aiokafka_lite
from aiokafka_lite.consumer.assignment.cursor import Cursor
from tests.support.extensions import fields_of
from tests.support.for_each import for_each

PACKAGE = Path(aiokafka_lite.__file__).parent
OWNER = "consumer/assignment/cursor.py"
FIELDS = frozenset(fields_of(Cursor))
# What objects of the classes that are compiled in place are called, and the module of each class.
COMPILED: Final = {
    "budget": "consumer/buffer/budget.py",
    "choice": "consumer/fetching/choice.py",
    "chunk": "consumer/buffer/chunk.py",
    "counts": "consumer/fetching/counts.py",
    "exchange": "client/wire.py",
    "gate": "consumer/gate.py",
    "in_flight": "consumer/fetching/in_flight.py",
    "job": "consumer/processing/job.py",
    "lanes": "consumer/processing/lanes.py",
    "loan": "consumer/assignment/cursor.py",
    "pending": "client/wire.py",
    "progress": "consumer/assignment/progress.py",
    "queue": "consumer/buffer/chunk_queue.py",
    "reservation": "consumer/buffer/budget.py",
    "session": "consumer/fetching/session.py",
    "slice": "consumer/buffer/time_slice.py",
    "steady": "consumer/delivery/steady.py",
    "waiter": "consumer/buffer/waiter.py",
    "waiters": "consumer/buffer/waiter.py",
    "wire": "client/wire.py",
    "works": "consumer/assignment/works.py",
}
# Share groups have counts and jobs of their own, and no cursors.
SHARING: Final = frozenset(
    file.relative_to(PACKAGE).as_posix() for file in PACKAGE.glob("consumer/sharing/*.py")
)
OWN_OF_SHARING: Final = ("counts", "job", "session")
# Fields that have their one writer elsewhere.
WRITTEN_ELSEWHERE: Final = {
    "budget.source_count": "consumer/fetching/sources.py",
    "chunk.work": "consumer/buffer/decode.py",
    "job.attempts": "consumer/processing/attempts.py",
    "job.error": "consumer/processing/attempts.py",
    "job.follower": "consumer/processing/lanes.py",
    "job.lane": "consumer/processing/lanes.py",
    "job.name": "consumer/processing/lanes.py",
    "job.success_count": "consumer/processing/attempts.py",
}


class Write(NamedTuple):
    """A place that writes a field of an object."""

    path: str
    owner: str
    field: str


def writes_in_python(source: str, path: str) -> Iterator[Write]:
    """Yield what a module in plain Python writes, the beginnings in `__init__` aside."""
    tree = ast.parse(source)
    beginnings = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef) and function.name == "__init__"
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
            owner = ast.unparse(node.value)
            if id(node) not in beginnings or owner != "self":
                yield Write(path, owner, node.attr)


def writes_in_cython(source: str, path: str) -> Iterator[Write]:
    """Yield what a module in Cython writes to objects other than its own."""
    for target in re.findall(r"([\w.<> ()\[\]]+?) *(?:(?<![=<>!])=(?!=)|[-+]=)", source):
        found = re.search(r"([\w.]+)\)?\.(\w+)$", target.strip())
        if found is not None and found[1] != "self":
            yield Write(path, found[1], found[2])


def all_writes() -> list[Write]:
    found: list[Write] = []
    for room in ("client", "consumer"):
        for file in (PACKAGE / room).rglob("*.py*"):
            path = file.relative_to(PACKAGE).as_posix()
            if file.suffix == ".py":
                found += writes_in_python(file.read_text(), path)
            elif file.suffix == ".pyx":
                found += writes_in_cython(file.read_text(), path)
    return found


WRITES = all_writes()


def is_of_a_partition(write: Write) -> bool:
    """Whether what is written may be a partition's: `self` is one in its own module only."""
    if write.owner == "self":
        return write.path == OWNER
    # A node's counts, what is known of a topic, the part of a response that is about a partition,
    # and the leased records of a share group have fields of the same names.
    return write.path.startswith("consumer/") and not (
        write.owner.endswith(("counts", "known", "part")) or write.path in SHARING
    )


def writers() -> dict[str, set[str]]:
    """Return the modules that write each field of a partition."""
    found: dict[str, set[str]] = defaultdict(set)
    for write in WRITES:
        if write.field in FIELDS and is_of_a_partition(write):
            found[write.field].add(write.path)
    return found


WRITERS = writers()


@for_each(sorted(FIELDS - {"tp", "assigned_id"}))
def test_a_field_is_written_by_one_module(field: str) -> None:
    assert len(WRITERS[field]) == 1, sorted(WRITERS[field])


def test_which_partition_it_is_never_changes() -> None:
    assert not WRITERS["tp"]
    assert not WRITERS["assigned_id"]


def test_fields_of_what_is_compiled_in_place_are_written_by_its_own_module() -> None:
    others: dict[str, set[str]] = defaultdict(set)
    for path, owner, field in WRITES:
        name = owner.rsplit(".")[-1].lstrip("_")
        if path in SHARING and name in OWN_OF_SHARING:
            continue
        if path != COMPILED.get(name, path):
            others[f"{name}.{field}"].add(path)
    assert others == {field: {path} for field, path in WRITTEN_ELSEWHERE.items()}


def test_writes_are_found_in_cython() -> None:
    source = (
        "cdef Cursor cursor = None\n    cursor.place = READY\n    (<Cursor> self.x).fetched += 1\n"
        "    self.now = cursor.position == 3\n    if cursor.loan is None or cursor.seeks >= 2:\n"
        "    f(cursor.a, limit=cursor.b)\n"
    )
    assert [write[1:] for write in writes_in_cython(source, "")] == [
        ("cursor", "place"),
        ("self.x", "fetched"),
    ]
