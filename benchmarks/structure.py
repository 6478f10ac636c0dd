"""`python -m benchmarks.structure`: how much of the consumer a reader has to hold in mind.

Sizes and imports come from the sources. What one steady get walks through is counted while it runs,
on an embedded broker of this process: the files, classes and functions of this package that it
enters, and how many Python calls a record costs. Nothing here is a limit: the figures show whether
a change made the inside clearer or harder to follow.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite.broker import NewRecord
from aiokafka_lite.broker.thread import BrokerThread

PACKAGE: Final = Path("aiokafka_lite")
CONSUMER: Final = PACKAGE / "consumer"
SMALL_LINES: Final = 60
TOPIC: Final = "small-records"
VALUE_BYTES: Final = 100
# Objects that are passed to their users, not looked up in the subscription state.
SERVICES: Final = frozenset({"events", "gate", "observers", "processing", "reads", "works"})
WARM_UP_GETS: Final = 5
RECORDS_A_GET: Final = 2_000

Consumer = AIOKafkaConsumer[bytes | None, bytes | None]


class Walked(NamedTuple):
    """What a number of gets, or steps of a loop, went through."""

    files: Counter[str]
    classes: set[str]
    functions: set[tuple[str, str]]
    call_count: int
    record_count: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.structure", description=__doc__)
    parser.add_argument("--records", type=int, default=400_000, help="records to walk through")
    parser.add_argument("--names", action="store_true", help="name files, classes and privates")
    options = parser.parse_args(arguments)
    whole = Table("measured", "figure", title="The package")
    for measured, figure in _of_the_package().items():
        whole.add_row(measured, f"{figure:,}")
    table = Table("measured", "figure", title="The inside of consumer/")
    trees = {path: ast.parse(path.read_text()) for path in sorted(CONSUMER.rglob("*.py"))}
    lines = [len(path.read_text().splitlines()) for path in trees if path.name != "__init__.py"]
    small = sum(count < SMALL_LINES for count in lines)
    table.add_row("modules", f"{len(lines)}, of them {small} under {SMALL_LINES} lines")
    table.add_row("lines", f"{sum(lines):,}")
    table.add_row("classes", str(sum(len(_classes(tree)) for tree in trees.values())))
    foreign = list(_foreign_privates(trees))
    table.add_row("accesses to another object's privates", str(len(foreign)))
    twice = _names_that_stand_twice()
    table.add_row("public class names that stand twice in the package", str(len(twice)))
    with BrokerThread() as broker:
        broker.create_topic(TOPIC)
        value = bytes(VALUE_BYTES)
        for _ in range(0, options.records, RECORDS_A_GET):
            broker.produce_all(TOPIC, [NewRecord(value)] * RECORDS_A_GET)
        walks = asyncio.run(_walk_all(broker.bootstrap_servers, options.records // 2))
    for name, walked in walks.items():
        table.add_row(
            f"{name}: files, classes, functions entered",
            f"{len(walked.files)}, {len(walked.classes)}, {len(walked.functions)}",
        )
        table.add_row(
            f"{name}: Python calls a record", f"{walked.call_count / walked.record_count:.3f}"
        )
    console = Console()
    console.print(whole)
    console.print(table)
    if options.names:
        for name, walked in walks.items():
            console.print(name, walked.files.most_common(), sorted(walked.classes))
        console.print("privates", foreign)
        console.print("twice", twice)
    return 0


# --- Sources ------------------------------------------------------------------------------------
def _of_the_package() -> dict[str, int]:
    """Count how large the package is, and the shapes that its design avoids."""
    files = sorted(path for path in PACKAGE.rglob("*") if path.suffix in {".py", ".pyx", ".pxd"})
    sources = {path: path.read_text() for path in files}
    trees = {path: ast.parse(text) for path, text in sources.items() if path.suffix == ".py"}
    inside = [tree for path, tree in trees.items() if path.is_relative_to(CONSUMER)]
    cython = [
        text
        for path, text in sources.items()
        if path.suffix == ".pyx" and path.parts[1] in {"client", "consumer"}
    ]
    functions = [
        node
        for tree in inside
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    constructors = [function for function in functions if function.name == "__init__"]
    attributes = [
        node for tree in inside for node in ast.walk(tree) if isinstance(node, ast.Attribute)
    ]
    source = trees[CONSUMER / "fetching" / "source.py"]
    return {
        "lines of .py, .pyx and .pxd files": sum(text.count("\n") for text in sources.values()),
        "modules": len(trees),
        "words of docstrings": sum(map(_words_of_docstrings, trees.values())),
        "lines of .pyx files in client/ and consumer/": sum(text.count("\n") for text in cython),
        "fields that they reach by memory offset": sum(
            text.count("= slot_offset(") for text in cython
        ),
        "signatures in consumer/ with SubscriptionState": sum(
            any("SubscriptionState" in annotation for annotation in _annotations(function))
            for function in functions
        ),
        "services reached by way of the state in consumer/": sum(
            node.attr in SERVICES and ast.unparse(node.value).endswith("state")
            for node in attributes
        ),
        "callable constructor arguments in consumer/": sum(
            "Callable" in annotation
            for constructor in constructors
            for annotation in _annotations(constructor)
        ),
        "fields of Source": max(map(_field_count, _classes(source))),
    }


def _words_of_docstrings(tree: ast.Module) -> int:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [ast.get_docstring(n) for n in ast.walk(tree) if isinstance(n, documented)]
    return sum(len(docstring.split()) for docstring in docstrings if docstring)


def _annotations(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    named = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return [ast.unparse(each.annotation) for each in named if each.annotation is not None]


def _field_count(owner: ast.ClassDef) -> int:
    """Count what the methods of a class assign to `self`."""
    return len(
        {
            node.attr
            for node in ast.walk(owner)
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and ast.unparse(node.value) == "self"
        }
    )


def _classes(tree: ast.AST) -> list[ast.ClassDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def _foreign_privates(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Yield where a module reaches for a private attribute that is not its own object's."""
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or not node.attr.startswith("_"):
                continue
            is_special = node.attr.startswith("__") or node.attr in {"_replace", "_fields", "_make"}
            is_own = isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}
            if not is_special and not is_own:
                yield f"{path.relative_to(CONSUMER)}:{node.lineno} {ast.unparse(node)}"


