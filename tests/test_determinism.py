"""A lint: what a seed cannot decide is used in the listed places only.

On a simulated loop (aiokafka_lite/simulation/), one seed decides a run. Each rule finds one kind
of use of the outside world in the package's source. An exception names a file or a folder, the
rule, and why a simulation does not depend on it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import aiokafka_lite
from tests.support.for_each import for_each

PACKAGE: Final = Path(aiokafka_lite.__file__).parent

# --- The rules ----------------------------------------------------------------------------------
# Functions and classes by their full names. A trailing dot: everything in the module.
NAMES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "clock": (
            "time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.sleep",
            "time.perf_counter", "time.perf_counter_ns", "time.process_time", "time.thread_time",
            "time.localtime", "time.gmtime", "time.strftime", "time.clock_gettime",
            "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today",
            "datetime.date.today",
        ),
        "chance": (
            "random.", "secrets.", "uuid.uuid1", "uuid.uuid4", "os.urandom", "os.getrandom",
        ),
        "thread": (
            "threading.Thread", "threading.Timer", "threading.Event", "threading.Condition",
            "threading.Semaphore", "threading.BoundedSemaphore", "threading.Barrier",
            "concurrent.futures.ThreadPoolExecutor", "concurrent.futures.ProcessPoolExecutor",
            "asyncio.to_thread", "multiprocessing.", "subprocess.", "signal.", "os.fork",
        ),
        "descriptor": (
            "os.dup", "os.dup2", "os.read", "os.readv", "os.write", "os.writev", "os.sendfile",
            "os.pipe", "socket.socket", "socket.socketpair", "socket.create_connection",
            "socket.create_server", "socket.getaddrinfo", "socket.gethostbyname", "select.",
            "selectors.",
        ),
    }
)  # fmt: skip
# Methods of any object.
METHODS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "thread": ("run_in_executor", "set_default_executor", "add_signal_handler"),
        "descriptor": (
            "fileno", "sockets", "add_reader", "add_writer", "remove_reader", "remove_writer",
            "sock_recv", "sock_recv_into", "sock_sendall", "sock_connect", "sock_accept",
            "connect_accepted_socket", "connect_read_pipe", "connect_write_pipe",
        ),
    }
)  # fmt: skip
# Python's functions.
CALLS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({"address": ("id", "hash")})
# Types that annotations and isinstance may name.
TYPES: Final = frozenset({"random.Random", "socket.socket"})


class Found(NamedTuple):
    rule: str
    line: int
    text: str


# --- Names --------------------------------------------------------------------------------------
def imported_names(tree: ast.Module) -> dict[str, str]:
    """Return the full names of what a module imports, by its own names for it."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                names[each.asname or each.name.partition(".")[0]] = (
                    each.name if each.asname else each.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for each in node.names:
                names[each.asname or each.name] = f"{node.module}.{each.name}"
    return names


def full_name(node: ast.expr, names: Mapping[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute) and (owner := full_name(node.value, names)):
        return f"{owner}.{node.attr}"
    return None


def is_in(name: str, listed: tuple[str, ...]) -> bool:
    return any(name.startswith(each) if each.endswith(".") else name == each for each in listed)


def types_only(tree: ast.Module) -> set[int]:
    """Return the ids of expressions that are annotations, base classes or isinstance's types."""
    only: set[int] = set()

    def add(node: ast.expr | None) -> None:
        if node is not None:
            only.update(id(each) for each in ast.walk(node))

    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign):
            add(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            add(node.returns)
        elif isinstance(node, ast.ClassDef):
            for base in node.bases:
                add(base)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("isinstance", "cast")
        ):
            for each in node.args:
                add(each)
    return only


