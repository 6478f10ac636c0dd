"""Checks the arguments of public methods against their annotations, before the methods run.

Each kind of annotation has one check, so a wrong argument has the same error in every method. The
checks of a call take about a microsecond. Classes whose calls are per record have their own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from types import FunctionType, MappingProxyType
from typing import Any, Final, NamedTuple, TypeGuard, TypeVar

# The bits of a whole number up to which it becomes a float.
LONGEST_INT: Final = 1_024

ClassT = TypeVar("ClassT", bound=type)
T = TypeVar("T")


class Kind(NamedTuple):
    wanted: str
    is_right: Callable[[object], bool]
    error: type[TypeError | ValueError] = TypeError

    def check(self, name: str, given: object, *, or_none: bool = False) -> None:
        if not (given is None and or_none) and not self.is_right(given):
            wanted = f"{self.wanted} or None" if or_none else self.wanted
            raise self.error(expected(name, wanted, given))


def expected(name: str, wanted: str, given: object) -> str:
    shown = f"the class {given.__qualname__}" if isinstance(given, type) else repr(given)
    return f"{name} must be {wanted}, not {shown}"


def is_int(given: object) -> TypeGuard[int]:
    return isinstance(given, int) and not isinstance(given, bool)


def is_number(given: object) -> bool:
    """Whether a value is a float other than NaN, or an int that a float can hold."""
    if isinstance(given, float):
        return given == given
    return is_int(given) and given.bit_length() < LONGEST_INT


def plain(rule: str, result: T) -> T:
    """Return the result of a plain function. Raise TypeError with `rule` if it is awaitable."""
    if not inspect.isawaitable(result):
        return result
    if inspect.iscoroutine(result):
        result.close()
    raise TypeError(rule)


def one_of(*choices: str) -> Kind:
    return Kind(" or ".join(map(repr, choices)), lambda given: given in choices, ValueError)


def is_partition(given: object) -> bool:
    if not isinstance(given, tuple) or len(given) != 2:
        return False
    return isinstance(given[0], str) and is_int(given[1])


def is_list(given: object) -> TypeGuard[Iterable[object]]:
    return isinstance(given, Iterable) and not isinstance(given, str | bytes)


def are_ints(given: object) -> bool:
    return isinstance(given, Iterable) and all(is_int(each) for each in given)


FLAG: Final = Kind("True or False", lambda given: isinstance(given, bool))
FUNCTION: Final = Kind("a function", callable)
PLAIN_FUNCTION: Final = Kind(
    "a plain function",
    lambda given: callable(given) and not inspect.iscoroutinefunction(given),
)
INT: Final = Kind("an int", is_int)
POSITIVE_INT: Final = Kind("a positive int", lambda given: is_int(given) and given >= 1, ValueError)
NUMBER: Final = Kind("a number", is_number)
TEXT: Final = Kind("a str", lambda given: isinstance(given, str))
_KINDS: Final[Mapping[str, Kind]] = {
    "bool": FLAG,
    "int": INT,
    "float": NUMBER,
    "str": TEXT,
    "TopicPartition": Kind(
        "a TopicPartition with a str (topic) and an int (partition)", is_partition
    ),
}


def _kind_of(annotation: str, more: Mapping[str, Kind]) -> tuple[Kind, bool] | None:
    name = annotation.removesuffix(" | None")
    kind = more.get(name) or _KINDS.get(name)
    if kind is None and name.startswith("Callable["):
        kind = FUNCTION if "Coroutine[" in name else PLAIN_FUNCTION
    return None if kind is None else (kind, name != annotation)


def checks_arguments(
    kinds: Mapping[str, Kind] = MappingProxyType({}), *, unchecked: Collection[str] = ()
) -> Callable[[ClassT], ClassT]:
    """Let a class's constructor and public methods check arguments, except the `unchecked`."""

    def decorate(cls: ClassT) -> ClassT:
        for name, function in tuple(vars(cls).items()):
            is_public = name == "__init__" or not name.startswith("_")
            if is_public and name not in unchecked and isinstance(function, FunctionType):
                setattr(cls, name, _checked(function, kinds))
        return cls

    return decorate


def _checked(function: FunctionType, kinds: Mapping[str, Kind]) -> Callable[..., Any]:
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    checks = [
        (position, name, *found)
        for position, name in enumerate(names)
        if (found := _kind_of(str(function.__annotations__.get(name, "")), kinds)) is not None
    ]
    if not checks:
        return function

    def check(given: tuple[object, ...], named: Mapping[str, object]) -> None:
        for position, name, kind, or_none in checks:
            if position < len(given):
                kind.check(name, given[position], or_none=or_none)
            elif name in named:
                kind.check(name, named[name], or_none=or_none)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wait(*given: Any, **named: Any) -> Any:
            check(given, named)
            return await function(*given, **named)

        return wait

    @functools.wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        check(given, named)
        return function(*given, **named)

    return call


def check_fields(owner: object, kinds: Mapping[str, Kind] = MappingProxyType({})) -> None:
    for name, annotation in type(owner).__annotations__.items():
        found = _kind_of(str(annotation), kinds)
        if found is not None:
            found[0].check(name, getattr(owner, name), or_none=found[1])
