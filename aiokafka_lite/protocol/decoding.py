"""Generate the source of a decoder: one function for one message in one version.

The function moves `pos` over a view of the frame. Fields of fixed size are read in groups, each by
one ``struct.Struct``, with the length prefix that ends the group. Arrays are loops in place, at any
depth, so decoding a partition calls no Python function.

Any bytes result in a message or KafkaProtocolError:

- reading past the end of the view raises struct.error or IndexError;
- a length or count is compared with the rest of the bytes before slicing or allocating, a count by
  the minimal size of its elements. Counts below 127 need no comparison: reading the elements fails;
- tags must ascend, and tagged fields must have their declared size. Unknown ones are skipped.

A decoder *in steps* is a generator, for callers that a large message must not delay.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator
from struct import Struct as Layout
from struct import error as struct_error
from struct import unpack_from
from typing import Final, Protocol, TypeAlias, TypeVar

from aiokafka_lite._compat import override
from aiokafka_lite.errors import KafkaProtocolError
from aiokafka_lite.protocol import varint
from aiokafka_lite.protocol.schema import Message, Struct
from aiokafka_lite.protocol.source import SourceWriter, Steps
from aiokafka_lite.protocol.wire import (
    RECORDS,
    STRING,
    UUID,
    Array,
    Field,
    Fixed,
    Nested,
    Sized,
    Wire,
)

M = TypeVar("M", bound=Message)
M_co = TypeVar("M_co", bound=Message, covariant=True)


class MessageDecoder(Protocol[M_co]):
    def __call__(self, view: memoryview, has_rest: bool = False, /) -> M_co:
        """Decode a message that ends where the view ends, or with `has_rest` before that."""


class DecoderInSteps(Protocol[M_co]):
    def __call__(self, view: memoryview, has_rest: bool = False, /) -> Steps[M_co]: ...


PiecewiseDecoder: TypeAlias = Callable[[memoryview], Iterator[M | Struct]]
"""Decodes messages with very many elements, two arrays deep.

