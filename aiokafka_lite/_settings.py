"""Settings: keyword arguments of a constructor that never change."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import update_wrapper
from types import FunctionType
from typing import TYPE_CHECKING, ClassVar, Concatenate, ParamSpec, SupportsIndex, TypeVar

from aiokafka_lite._compat import dataclass_transform

P = ParamSpec("P")
MadeT = TypeVar("MadeT")
OwnerT = TypeVar("OwnerT")


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Settings:
    """Base of settings: annotated names with defaults, as in a frozen, keyword-only dataclass.

    No dataclass, because one of forty fields takes a tenth of the package's import time. `secrets`
    are names that the repr omits, and that prevent pickling.
    """

    secrets: ClassVar[frozenset[str]] = frozenset()

    if not TYPE_CHECKING:

        def __init__(self, **given):
            known = {
                name for cls in type(self).__mro__ for name in getattr(cls, "__annotations__", ())
            }
            if unknown := given.keys() - known:
                raise TypeError(
                    f"{type(self).__name__} has no setting {', '.join(sorted(unknown))}"
                )
            vars(self).update(given)
            self._check()

        def __setattr__(self, name, value):
            raise AttributeError(f"{type(self).__name__} is immutable: create a new one instead")

        def __delattr__(self, name):
            raise AttributeError(f"{type(self).__name__} is immutable: create a new one instead")

    def _check(self) -> None: ...

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[object, ...]:
        if held := sorted(name for name in self.secrets if vars(self).get(name) is not None):
            raise TypeError(
                f"{type(self).__name__} cannot be copied or pickled because it holds "
                f"{' and '.join(held)}: create a second {type(self).__name__} instead"
            )
        return super().__reduce_ex__(protocol)

    def __repr__(self) -> str:
        shown = (f"{name}={vars(self)[name]!r}" for name in vars(self) if name not in self.secrets)
        return f"{type(self).__name__}({', '.join(shown)})"


def with_defaults(init: FunctionType, **defaults: object) -> FunctionType:
    other = FunctionType(init.__code__, init.__globals__, init.__name__, closure=init.__closure__)
    other.__kwdefaults__ = {**(init.__kwdefaults__ or {}), **defaults}
    other.__doc__, other.__annotations__ = init.__doc__, init.__annotations__
    return other


def takes_arguments_of(
    config: Callable[P, MadeT],
) -> Callable[[Callable[[OwnerT, MadeT], None]], Callable[Concatenate[OwnerT, P], None]]:
    """Replace a constructor's argument `config` by the config's own, also for type checkers."""

    def decorate(init: Callable[[OwnerT, MadeT], None]) -> Callable[Concatenate[OwnerT, P], None]:
        def construct(self: OwnerT, /, *args: P.args, **kwargs: P.kwargs) -> None:
            init(self, config(*args, **kwargs))

        taking = vars(config)["__init__"]
        taking.__qualname__ = init.__qualname__  # for the text of a TypeError
        update_wrapper(construct, taking)
        construct.__module__ = init.__module__
        return construct

    return decorate


def nearest(name: str, known: Iterable[str], spelled: Callable[[str], str] = str) -> str:
    """Return "; did you mean x?" with the most similar known name, or ""."""
    import difflib  # only for mistakes

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {spelled(close[0])}?" if close else ""