def uses(tree: ast.Module) -> Iterator[Found]:
    names, only = imported_names(tree), types_only(tree)
    inner = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)
    }  # parts of longer names
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and id(node) not in inner:
            name = full_name(node, names) or ""
            for rule, listed in NAMES.items():
                if is_in(name, listed) and not (name in TYPES and id(node) in only):
                    yield Found(rule, node.lineno, name)
        if isinstance(node, ast.Attribute) and id(node) not in only:
            for rule, listed in METHODS.items():
                if node.attr in listed:
                    yield Found(rule, node.lineno, ast.unparse(node))
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                for rule, listed in CALLS.items():
                    if node.func.id in listed:
                        yield Found(rule, node.lineno, ast.unparse(node))
            elif (
                isinstance(node.func, ast.Attribute)
                and node.func.attr == "get_extra_info"
                and "socket" in ast.unparse(node)
            ):
                yield Found("descriptor", node.lineno, ast.unparse(node))


def counters(tree: ast.Module) -> Iterator[Found]:
    """Yield counts of the process, which a second simulation in it continues."""
    names = imported_names(tree)
    for node in tree.body:
        value = getattr(node, "value", None)
        if isinstance(value, ast.Call) and full_name(value.func, names) == "itertools.count":
            yield Found("count", node.lineno, ast.unparse(node))


# --- The order of sets --------------------------------------------------------------------------
SETS: Final = re.compile(
    r"(?:Final\[|ClassVar\[)?(?:set|frozenset|AbstractSet|Set|MutableSet|(?:weakref\.)?WeakSet)\b"
)
# Whose elements are numbers, which are ordered alike in each process.
NUMBERS: Final = re.compile(r"\w+\[(?:int|bool)\]$")
SET_METHODS: Final = ("union", "intersection", "difference", "symmetric_difference", "copy")
# Take the elements in any order.
UNORDERED: Final = frozenset(
    {"sorted", "any", "all", "len", "sum", "min", "max", "set", "frozenset", "bool", "Counter"}
)
ORDERED: Final = frozenset(
    {"list", "tuple", "iter", "enumerate", "zip", "map", "filter", "dict", "deque", "chain"}
)
ORDERED_METHODS: Final = frozenset({"extend", "join", "fromkeys", "from_iterable"})


def is_set_type(annotation: ast.expr | None) -> bool:
    if annotation is None:
        return False
    text = ast.unparse(annotation).strip("'\"")
    inner = re.sub(r"^(?:Final|ClassVar)\[(.*)\]$", r"\1", text).removesuffix(" | None")
    return bool(SETS.match(inner)) and not NUMBERS.match(inner)


Scope = Mapping[str, bool]


