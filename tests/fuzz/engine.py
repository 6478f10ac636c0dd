"""A target, the rules that every execution of it has to keep, and the loop that fuzzes it.

| rule | broken by |
|---|---|
| crash | a process that dies: only `running.py`, which watches another process, can tell |
| hang | more than `Limits.cpu_s` of processor time |
| error | an exception that is not one of `Target.allowed` |
| answer | what the target itself checks: `Broken` |
| memory | a peak of resident memory more than `Limits.memory_bytes` above the start |
| loop | a step of the event loop longer than `Limits.held_ms_per_mib` allows |

An input depends on the seed, on the number of the execution and on the inputs before, and on
nothing else. An input whose outcome is new (`Target.run` returns it) is mutated further.

To measure time and memory takes longer than most inputs. So inputs are run in batches, under the
limits of a single input. Only if a batch exceeds one are its inputs run and measured one by one.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import os
import random
import re
import signal
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import ClassVar, Final

from tests.fuzz import mutations

MIB: Final = 1 << 20
LARGEST_INPUT_BYTES: Final = 1 << 18
LARGEST_KEPT_BYTES: Final = 1 << 14
MOST_INPUTS: Final = 3_000
COLLECT_EVERY: Final = 16  # batches
VARIANTS: Final = 16
SHRINKING_RUNS: Final = 300
IS_ASAN: Final = "libasan" in os.environ.get("LD_PRELOAD", "")
SLOWNESS: Final = 5 if IS_ASAN else 1
ROOT: Final = Path(__file__).resolve().parents[2]


class Broken(Exception):
    """A target's own finding: the answer is wrong."""


class OutOfTimeError(KeyboardInterrupt):
    """The processor time of an execution is used up. No handler of the package may catch it."""


@dataclass(frozen=True)
class Limits:
    """The limits of one execution.

    Attributes:
        cpu_s: Processor time, after which it counts as a hang.
        memory_bytes: Resident memory on top of what the process has at the start.
        held_ms_per_mib: Processor time of one step of the event loop, for each MiB of the input
            that has begun.
    """

    cpu_s: float = 1.0
    memory_bytes: int = 64 * MIB
    held_ms_per_mib: float = 50.0


@dataclass(frozen=True)
class Violation:
    """A broken rule. `key` is the same for inputs that break it in the same way."""

    rule: str
    key: str
    report: str


class Target(ABC):
    """One entry that takes bytes from others.

    Attributes:
        name: For the command line, and in files of inputs.
        allowed: The errors that the entry may raise, each with the reason in the class's comment.
        weight: Its part of the time, beside those of the others.
        batch_size: The number of inputs that are measured at once.
    """

    name: ClassVar[str]
    allowed: ClassVar[tuple[type[Exception], ...]] = ()
    limits: ClassVar[Limits] = Limits()
    weight: ClassVar[int] = 1
    batch_size: ClassVar[int] = 8

    def __init__(self) -> None:
        self.longest_hold_s = 0.0
        # Whether an input is run to measure it, and not in a batch.
        self.is_alone = False

    @abstractmethod
    def seeds(self) -> Sequence[bytes]:
        """Return well-formed inputs, at least one."""

    @abstractmethod
    def run(self, content: bytes) -> str:
        """Take an input. Return how it was taken: of a new outcome more inputs are made."""

    def mutate(self, rng: random.Random, content: bytes, pool: Sequence[bytes]) -> bytes:
        """Return another input."""
        return mutations.changed(rng, content, pool)

    def variants(
        self, rng: random.Random, content: bytes, pool: Sequence[bytes], count: int
    ) -> list[bytes]:
        """Return at most `count` other inputs. Several of one input save to parse it each time."""
        return [self.mutate(rng, content, pool)]

    def on_loop(self) -> AbstractContextManager[object]:
        """Measure what an event loop would have to run at once."""
        return _Hold(self)

    def held(self, seconds: float) -> None:
        """Note the processor time of a step of the event loop."""
        self.longest_hold_s = max(self.longest_hold_s, seconds)


class _Hold:
    """A step of the event loop. A class, because a generator takes longer."""

    __slots__ = ("_began", "_target")

    def __init__(self, target: Target) -> None:
        self._target = target
        self._began = time.thread_time()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self._target.held(time.thread_time() - self._began)


