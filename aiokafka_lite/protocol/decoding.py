"""Generate the source of a decoder: one function for one message in one version.

The function walks a cursor `pos` over a view of the frame. Fields of fixed size are gathered into
*runs*, each read by one ``struct.Struct``; the length prefix that ends a run is read along with
it. Arrays are loops in place, at any depth, so that decoding a partition calls no Python function.

Whatever the bytes, the outcome is a message or KafkaProtocolError:

- reading past the end of the view raises struct.error or IndexError, caught once at the outside;
- a length or count is compared with the bytes that are left (``n > end - pos``) before anything
  is sliced or allocated, a count by the least size that its elements can have;
- tags must ascend, and tagged fields must be as long as they claim. Unknown ones are skipped.
"""

from __future__ import annotations

from struct import Struct as Layout
from struct import error as struct_error
from struct import unpack_from
from typing import Final, Protocol, TypeVar

from aiokafka_lite.errors import KafkaProtocolError
from aiokafka_lite.protocol import varint
from aiokafka_lite.protocol.schema import Message, Struct
from aiokafka_lite.protocol.source import compile_function
from aiokafka_lite.protocol.wire import RECORDS, STRING, Array, Field, Fixed, Nested, Sized, Wire

M = TypeVar("M", bound=Message)
M_co = TypeVar("M_co", bound=Message, covariant=True)


class Decoder(Protocol[M_co]):
    """A compiled decoder."""

    def __call__(self, view: memoryview, has_rest: bool = False, /) -> M_co:
        """Decode a message that ends where the view ends, or with `has_rest` before that."""


def compile_decoder(cls: type[M], version: int) -> Decoder[M]:
    """Compile the decoder of `cls` in `version`; it must be one of `cls.versions`."""
    return compile_function(
        f"decode {cls.__name__} v{version}",
        *_DecoderSource(cls, version).write(),
    )


def present(cls: type[Struct], version: int) -> list[Field]:
    """Return the fields that are on the wire in `version`, apart from tagged ones."""
    return [f for f in cls.schema if f.versions.covers(version) and f.tag is None]


def tagged(cls: type[Struct], version: int) -> list[Field]:
    """Return the tagged fields of `version`, in the order of their tags."""
    fields = [f for f in cls.schema if f.versions.covers(version) and f.tag is not None]
    return sorted(fields, key=lambda field: field.tag or 0)


def absent(cls: type[Struct], version: int) -> list[Field]:
    """Return the fields that `version` lacks."""
    return [f for f in cls.schema if not f.versions.covers(version)]


def least_size(wire: Wire, version: int, flexible: bool, nullable: bool = False) -> int:
    """Return how many bytes a value takes at least (1 for a struct without fields)."""
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
    "skip_tagged_fields": varint.skip_tagged_fields,
    "struct_error": struct_error,
    "unpack_from": unpack_from,
    "wrong_tag_size": varint.wrong_tag_size,
}