class Sets:
    """Finds iterations over sets, whose order is that of hashes.

    A name or an attribute is a set if its annotation, or what is assigned to it, is one. Attributes
    of other objects count if they are sets wherever a class of the package declares them.
    """

    def __init__(self, trees: Mapping[Path, ast.Module]) -> None:
        declared: dict[str, set[bool]] = {}
        for tree in trees.values():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    for name, is_set in self._declared_by(node):
                        declared.setdefault(name, set()).add(is_set)
        self.attributes = frozenset(name for name, kinds in declared.items() if kinds == {True})
        returned: dict[str, set[bool]] = {}
        for tree in trees.values():
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    returned.setdefault(node.name, set()).add(is_set_type(node.returns))
        # Functions that return sets wherever they are defined.
        self.functions = frozenset(name for name, kinds in returned.items() if kinds == {True})

    @staticmethod
    def _declared_by(node: ast.ClassDef) -> Iterator[tuple[str, bool]]:
        for each in ast.walk(node):
            if isinstance(each, ast.AnnAssign):
                target = each.target
                if isinstance(target, ast.Attribute) or each in node.body:
                    name = target.attr if isinstance(target, ast.Attribute) else ast.unparse(target)
                    yield name, is_set_type(each.annotation)
            elif isinstance(each, ast.Assign) and isinstance(
                each.value, ast.List | ast.Dict | ast.Set | ast.SetComp
            ):
                for found in each.targets:
                    if isinstance(found, ast.Attribute):
                        yield found.attr, isinstance(each.value, ast.Set | ast.SetComp)
            elif isinstance(each, ast.FunctionDef) and any(
                "property" in ast.unparse(one) for one in each.decorator_list
            ):
                yield each.name, is_set_type(each.returns)

    def is_set(self, node: ast.expr, scope: Scope) -> bool:
        match node:
            case ast.Set(elts=elements):
                return not all(
                    isinstance(each, ast.Constant) and isinstance(each.value, int)
                    for each in elements
                )
            case ast.SetComp():
                return True
            case ast.Call(func=ast.Name(id="set" | "frozenset")):
                return True
            case ast.Call(func=ast.Attribute(value=owner, attr=name)) if name in SET_METHODS:
                return self.is_set(owner, scope)
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
                return name in self.functions
            case ast.Await(value=value):
                return self.is_set(value, scope)
            case ast.BinOp(left=left, right=right, op=ast.BitOr() | ast.BitAnd() | ast.Sub()):
                sides = (left, right)
                return any(self.is_set(each, scope) or is_view(each) for each in sides)
            case ast.Name(id=name):
                return scope.get(name, False)
            case ast.Attribute(value=ast.Name(id="self"), attr=name) if f"self.{name}" in scope:
                return scope[f"self.{name}"]
            case ast.Attribute(attr=name):
                return name in self.attributes
            case ast.IfExp(body=body, orelse=other):
                return self.is_set(body, scope) or self.is_set(other, scope)
            case ast.BoolOp(values=values):
                return any(self.is_set(each, scope) for each in values)
            case ast.NamedExpr(value=value):
                return self.is_set(value, scope)
        return False

    def found(self, tree: ast.Module) -> Iterator[Found]:
        yield from self._visit(tree, {}, {id(each) for each in unordered(tree)})

    def _visit(self, node: ast.AST, scope: Scope, free: set[int]) -> Iterator[Found]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
            scope = self._names_of(node, scope)
        elif isinstance(node, ast.ClassDef):
            own = {f"self.{name}": is_set for name, is_set in self._declared_by(node)}
            scope = {**scope, **own}
        for each in iterated(node):
            if id(node) not in free and self.is_set(each, scope):
                yield Found("order", each.lineno, ast.unparse(node).split("\n")[0])
        for child in ast.iter_child_nodes(node):
            yield from self._visit(child, scope, free)

    def _names_of(self, node: ast.AST, outer: Scope) -> Scope:
        """Return which names are sets inside a function or a module."""
        scope = dict(outer)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = node.args
            for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                scope[one.arg] = is_set_type(one.annotation)
        for each in own_nodes(node):
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                scope[each.target.id] = is_set_type(each.annotation)
            elif isinstance(each, ast.NamedExpr):
                scope[each.target.id] = self.is_set(each.value, scope)
            elif isinstance(each, ast.Assign):
                for target in each.targets:
                    if isinstance(target, ast.Name):
                        scope[target.id] = self.is_set(each.value, scope)
                    elif isinstance(target, ast.Tuple) and isinstance(each.value, ast.Tuple):
                        pairs = zip(target.elts, each.value.elts, strict=False)
                        scope.update(
                            (name.id, self.is_set(value, scope))
                            for name, value in pairs
                            if isinstance(name, ast.Name)
                        )
        return scope


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes inside a function or a module, without those of functions in it."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from own_nodes(child)