def _names_that_stand_twice() -> list[str]:
    names = Counter(
        node.name
        for path in PACKAGE.rglob("*.py")
        if "messages" not in path.parts and not path.stem.endswith("_py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return sorted(name for name, count in names.items() if count > 1)


# --- Walks --------------------------------------------------------------------------------------
async def _walk_all(bootstrap_servers: str, record_count: int) -> dict[str, Walked]:
    async def by_getmany(consumer: Consumer, wanted: int) -> int:
        found = 0
        while found < wanted:
            records = await consumer.getmany(timeout_ms=10_000, max_records=RECORDS_A_GET)
            found += sum(map(len, records.values()))
        return found

    async def by_iteration(consumer: Consumer, wanted: int) -> int:
        found = 0
        async for _ in consumer:
            found += 1
            if found >= wanted:
                break
        return found

    ways = {"getmany": by_getmany, "async for": by_iteration}
    return {name: await _walk(bootstrap_servers, way, record_count) for name, way in ways.items()}


async def _walk(
    bootstrap_servers: str, way: Callable[[Consumer, int], Awaitable[int]], record_count: int
) -> Walked:
    """Count what a way of taking records enters, once it runs steadily."""
    calls: Counter[tuple[str, str]] = Counter()
    root = str(PACKAGE.resolve())

    def called(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        is_ours = code.co_filename.startswith(root) or code.co_filename.startswith("<aiokafka_lite")
        if event == "call" and is_ours:
            name = getattr(code, "co_qualname", code.co_name)  # from Python 3.11 on
            calls[(code.co_filename.removeprefix(root).lstrip("/"), name)] += 1

    async with AIOKafkaConsumer(
        TOPIC, bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest"
    ) as consumer:
        await way(consumer, WARM_UP_GETS * RECORDS_A_GET)
        sys.setprofile(called)
        try:
            found = await way(consumer, record_count - WARM_UP_GETS * RECORDS_A_GET)
        finally:
            sys.setprofile(None)
    files: Counter[str] = Counter()
    for (file, _), count in calls.items():
        files[file] += count
    return Walked(
        files=files,
        classes={name.rpartition(".")[0] for _, name in calls if "." in name},
        functions=set(calls),
        call_count=calls.total(),
        record_count=found,
    )


if __name__ == "__main__":
    sys.exit(main())