class _DecoderSource:
    """The source of one decoder while it is written."""

    def __init__(self, cls: type[Message], version: int) -> None:
        self.cls = cls
        self.version = version
        self.is_flexible = cls.flexible.covers(version)
        self.lines: list[str] = []
        self.constants = dict(_GLOBALS)
        self.indent = 1
        self.run: list[tuple[str, str]] = []  # (code in the struct module, assignment target)
        self.names = 0

    def write(self) -> tuple[list[str], dict[str, object]]:
        name = f"{self.cls.__name__} v{self.version}"
        self.line("end = len(view)")
        self.line("pos = 0")
        self.line("try:")
        self.indent += 1
        message = self.read_struct(self.cls, self.cls.__name__)
        self.flush()
        self.indent -= 1
        self.line("except (struct_error, IndexError):")
        self.line(f"    text = f'{name} ends too early: {{end}} bytes, broken off at {{pos}}'")
        self.line("    raise KafkaProtocolError(text) from None")
        self.line("except UnicodeDecodeError as error:")
        self.line(f"    text = f'{name} has a string that is not UTF-8 near byte {{pos}}'")
        self.line("    raise KafkaProtocolError(text) from error")
        self.line("if pos != end and not has_rest:")
        self.line(f"    text = f'{name} ends at {{pos}}, but {{end}} bytes came'")
        self.line("    raise KafkaProtocolError(text)")
        self.line(f"return {message}")
        return [
            f"def decode_{self.cls.__name__}(view, has_rest=False):",
            *self.lines,
        ], self.constants

    # -- building blocks
    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def fresh(self, name: str) -> str:
        self.names += 1
        return f"{name}{self.names}"

    def constant(self, name: str, value: object) -> str:
        name = self.fresh(name)
        self.constants[name] = value
        return name

    def read_fixed(self, code: str, target: str) -> None:
        self.run.append((code, target))

    def flush(self) -> None:
        """Read the fields gathered so far with one call."""
        if not self.run:
            return
        if len(self.run) == 1 and self.run[0][0] == "B":
            self.line(f"{self.run[0][1]} = view[pos]")
            self.line("pos += 1")
            self.run.clear()
            return
        layout = Layout(">" + "".join(code for code, _ in self.run))
        unpack = self.constant("unpack", layout.unpack_from)
        self.line(f"{', '.join(target for _, target in self.run)}, = {unpack}(view, pos)")
        self.line(f"pos += {layout.size}")
        self.run.clear()

    # -- structs
    def read_struct(self, cls: type[Struct], path: str) -> str:
        """Write the reading of a struct; return the variable that holds it."""
        target = self.fresh("o")
        self.line(f"{target} = new({self.constant(cls.__name__, cls)})")
        for field in absent(cls, self.version):
            self.set_default(field, target)
        for field in present(cls, self.version):
            is_nullable = field.nullable.covers(self.version)
            self.read(
                field.wire, f"{target}.{field.slot}", f"{path}.{field.name}", nullable=is_nullable
            )
        if self.is_flexible:
            self.read_tags(tagged(cls, self.version), target, path)
        return target

    def set_default(self, field: Field, target: str) -> None:
        if field.is_list:
            value = "[]"
        elif field.is_lazy or field.default is None:
            value = "None"
        else:
            value = self.constant("default", field.default)
        self.line(f"{target}.{field.slot} = {value}")

    def read_tags(self, fields: list[Field], target: str, path: str) -> None:
        for field in fields:
            self.set_default(field, target)
        self.read_fixed("B", "n")
        self.flush()
        if not fields:
            self.line("if n:")
            self.line("    pos = skip_tagged_fields(view, pos - 1)")
            return
        tag, stop = self.fresh("tag"), self.fresh("stop")
        self.line("if n:")
        self.indent += 1
        self.line("n, pos = read_uvarint(view, pos - 1)")
        self.line(f"{tag} = -1")
        self.line("for _ in range(n):")
        self.indent += 1
        self.line(f"{tag}, n, pos = read_tag(view, pos, {tag})")
        self.line(f"{stop} = pos + n")
        for number, field in enumerate(fields):
            self.line(f"{'elif' if number else 'if'} {tag} == {field.tag}:")
            self.indent += 1
            where = f"{path}.{field.name}"
            is_nullable = field.nullable.covers(self.version)
            self.read(field.wire, f"{target}.{field.slot}", where, nullable=is_nullable)
            self.flush()
            self.line(f"if pos != {stop}:")
            self.line(f"    raise wrong_tag_size({where!r})")
            self.indent -= 1
        self.line("else:")
        self.line(f"    pos = {stop}")
        self.indent -= 2

    # -- values
    def read(self, wire: Wire, target: str, path: str, *, nullable: bool = False) -> None:
        match wire:
            case Fixed():
                self.read_fixed(wire.code, target)
            case Sized():
                self.read_sized(wire, target, path, nullable)
            case Array(element):
                self.read_array(element, target, path, nullable)
            case Nested(struct) if nullable:
                self.read_nullable_struct(struct, target, path)
            case Nested(struct):
                self.line(f"{target} = {self.read_struct(struct, path)}")

    def read_nullable_struct(self, struct: type[Struct], target: str, path: str) -> None:
        self.read_fixed("b", "n")
        self.flush()
        self.line("if n < 0:")
        self.line(f"    {target} = None")
        self.line("else:")
        self.indent += 1
        variable = self.read_struct(struct, path)
        self.flush()
        self.line(f"{target} = {variable}")
        self.indent -= 1

    def read_length(self, code: str) -> None:
        """Read the length prefix into `n`, -1 for null."""
        if not self.is_flexible:
            self.read_fixed(code, "n")
            self.flush()
            return
        self.read_fixed("B", "n")
        self.flush()
        self.line("if n > 127:")
        self.line("    n, pos = read_uvarint(view, pos - 1)")
        self.line("n -= 1")

    def read_sized(self, wire: Sized, target: str, path: str, nullable: bool) -> None:
        self.read_length("h" if wire is STRING else "i")
        value = "view[pos:pos + n]"
        if wire is not RECORDS:  # these two are copied out of the frame
            value = f"str({value}, 'utf-8')" if wire is STRING else f"bytes({value})"
        self.guard_length("end - pos", target, path, nullable)
        self.line(f"    {target} = {value}")
        self.line("    pos += n")

    def guard_length(self, limit: str, target: str, path: str, nullable: bool) -> None:
        """Refuse what cannot be there, and open the block for what is."""
        if nullable:
            self.line("if n == -1:")
            self.line(f"    {target} = None")
        self.line(f"{'elif' if nullable else 'if'} n < 0 or n > {limit}:")
        self.line(f"    raise bad_length({path!r}, n, end - pos)")
        self.line("else:")

    def read_array(self, element: Wire, target: str, path: str, nullable: bool) -> None:
        self.read_length("i")
        size = least_size(element, self.version, self.is_flexible)
        limit = "end - pos" if size == 1 else f"(end - pos) // {size}"
        self.guard_length(limit, target, path, nullable)
        self.indent += 1
        if isinstance(element, Fixed) and element.code in "bhiq?":
            self.line(f"{target} = [*unpack_from(f'>{{n}}{element.code}', view, pos)]")
            self.line(f"pos += {size} * n")
        else:
            self.read_elements(element, target, path)
        self.indent -= 1

    def read_elements(self, element: Wire, target: str, path: str) -> None:
        """Write the loop over the `n` elements of an array."""
        items, append = self.fresh("items"), self.fresh("append")
        self.line(f"{target} = {items} = []")
        self.line(f"{append} = {items}.append")
        self.line("for _ in range(n):")
        self.indent += 1
        if isinstance(element, Nested):
            variable = self.read_struct(element.struct, path)
        else:
            variable = self.fresh("v")
            self.read(element, variable, path)
        self.flush()
        self.line(f"{append}({variable})")
        self.indent -= 1