def is_view(node: ast.expr) -> bool:
    """Whether this is the view of a dict, whose operators return sets."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("keys", "items")
        and not node.args
    )


def unordered(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield the expressions whose elements are taken in any order."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name), args=args) if name in UNORDERED:
                yield from args
            case ast.Call(func=ast.Attribute(attr=name), args=args) if name in SET_METHODS:
                yield from args
            case ast.Set(elts=elements):
                yield from elements


def iterated(node: ast.AST) -> list[ast.expr]:
    """Return the expressions whose elements a node takes in order."""
    match node:
        case ast.For(iter=each) | ast.AsyncFor(iter=each):
            return [each]
        case ast.ListComp() | ast.GeneratorExp() | ast.DictComp():
            return [each.iter for each in node.generators]
        case ast.Starred(value=each, ctx=ast.Load()):
            return [each]
        case ast.Call(func=ast.Name(id=name), args=args) if name in ORDERED:
            return args
        case ast.Call(func=ast.Attribute(attr=name), args=args) if name in ORDERED_METHODS:
            return args
        case ast.Call(func=ast.Attribute(value=each, attr="pop"), args=[]):
            return [each]
    return []


@cache
def trees() -> Mapping[Path, ast.Module]:
    files = sorted(PACKAGE.rglob("*.py"))
    return {file.relative_to(PACKAGE): ast.parse(file.read_text()) for file in files}


def found_in(tree: ast.Module, sets: Sets) -> list[Found]:
    return [*uses(tree), *counters(tree), *sets.found(tree)]


# --- The exceptions -----------------------------------------------------------------------------
NO_LOOP: Final = "blocking clients have a real loop of their own"
COMMANDS: Final = "a process of its own, with real clusters"
THREADED: Final = "a BrokerThread has a loop and a thread of its own, and is for real programs"
TLS_HANDSHAKE: Final = "of real loops: a simulated loop shakes hands itself"
FORK: Final = "called in forked children only"
WEB: Final = "web servers listen on the real network"
EXCEPTIONS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "_chance.py": {
            "chance": "the one source of random numbers and ids",
        },
        "_virtual.py": {"clock": "the clocks of real loops, and of the simulated ones"},
        "_signals.py": {"thread": "a simulation replaces the functions of `signal`"},
        "_sockets.py": {"descriptor": "decides which sockets are real"},
        "_threads.py": {
            "thread": "the threads of real loops, which simulated loops replace",
            "descriptor": "resolves names in a thread, on real loops",
        },
        "_forks.py": {"descriptor": FORK, "order": FORK},
        "_pages/serving.py": {"descriptor": WEB},
        "broker/groups/kip848/re2.py": {"order": "collects states into a set, in any order"},
        "broker/log/disk.py": {"thread": "the thread of real loops"},
        "broker/log/producers.py": {"order": "deletes all of the ids, which are numbers"},
        "broker/log/segment.py": {"count": "only names temporary files"},
        "broker/node.py": {"descriptor": TLS_HANDSHAKE},
        "broker/network/frames.py": {"descriptor": "asks _sockets.py"},
        "broker/network/dispatcher.py": {"address": "counts different objects"},
        "broker/server.py": {"chance": "secrets of a broker without a seed"},
        "broker/thread.py": {"thread": THREADED},
        "cli": dict.fromkeys(("clock", "descriptor", "thread"), COMMANDS),
        "client/blocking_cluster.py": dict.fromkeys(("chance", "clock", "descriptor"), NO_LOOP),
        "client/connection.py": {
            "descriptor": "after a fork, the end of a real loop, and for the size of a buffer"
        },
        "client/network_errors.py": {"descriptor": "parses an address without resolving it"},
        "client/offset_lookups.py": dict.fromkeys(("chance", "clock"), NO_LOOP),
        "confluent.py": {"thread": "asyncio.to_thread asks the loop, which may be simulated"},
        "consumer/caller.py": {"address": "remembers callbacks; their order has no effect"},
        "consumer/delivery/record_cursor.py": {
            "clock": "a simulated loop has no limit for a block (`ReadyRecords`)"
        },
        "consumer/membership/heartbeat_thread.py": dict.fromkeys(
            ("clock", "thread"), "is not begun on a simulated loop"
        ),
        "consumer/monitoring/loop_probe.py": {"address": "finds the timer of a loop"},
        "extras": dict.fromkeys(("clock", "thread"), WEB),
        "producing/config.py": {"count": "names the clients of real loops"},
        "producing/transactions.py": {"order": "asyncio.wait makes a set of it anyway"},
        "protocol/source.py": {"count": "only names generated code"},
        "pytest_plugin.py": {"count": "names topics of the fixture's broker, which has a thread"},
        "simulation": dict.fromkeys(
            ("address", "chance", "clock", "thread"),
            "makes the simulation: a seed decides its clocks and random numbers",
        ),
        "settings": dict.fromkeys(("chance", "descriptor"), COMMANDS),
        "settings/oauth.py": {"clock": COMMANDS, "thread": "ends a request that blocks"},
        "spark": dict.fromkeys(
            ("address", "chance", "clock", "descriptor", "thread", "order"),
            "Spark's workers use blocking clients",
        ),
    }
)


def place_of(path: Path) -> str:
    """Return the entry of the exceptions that is for a file."""
    for place in (path, *path.parents):
        if place.as_posix() in EXCEPTIONS:
            return place.as_posix()
    return ""


@cache
def everything() -> list[tuple[Path, Found]]:
    sets = Sets(trees())
    return [(path, each) for path, tree in trees().items() for each in found_in(tree, sets)]


def test_a_seed_decides_everything_but_the_exceptions() -> None:
    found = [
        f"{path}:{each.line}: {each.rule}: {each.text}"
        for path, each in everything()
        if each.rule not in EXCEPTIONS.get(place_of(path), {})
    ]
    assert not found, (
        "use _virtual.py, _chance.py, _threads.py or _sockets.py, or an order that no hash "
        "decides; if a simulation does not depend on it, list it with the reason:\n"
        + "\n".join(found)
    )


def test_every_exception_is_needed() -> None:
    needed = {(place_of(path), each.rule) for path, each in everything()}
    listed = {(place, rule) for place, rules in EXCEPTIONS.items() for rule in rules}
    assert listed - needed == set()


# Compiled modules have no syntax tree here, so their imports are searched.
EXTENSION_IMPORTS: Final = re.compile(
    r"^\s*(?:cimport|import|from)\b[^#\n]*\b(?:time|_coarse|random|rand|uuid|secrets|threading|"
    r"socket|select)\b",
    re.MULTILINE,
)
EXTENSION_EXCEPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {"consumer/delivery/record_cursor.pxd": "as record_cursor.py"}
)


def test_extensions_import_no_clock_and_no_chance() -> None:
    sources = [*PACKAGE.rglob("*.pyx"), *PACKAGE.rglob("*.pxd")]
    assert len(sources) > 20
    found = {
        source.relative_to(PACKAGE).as_posix()
        for source in sources
        if EXTENSION_IMPORTS.search(source.read_text())
    }
    assert found == EXTENSION_EXCEPTIONS.keys()
    assert EXTENSION_IMPORTS.search("from libc.time cimport time")
    assert EXTENSION_IMPORTS.search("cimport aiokafka_lite.consumer.delivery._coarse as clock")
    assert EXTENSION_IMPORTS.search("from libc.stdlib cimport malloc, rand")


# --- The lint itself ----------------------------------------------------------------------------
def rules_of(*sources: str) -> list[str]:
    """Return the rules that the last of these sources breaks."""
    planted = {Path(f"{number}.py"): ast.parse(text) for number, text in enumerate(sources)}
    return [each.rule for each in found_in([*planted.values()][-1], Sets(planted))]


@for_each([
        ("clock", "import time\ntime.time()"),
        ("clock", "from time import monotonic as now\nnow()"),
        ("clock", "import time\ndef f(clock=time.perf_counter): ..."),
        ("clock", "import datetime as d\nd.datetime.now()"),
        ("clock", "from datetime import datetime\ndatetime.utcnow()"),
        ("chance", "import random\nrandom.Random()"),
        ("chance", "import random as r\nr.choice([1])"),
        ("chance", "from secrets import token_bytes\ntoken_bytes(1)"),
        ("chance", "import uuid\nuuid.uuid4()"),
        ("chance", "import os\nos.urandom(1)"),
        ("thread", "import threading\nthreading.Thread()"),
        ("thread", "from concurrent.futures import ThreadPoolExecutor\nThreadPoolExecutor()"),
        ("thread", "loop.run_in_executor(None, f)"),
        ("thread", "import asyncio\nasyncio.to_thread(f)"),
        ("descriptor", "transport.get_extra_info('socket')"),
        ("descriptor", "import os\nos.writev(1, [])"),
        ("descriptor", "sock.fileno()"),
        ("descriptor", "server.sockets[0]"),
        ("descriptor", "loop.remove_reader(1)"),
        ("descriptor", "import socket\nsocket.getaddrinfo('a', 1)"),
        ("address", "id(f)"),
        ("address", "sorted(x, key=hash(x))"),
        ("count", "import itertools\n_numbers = itertools.count()"),
        ("count", "from itertools import count\n_numbers: object = count(1)"),
        ("order", "for x in {f(y), g(y)}: ..."),
        ("order", "a = set(b)\nfor x in a: ..."),
        ("order", "def f(a: frozenset[str]):\n    return list(a)"),
        ("order", "def f(a: 'set[str] | None'):\n    return [x for x in a or ()]"),
        ("order", "for x in a.keys() - b: ..."),
        ("order", "for x in a.keys() & b.keys(): ..."),
        ("order", "def f(a):\n    if b := {*a} - c:\n        return ', '.join(b)"),
        ("order", "def f(a: set[tuple[str, int]]):\n    return {x: 1 for x in a}"),
        ("order", "def f(a: set[str]):\n    return a.pop()"),
        ("order", "def f(a: set[str]):\n    g(*a)"),
        ("order", "class A:\n    def __init__(self):\n        self.b: set[str] = set()\n"
                  "    def f(self):\n        return tuple(self.b)"),
        ("order", "class A:\n    @property\n    def b(self) -> set[str]: ...\nlist(a.b)"),
        ("order", "def f() -> set[str]: ...\nlist(a.f())"),
        ("order", "async def f() -> set[str]: ...\nasync def g():\n    return [*await f()]"),
    ])  # fmt: skip
def test_the_lint_finds(rule: str, source: str) -> None:
    assert rules_of(source) == [rule]


@for_each(
    [
        "import time\ndef f(time): return time.time_of_day",
        "import random\ndef f(rng: random.Random) -> random.Random: return rng",
        "import random\nclass A(random.Random): ...",
        "import socket\nisinstance(a, socket.socket)",
        "import threading\nthreading.Lock()",
        "import itertools\nclass A:\n    def __init__(self):\n        self.n = itertools.count()",
        "transport.get_extra_info('peername')",
        "def f(a: set[str]):\n    return sorted(a), len(a), any(x for x in a), {*a}, set(a)",
        "def f(a: set[int]):\n    return list(a)",
        "def f(a: dict[str, int]):\n    return list(a), [x for x in a if x not in b]",
        "for x in {1, 2}: ...",
        "def f(a: list[str]):\n    a.pop()",
        "def f(a: set[str]): ...\ndef g(a: list[str]):\n    return tuple(a)",
        "class A:\n    b: set[str]\nclass C:\n    b: list[str]\nlist(x.b)",
        "def f(a: set[str]):\n    return b.union(*a)",
    ]
)
def test_the_lint_allows(source: str) -> None:
    assert rules_of(source) == []


def test_the_lint_reads_the_whole_package() -> None:
    assert len(trees()) > 300
    assert {each.rule for _, each in everything()} == {*NAMES, *CALLS, "order", "count"}