# --- One execution -----------------------------------------------------------------------------
class PeakMemory:
    """The resident memory of this process at its highest, since `begin`. 0 where unknown.

    An allocation that fits into memory the heap has freed but not returned does not make the
    process grow: `return_free_memory` comes first.
    """

    def __init__(self) -> None:
        self._status, self._reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
        is_there = self._status.exists() and self._reset.exists()
        self.is_known = is_there and SLOWNESS == 1  # AddressSanitizer keeps freed memory
        self._before = 0

    def return_free_memory(self) -> None:
        gc.collect()
        if not gc.isenabled():  # in `Fuzzer.run`, which unfreezes: what is left is never garbage
            gc.freeze()
        if self.is_known:
            with suppress(AttributeError):  # only glibc has it
                ctypes.CDLL(None).malloc_trim(0)

    def begin(self) -> None:
        if self.is_known:
            self._reset.write_bytes(b"5")
            self._before = self._peak()

    def grown_by(self) -> int:
        return self._peak() - self._before if self.is_known else 0

    def _peak(self) -> int:
        found = re.search(rb"VmHWM:\s*(\d+) kB", self._status.read_bytes())
        return int(found[1]) << 10 if found else 0


class Runner:
    """Runs one target's inputs, and checks the rules. Only in a process's main thread."""

    def __init__(self, target: Target) -> None:
        self.target = target
        # Called with each input before it is run.
        self.before: Callable[[bytes], None] = lambda content: None
        self._memory = PeakMemory()
        self._batches_left = 0  # until the garbage is collected

    def execute(self, content: bytes) -> str | Violation:
        """Run an input. Return its outcome, or the rule that it breaks."""
        found = self._attempt(content)
        # Processor time is not quite the same each time: what is too slow has to be so twice.
        if isinstance(found, Violation) and found.rule in ("hang", "loop", "memory"):
            self._memory.return_free_memory()
            again = self._attempt(content)
            return found if isinstance(again, Violation) else again
        return found

    def execute_all(self, contents: Sequence[bytes]) -> list[str | Violation]:
        """Run inputs. Return what `execute` does for each."""
        found: list[str | Violation] = []
        while len(found) < len(contents):
            found += self._attempt_together(contents[len(found) :])
            # An input that has no outcome now is the one that exceeds a limit, or may be.
            if len(found) < len(contents):
                found.append(self.execute(contents[len(found)]))
        return found

    def _attempt(self, content: bytes) -> str | Violation:
        self.target.is_alone = True
        found, exceeded = self._measured([content])
        return exceeded or found[0]

    def _attempt_together(self, contents: Sequence[bytes]) -> list[str | Violation]:
        """Run inputs within the limits of one. Return the outcomes of those that kept to them."""
        self.target.is_alone = False
        found, exceeded = self._measured(contents)
        if exceeded is None or exceeded.rule == "hang":
            return found
        one_by_one = []
        for content in contents:
            self._memory.return_free_memory()
            one_by_one.append(self.execute(content))
        return one_by_one

    def _measured(
        self, contents: Sequence[bytes]
    ) -> tuple[list[str | Violation], Violation | None]:
        """Run inputs. Return their outcomes, and the limit that they exceed together."""
        target, limits = self.target, self.target.limits
        self._batches_left -= 1
        if self._batches_left < 0:
            self._batches_left = COLLECT_EVERY
            self._memory.return_free_memory()
        target.longest_hold_s = 0.0
        found: list[str | Violation] = []
        self._memory.begin()
        try:
            with _cpu_limit(limits.cpu_s * SLOWNESS):
                for content in contents:
                    self.before(content)
                    found.append(self._outcome(content))
        except OutOfTimeError as error:
            return found, _violation("hang", error)
        grown = self._memory.grown_by()
        if grown > limits.memory_bytes // 4:
            self._batches_left = 0  # the heap may keep it, and the next ones would grow by less
        if grown > limits.memory_bytes:
            return found, Violation("memory", "memory", f"{grown >> 20} MiB on top")
        begun_mib = max(1, -(-min(map(len, contents)) // MIB))
        allowed_s = limits.held_ms_per_mib * SLOWNESS / 1000 * begun_mib
        if (held_s := target.longest_hold_s) > allowed_s:
            return found, Violation("loop", "loop", f"{held_s * 1000:.0f} ms at once")
        return found, None

    def _outcome(self, content: bytes) -> str | Violation:
        try:
            return self.target.run(content)
        except self.target.allowed as error:
            # Its frames refer to it: without them, no cycles wait for the garbage collection.
            error.__traceback__ = None
            return outcome_of(error)
        except Broken as error:
            return _violation("answer", error)
        except Exception as error:  # noqa: BLE001 -- that is the rule
            return _violation("error", error)


@contextmanager
def _cpu_limit(limit_s: float) -> Iterator[None]:
    previous = signal.signal(signal.SIGPROF, _raise_out_of_time)
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


def _raise_out_of_time(signal_number: int, frame: FrameType | None) -> None:
    raise OutOfTimeError("the processor time is used up")


def _violation(rule: str, error: BaseException) -> Violation:
    report = "".join(traceback.format_exception(error))
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "aiokafka_lite" in f.filename and "tests" not in f.filename]
    place = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
    text = _without_values(str(error)) if isinstance(error, Broken) else ""
    key = f"{rule} {type(error).__name__} {place} {text}".strip()
    return Violation(rule, rule if rule == "hang" else key, report)


def outcome_of(error: BaseException) -> str:
    """Return an error's type and text without its values: one of a few hundred outcomes."""
    return f"{type(error).__name__}: {_without_values(str(error))}"


def _without_values(text: str) -> str:
    return _VALUES.sub("#", text)[:100]


_VALUES: Final = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")


# --- Fuzzing -----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Found:
    """A broken rule, and an input that breaks it."""

    violation: Violation
    content: bytes


class Fuzzer:
    """Runs the seeds, and then mutations of the inputs that are known, of one target."""

    def __init__(self, target: Target, seed: int) -> None:
        self.runner = Runner(target)
        self._target = target
        self._seed = seed
        self._seeds = list(target.seeds())
        self.pool = [*self._seeds]
        self._outcomes: set[str] = set()
        self._batch_count = 0
        self.count = 0
        self.found: dict[str, Found] = {}

    @property
    def mutation_count(self) -> int:
        """The number of executions after the seeds."""
        return max(0, self.count - len(self._seeds))

    @property
    def outcome_count(self) -> int:
        return len(self._outcomes)

    def _batch(self, number: int) -> list[bytes]:
        """Return the inputs of a batch: first the seeds as they are."""
        size = self._target.batch_size
        if seeds := self._seeds[number * size : (number + 1) * size]:
            return seeds
        rng = mutations.Dice(f"{self._seed} {self._target.name} {number}")
        pool = self.pool
        found: list[bytes] = []
        while len(found) < size:
            # Later inputs are rarer outcomes.
            first = 0 if rng.random() < 0.6 else max(0, len(pool) - 64)
            content = pool[rng.randrange(first, len(pool))]
            most = min(VARIANTS, size - len(found))
            found += self._target.variants(rng, content, pool, most)
        return [content[:LARGEST_INPUT_BYTES] for content in found]

    def step(self) -> None:
        """Run the next batch."""
        contents = self._batch(self._batch_count)
        self._batch_count += 1
        self.count += len(contents)
        for content, found in zip(contents, self.runner.execute_all(contents), strict=True):
            if isinstance(found, str):
                if found not in self._outcomes:
                    self._outcomes.add(found)
                    if len(self.pool) < MOST_INPUTS and len(content) <= LARGEST_KEPT_BYTES:
                        self.pool.append(content)
            elif found.key not in self.found:
                self.found[found.key] = Found(found, self._shrunk(content, found))

    def run(self, until: Callable[[], bool]) -> None:
        """Run batches, all seeds at least, until a condition holds."""
        gc.collect()
        gc.freeze()
        was_enabled = gc.isenabled()
        gc.disable()  # its pauses would count as the target's
        try:
            while self.count < len(self._seeds) or not until():
                self.step()
        finally:
            if was_enabled:
                gc.enable()
            gc.unfreeze()

    def _shrunk(self, content: bytes, violation: Violation) -> bytes:
        """Remove pieces as long as the input breaks the same rule in the same way."""
        if violation.rule == "hang":
            return content
        runs, size = 0, max(1, len(content) // 2)
        while size:
            start = 0
            while start < len(content) and runs < SHRINKING_RUNS:
                shorter = content[:start] + content[start + size :]
                runs += 1
                found = self.runner.execute(shorter)
                if isinstance(found, Violation) and found.key == violation.key:
                    content = shorter
                else:
                    start += size
            size //= 2
        return content


# --- Files -------------------------------------------------------------------------------------
def write_input(folder: Path, name: str, content: bytes) -> Path:
    """Write an input with its target's name in the first line."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{hashlib.sha256(content).hexdigest()[:12]}.input"
    path.write_bytes(name.encode() + b"\n" + content)
    return path


def read_input(path: Path) -> tuple[str, bytes]:
    """Return a target's name and the input that `write_input` has written."""
    name, _, content = path.read_bytes().partition(b"\n")
    return name.decode(), content


def replay_command(path: Path) -> str:
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    return f'make fuzz ARGS="--replay {shown}"'
