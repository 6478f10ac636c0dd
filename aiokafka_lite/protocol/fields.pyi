from collections.abc import Callable
from typing import Protocol, TypeVar, overload

from aiokafka_lite.protocol.schema import Records, Struct

T = TypeVar("T")
S = TypeVar("S", bound=Struct)

class _Int(Protocol):
    def __call__(
        self, versions: str, *, default: int = 0, ignorable: bool = False, tag: int | None = None
    ) -> int: ...

int8: _Int
int16: _Int
uint16: _Int
int32: _Int
int64: _Int

def boolean(
    versions: str, *, default: bool = False, ignorable: bool = False, tag: int | None = None
) -> bool: ...
def uuid(versions: str, *, ignorable: bool = False, tag: int | None = None) -> bytes: ...
@overload
def string(
    versions: str, *, default: str = "", ignorable: bool = False, tag: int | None = None
) -> str: ...
@overload
def string(
    versions: str,
    *,
    nullable: str,
    default: str | None = "",
    ignorable: bool = False,
    tag: int | None = None,
) -> str | None: ...
@overload
def blob(versions: str, *, ignorable: bool = False) -> bytes: ...
@overload
def blob(
    versions: str, *, nullable: str, default: bytes | None = b"", ignorable: bool = False
) -> bytes | None: ...
def record_set(versions: str, *, nullable: str) -> Records | None: ...
@overload
def array(
    element: type[S], versions: str, *, ignorable: bool = False, tag: int | None = None
) -> list[S]: ...
@overload
def array(
    element: Callable[[str], T], versions: str, *, ignorable: bool = False, tag: int | None = None
) -> list[T]: ...
@overload
def array(
    element: type[S], versions: str, *, nullable: str, default: None = None, ignorable: bool = False
) -> list[S] | None: ...
@overload
def array(
    element: Callable[[str], T],
    versions: str,
    *,
    nullable: str,
    default: None = None,
    ignorable: bool = False,
    tag: int | None = None,
    writes_null: bool = False,
) -> list[T] | None: ...
@overload
def nested(
    struct: type[S], versions: str, *, ignorable: bool = False, tag: int | None = None
) -> S: ...
@overload
def nested(
    struct: type[S],
    versions: str,
    *,
    nullable: str,
    default: None,
    tag: int | None = None,
    writes_null: bool = False,
) -> S | None: ...
