"""The words of a field's declaration, by wire type (see schema.py).

What a type checker sees of them is in fields.pyi: there a declaration is the field's default
value, so that ``dataclass_transform`` gives every field of every constructor a default of the
right type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from aiokafka_lite.protocol import wire
from aiokafka_lite.protocol.wire import UNSET, VersionRange, Wire

if TYPE_CHECKING:
    from aiokafka_lite.protocol.schema import Struct


class Declaration(NamedTuple):
    """The right-hand side of a field's line, before the class gives it a name."""

    wire: Wire
    versions: VersionRange
    nullable: VersionRange
    default: object
    ignorable: bool
    tag: int | None


class _Specifier:
    """Makes declarations of one wire type; also names the element type of an array."""

    def __init__(self, wire_type: Wire) -> None:
        self.wire = wire_type

    def __call__(
        self,
        versions: str,
        *,
        nullable: str = "none",
        default: object = UNSET,
        ignorable: bool = False,
        tag: int | None = None,
    ) -> Declaration:
        if default is UNSET and isinstance(self.wire, wire.Fixed | wire.Sized):
            default = self.wire.zero
        ranges = VersionRange.parse(versions), VersionRange.parse(nullable)
        return Declaration(self.wire, *ranges, default, ignorable, tag)


int8: Final = _Specifier(wire.INT8)
int16: Final = _Specifier(wire.INT16)
int32: Final = _Specifier(wire.INT32)
int64: Final = _Specifier(wire.INT64)
boolean: Final = _Specifier(wire.BOOL)
uuid: Final = _Specifier(wire.UUID)
string: Final = _Specifier(wire.STRING)
blob: Final = _Specifier(wire.BYTES)
record_set: Final = _Specifier(wire.RECORDS)


def array(element: _Specifier | type[Struct], versions: str, **facts: object) -> Declaration:
    """Declare a list; its elements are structs or of the type that a word above stands for."""
    of = element.wire if isinstance(element, _Specifier) else wire.Nested(element)
    return _Specifier(wire.Array(of))(versions, **facts)  # type: ignore[arg-type] # as fields.pyi


def nested(struct: type[Struct], versions: str, **facts: object) -> Declaration:
    """Declare a struct; without a default of None it is never null."""
    return _Specifier(wire.Nested(struct))(versions, **facts)  # type: ignore[arg-type] # ditto