It yields first the message, without what follows. Then it yields the structs whose array holds some
more elements, which is emptied afterwards. Errors are raised where they occur.
"""


class Head(enum.Enum):
    """The header in front of a message, which the decoder skips."""

    NONE = enum.auto()
    PLAIN = enum.auto()  # a correlation id
    TAGGED = enum.auto()  # and tagged fields


_CORRELATION_ID_BYTES: Final = 4
# Elements between two yields of a piecewise decoder: about 1 us each.
PIECE: Final = 100


def present(cls: type[Struct], version: int) -> list[Field]:
    """Return the fields on the wire in `version`, except tagged ones."""
    return [f for f in cls.schema if f.versions.covers(version) and f.tag is None]


def tagged(cls: type[Struct], version: int) -> list[Field]:
    """Return the tagged fields of `version` by tag."""
    fields = [f for f in cls.schema if f.versions.covers(version) and f.tag is not None]
    return sorted(fields, key=lambda field: field.tag or 0)


def absent(cls: type[Struct], version: int) -> list[Field]:
    return [f for f in cls.schema if not f.versions.covers(version)]


def least_size(wire: Wire, version: int, flexible: bool, nullable: bool = False) -> int:
    """Return the minimal size of a value in bytes (1 for a struct without fields)."""
    match wire:
        case Fixed():
            return wire.size
        case Sized():
            return 1 if flexible else 2 if wire is STRING else 4
        case Array():
            return 1 if flexible else 4
        case Nested(struct) if not nullable:
            sizes = [
                least_size(f.wire, version, flexible, f.nullable.covers(version))
                for f in present(struct, version)
            ]
            return max(1, sum(sizes) + flexible)
    return 1


_GLOBALS: Final[dict[str, object]] = {
    "KafkaProtocolError": KafkaProtocolError,
    "bad_length": varint.bad_length,
    "new": object.__new__,
    "read_tag": varint.read_tag,
    "read_uvarint": varint.read_uvarint,
    "skip_in_steps": varint.skip_tagged_fields_in_steps,
    "skip_tagged_fields": varint.skip_tagged_fields,
    "struct_error": struct_error,
    "unpack_from": unpack_from,
    "wrong_tag_size": varint.wrong_tag_size,
}


class DecoderSource(SourceWriter):
    def __init__(
        self, cls: type[Message], version: int, head: Head, *, in_steps: bool = False
    ) -> None:
        signature = f"def decode_{cls.__name__}(view, has_rest=False):"
        super().__init__(signature, _GLOBALS, in_steps=in_steps)
        self.version = version
        self.is_flexible = cls.flexible.covers(version)
        self.pending: list[tuple[str, str]] = []  # (code in the struct module, assignment target)
        self.write(cls, head)

    def write(self, cls: type[Message], head: Head) -> None:
        name = f"{cls.__name__} v{self.version}"
        self.line("end = len(view)")
        self.line(f"pos = {0 if head is Head.NONE else _CORRELATION_ID_BYTES}")
        with self.block("try:"):
            if head is Head.TAGGED:
                self.read_unknown_tags()
            message = self.read_struct(cls, cls.__name__)
            self.flush()
        with self.block("except (struct_error, IndexError):"):
            self.line(
                f"text = f'{name} is incomplete: it ends after {{end}} bytes "
                "(decoding stopped at {pos})'"
            )
            self.line("raise KafkaProtocolError(text) from None")
        with self.block("except UnicodeDecodeError as error:"):
            self.line(f"text = f'{name} has a string that is not UTF-8 at byte {{pos}}'")
            self.line("raise KafkaProtocolError(text) from error")
        if head is Head.NONE:  # other clients ignore bytes behind a response, too
            with self.block("if pos != end and not has_rest:"):
                self.line(f"text = f'{name} ends at byte {{pos}}, but {{end}} bytes were received'")
                self.line("raise KafkaProtocolError(text)")
        self.end(message)

    def read_fixed(self, code: str, target: str) -> None:
        self.pending.append((code, target))

    def flush(self) -> None:
        """Write one call that reads the pending fields."""
        match self.pending:
            case []:
                return
            case [("B", target)]:
                self.line(f"{target} = view[pos]")
                self.line("pos += 1")
            case _:
                layout = Layout(">" + "".join(code for code, _ in self.pending))
                unpack = self.constant("unpack", layout.unpack_from)
                self.line(
                    f"{', '.join(target for _, target in self.pending)}, = {unpack}(view, pos)"
                )
                self.line(f"pos += {layout.size}")
        self.pending.clear()

    # -- structs
    def read_struct(self, cls: type[Struct], path: str) -> str:
        """Write the decoding of a struct; return the variable that holds it."""
        target = self.fresh("o")
        self.line(f"{target} = new({self.constant(cls.__name__, cls)})")
        for field in absent(cls, self.version):
            self.set_default(field, target)
        for field in present(cls, self.version):
            self.read_field(field, target, path)
        if self.is_flexible:
            self.read_tags(tagged(cls, self.version), target, path)
        return target

    def read_field(self, field: Field, target: str, path: str) -> None:
        is_nullable = field.nullable.covers(self.version)
        value, path = f"{target}.{field.slot}", f"{path}.{field.name}"
        if is_nullable and field.tag is not None and isinstance(field.wire, Nested):
            self.read_nullable_struct(field.wire.struct, value, path, null="n < 1")
        else:
            self.read(field.wire, value, path, is_nullable)

    def set_default(self, field: Field, target: str) -> None:
        if field.is_list:
            value = "[]"
        elif field.is_lazy or field.default is None:
            value = "None"
        else:
            value = self.constant("default", field.default)
        self.line(f"{target}.{field.slot} = {value}")

    def read_unknown_tags(self) -> None:
        self.read_fixed("B", "n")
        self.flush()
        with self.block("if n:"):
            skip = "yield from skip_in_steps" if self.in_steps else "skip_tagged_fields"
            self.line(f"pos = {skip}(view, pos - 1)")

    def read_tags(self, fields: list[Field], target: str, path: str) -> None:
        for field in fields:
            self.set_default(field, target)
        if not fields:
            self.read_unknown_tags()
            return
        self.read_fixed("B", "n")
        self.flush()
        tag, stop = self.fresh("tag"), self.fresh("stop")
        with self.block("if n:"):
            self.line("n, pos = read_uvarint(view, pos - 1)")
            self.line(f"{tag} = -1")
            with self.block("for _ in range(n):"):
                self.count()
                self.line(f"{tag}, n, pos = read_tag(view, pos, {tag})")
                self.line(f"{stop} = pos + n")
                for number, field in enumerate(fields):
                    with self.block(f"{'elif' if number else 'if'} {tag} == {field.tag}:"):
                        self.read_field(field, target, path)
                        self.flush()
                        with self.block(f"if pos != {stop}:"):
                            self.line(f"raise wrong_tag_size('{path}.{field.name}')")
                with self.block("else:"):
                    self.line(f"pos = {stop}")

    # -- values
    def read(self, wire: Wire, target: str, path: str, nullable: bool) -> None:
        match wire:
            case Fixed():
                self.read_fixed(wire.code, target)
            case Sized():
                self.read_sized(wire, target, path, nullable)
            case Array(element):
                self.read_array(element, target, path, nullable)
            case Nested(struct) if nullable:
                self.read_nullable_struct(struct, target, path, null="n < 0")
            case Nested(struct):
                self.line(f"{target} = {self.read_struct(struct, path)}")

    def read_nullable_struct(
        self, struct: type[Struct], target: str, path: str, *, null: str
    ) -> None:
        self.read_fixed("b", "n")
        self.flush()
        with self.block(f"if {null}:"):
            self.line(f"{target} = None")
        with self.block("else:"):
            variable = self.read_struct(struct, path)
            self.flush()
            self.line(f"{target} = {variable}")

    @contextlib.contextmanager
    def length_read(
        self, code: str, limit: str, target: str, path: str, nullable: bool
    ) -> Iterator[None]:
        """Read a length or count into `n`, and store null. A compact length is one too large."""
        too_long = f"raise bad_length({path!r}, n{' - 1' * self.is_flexible}, end - pos)"
        null = f"{target} = None" if nullable else too_long
        if self.is_flexible:
            self.read_fixed("B", "n")
            self.flush()
            # Up to three bytes, as most record sets have, are read in place.
            with self.block("if n > 127:"):
                self.line("n += (view[pos] << 7) - 128")
                self.line("pos += 1")
                with self.block("if n >= 1 << 14:"):
                    self.line("n += (view[pos] << 14) - (1 << 14)")
                    self.line("pos += 1")
                    with self.block("if n >= 1 << 21:"):
                        self.line("n, pos = read_uvarint(view, pos - 3)")
                with self.block(f"if n - 1 > {limit}:"):
                    self.line(too_long)
            with self.block("if not n:"):
                self.line(null)
        else:
            self.read_fixed(code, "n")
            self.flush()
            with self.block(f"if n < {'-1' if nullable else '0'} or n > {limit}:"):
                self.line(too_long)
            with self.block("if n == -1:"):
                self.line(null)
        with self.block("else:"):
            yield

    def read_sized(self, wire: Sized, target: str, path: str, nullable: bool) -> None:
        code = "h" if wire is STRING else "i"
        value = "view[pos:pos + n]"
        if wire is not RECORDS:  # copied out of the frame
            value = f"str({value}, 'utf-8')" if wire is STRING else f"bytes({value})"
        with self.length_read(code, "end - pos", target, path, nullable):
            if self.is_flexible:
                self.line("n -= 1")
                with self.block("if n > end - pos:"):
                    self.line(f"raise bad_length({path!r}, n, end - pos)")
            self.line(f"{target} = {value}")
            self.line("pos += n")

    def read_array(self, element: Wire, target: str, path: str, nullable: bool) -> None:
        size = least_size(element, self.version, self.is_flexible)
        limit = "end - pos" if size == 1 else f"(end - pos) // {size}"
        with self.length_read("i", limit, target, path, nullable):
            count = "n - 1" if self.is_flexible else "n"
            if isinstance(element, Fixed) and element is not UUID:
                self.line(f"{target} = [*unpack_from(f'>{{{count}}}{element.code}', view, pos)]")
                self.line(f"pos += {size} * ({count})")
                self.count(count)
            else:
                self.read_elements(element, count, target, path)

    def read_elements(self, element: Wire, count: str, target: str, path: str) -> None:
        items = self.fresh("items")
        self.line(f"{target} = {items} = []")
        with self.block(f"for _ in range({count}):"):
            self.count()
            if isinstance(element, Nested):
                variable = self.read_struct(element.struct, path)
            else:
                variable = self.fresh("item")
                self.read(element, variable, path, nullable=False)
            self.flush()
            self.line(f"{items}.append({variable})")


class PiecewiseSource(DecoderSource):
    def __init__(self, cls: type[Message], version: int, head: Head, element: type[Struct]) -> None:
        self.element = element
        super().__init__(cls, version, head)

    @override
    def read_elements(self, element: Wire, count: str, target: str, path: str) -> None:
        owner = target.rpartition(".")[0]
        if self._is_element(element):
            items = self.fresh("items")
            self.line(f"{target} = {items} = []")
            with self.block(f"for _ in range({count}):"):
                variable = self.read_struct(self.element, path)
                self.flush()
                self.line(f"{items}.append({variable})")
                with self.block(f"if len({items}) == {PIECE}:"):
                    self.line(f"yield {owner}")
                    self.line(f"{items}.clear()")
            self.line(f"yield {owner}")
        elif isinstance(element, Nested) and self._holds_elements(element.struct):
            self.line(f"{target} = []")
            self.line(f"yield {owner}")
            with self.block(f"for _ in range({count}):"):
                self.read_struct(element.struct, path)
                self.flush()
        else:
            super().read_elements(element, count, target, path)

    def _is_element(self, wire: Wire) -> bool:
        return isinstance(wire, Nested) and wire.struct is self.element

    def _holds_elements(self, struct: type[Struct]) -> bool:
        wires = [field.wire for field in struct.schema]
        return any(isinstance(wire, Array) and self._is_element(wire.element) for wire in wires)
