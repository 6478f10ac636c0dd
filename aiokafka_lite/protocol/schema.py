"""The declaration of a Kafka message: one class for all its versions, one line a field.

::

    class FetchPartition(Struct):
        partition: int = int32("0+")
        current_leader_epoch: int = int32("9+", default=-1, ignorable=True)  # KIP-320
        high_watermark: int = int64("18+", default=2**63 - 1, tag=1, ignorable=True)  # KIP-1166

    class FetchRequest(
        Request[FetchResponse], key=1, versions="4-18", flexible="12+"
    ):
        topics: list[FetchTopic] = array(FetchTopic, "0+")

The terms are those of Kafka's message definitions (``common/message/*.json`` in the kafka-clients
jar). A field that is not *ignorable* makes encoding fail if it is set and the version lacks it.

A declaration becomes a slotted class with a keyword-only constructor and defaults for all fields.
Constructors and codecs are generated on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeAlias, TypeVar

from aiokafka_lite._compat import Self, dataclass_transform, override
from aiokafka_lite.errors import UnsupportedVersionError
from aiokafka_lite.protocol import wire
from aiokafka_lite.protocol.source import Steps, compile_function
from aiokafka_lite.protocol.wire import NO_VERSIONS, UNSET, Field, VersionRange, uuid_to_str
from aiokafka_lite.protocol.wire import ZERO_UUID as ZERO_UUID

Records: TypeAlias = bytes | bytearray | memoryview
"""A record set: what a decoder finds is a memoryview, an encoder takes any of these."""


# --- Structs ---------------------------------------------------------------------------------
class _StructType(type):
    """Turns declarations into slots. Defaults of struct fields are created when first read."""

    def __new__(
        mcls, name: str, bases: tuple[type, ...], namespace: dict[str, object], **options: object
    ) -> _StructType:
        declared = [(key, value) for key, value in namespace.items() if isinstance(value, Field)]
        for key, field in declared:
            field.set_name(key)
            del namespace[key]
            if field.is_lazy:
                namespace[key] = _lazy_property(field)
        fields = tuple(field for _, field in declared)
        namespace["__slots__"] = tuple(field.slot for field in fields)
        namespace["schema"] = fields
        return super().__new__(mcls, name, bases, namespace, **options)


def _lazy_property(field: Field) -> property:
    def get(self: Struct) -> object:
        value = getattr(self, field.slot)
        if value is None:
            value = field.new_default()
            setattr(self, field.slot, value)
        return value

    def put(self: Struct, value: object) -> None:
        setattr(self, field.slot, value)

    return property(get, put)


_REPR_ITEMS: Final = 16


def _repr_value(field: Field, value: object) -> str:
    """Shorten long values, and keep bytes (credentials, records) out of logs."""
    if isinstance(value, bytes | bytearray | memoryview):
        return uuid_to_str(bytes(value)) if field.wire is wire.UUID else f"<{len(value)} bytes>"
    if isinstance(value, list) and len(value) > _REPR_ITEMS:
        shown = ", ".join(map(repr, value[:_REPR_ITEMS]))
        return f"[{shown}, ... {len(value) - _REPR_ITEMS} more]"
    return repr(value)


@dataclass_transform(kw_only_default=True)
class Struct(metaclass=_StructType):
    """Base of all declarations: slotted, mutable, equal by value."""

    schema: ClassVar[tuple[Field, ...]] = ()

    if not TYPE_CHECKING:

        def __init__(self, **values):
            cls = type(self)
            cls.__init__ = _compile_constructor(cls)
            cls.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, field.name) == getattr(other, field.name) for field in self.schema)

    __hash__ = None  # type: ignore[assignment] # mutable, compared by value

    def __repr__(self) -> str:
        """Show the fields that differ from their defaults."""
        shown = ", ".join(
            f"{field.name}={_repr_value(field, getattr(self, field.name))}"
            for field in self.schema
            if getattr(self, field.name) != field.new_default()
        )
        return f"{type(self).__name__}({shown})"


def _compile_constructor(cls: type[Struct]) -> Callable[..., None]:
    constants: dict[str, object] = {"UNSET": UNSET}
    parameters, body = [], []
    for field in cls.schema:
        constants[f"default_{field.name}"] = None if field.is_lazy else field.default
        parameters.append(f"{field.name}=default_{field.name}")
        value = f"[] if {field.name} is UNSET else {field.name}" if field.is_list else field.name
        body.append(f"    self.{field.slot} = {value}")
    signature = f"def __init__(self, {'*, ' if parameters else ''}{', '.join(parameters)}):"
    return compile_function(f"{cls.__name__}()", [signature, *(body or ["    pass"])], constants)


# --- Messages --------------------------------------------------------------------------------
class Message(Struct):
    """A struct with its own versions. `flexible` ones have compact lengths and tags (KIP-482)."""

    versions: ClassVar[VersionRange] = NO_VERSIONS
    flexible: ClassVar[VersionRange] = NO_VERSIONS

    def for_version(self, version: int) -> Self:
        """Return the message in an older layout. Messages with moved fields override this."""
        return self

    def from_version(self, version: int) -> Self:
        """Return a message that was decoded in `version` in the newest layout."""
        return self

    def for_version_in_steps(self, version: int) -> Steps[Self]:
        """As `for_version`, but yield in loops over many elements."""
        yield from ()
        return self.for_version(version)

    def from_version_in_steps(self, version: int) -> Steps[Self]:
        """As `from_version`, but yield in loops over many elements."""
        yield from ()
        return self.from_version(version)


class Several(Message):
    """A message in which a list replaced the fields of its only element, such as a group.

    In all versions callers use the list, which `several` names. `renamed` has the names of older
    fields in an element, if they differ.
    """

    several: ClassVar[str]
    renamed: ClassVar[Mapping[str, str]] = MappingProxyType({})

    @classmethod
    @cache
    def _layout(cls) -> tuple[Field, dict[str, str], list[str]]:
        """Return the list, the older fields with their names in an element, and other fields."""
        (grown,) = (field for field in cls.schema if field.name == cls.several)
        rest = [field for field in cls.schema if field is not grown]
        last = grown.versions.first - 1
        moved = [field.name for field in rest if field.versions.last == last]
        return (
            grown,
            {name: cls.renamed.get(name, name) for name in moved},
            [field.name for field in rest if field.name not in moved],
        )

    @override
    def for_version(self, version: int) -> Self:
        grown, moved, others = self._layout()
        elements = getattr(self, grown.name)
        if version >= grown.versions.first or not elements:
            return self
        element = elements[0]
        is_request = isinstance(self, Request)  # a response has the key of its request
        if len(elements) > 1 or (is_request and _has_more(element, moved.values())):
            raise UnsupportedVersionError(
                f"{type(self).__name__} v{version} can contain only one element of {grown.name}, "
                f"with the fields {', '.join(moved.values())}"
            )
        values = {name: getattr(self, name) for name in others}
        for name, newer in moved.items():
            values[name] = getattr(element, newer) if isinstance(element, Struct) else element
        return type(self)(**values)

    @override
    def from_version(self, version: int) -> Self:
        """Make a list of the one element. That of a response has no key."""
        grown, moved, others = self._layout()
        if version >= grown.versions.first:
            return self
        found = {newer: getattr(self, name) for name, newer in moved.items()}
        match grown.wire:
            case wire.Array(wire.Nested(struct)):
                element: object = struct(**found)
            case _:
                (element,) = found.values()
        values = {name: getattr(self, name) for name in others}
        return type(self)(**values, **{grown.name: [element]})


def _has_more(element: object, known: Collection[str]) -> bool:
    """Whether an element has values that versions with only the known fields cannot carry."""
    return isinstance(element, Struct) and any(
        getattr(element, field.name) != field.new_default()
        for field in element.schema
        if field.name not in known and not field.ignorable
    )


class Blob(Message):
    """A message in a field or record. If `is_forward_compatible`, newer ones only append fields."""

    is_forward_compatible: ClassVar[bool] = False

    def __init_subclass__(
        cls, *, versions: str, flexible: str = "none", is_forward_compatible: bool = False
    ) -> None:
        cls.is_forward_compatible = is_forward_compatible
        cls.versions = VersionRange.parse(versions)
        cls.flexible = VersionRange.parse(flexible)


class RecordKey(Blob, versions="0"):
    """The key of a coordinator's record, which starts with its type, as two bytes."""

    record_type: ClassVar[int] = -1

    def __init_subclass__(cls, *, record_type: int) -> None:
        super().__init_subclass__(versions="0")
        cls.record_type = record_type


class Response(Message):
    """A response. It `has_plain_header` if clients read it before they know the versions."""

    api_key: ClassVar[int] = -1
    has_plain_header: ClassVar[bool] = False

    def __init_subclass__(cls, *, has_plain_header: bool = False) -> None:
        cls.has_plain_header = has_plain_header


R_co = TypeVar("R_co", bound=Response, covariant=True)


class Request(Message, Generic[R_co]):
    """A request, generic in the class of its response.

    Attributes:
        max_version: The newest stable version: newer ones are encoded, but never negotiated.
        used_from: The oldest version that this client uses.
        used_to: The newest version that this client uses, unless it asks for another (`UpTo`).
    """

    api_key: ClassVar[int] = -1
    min_version: ClassVar[int] = 0
    max_version: ClassVar[int] = -1
    used_from: ClassVar[int] = 0
    used_to: ClassVar[int] = -1
    request_class: ClassVar[type[Request[Any]]]
    response: ClassVar[type[Response]] = Response

    def __init_subclass__(
        cls,
        *,
        key: int,
        versions: str,
        flexible: str = "none",
        is_newest_unstable: bool = False,
        used_from: int = 0,
        used_to: int | None = None,
    ) -> None:
        super().__init_subclass__()
        cls.request_class = cls
        cls.response = cls.__orig_bases__[0].__args__[0]  # type: ignore[attr-defined] # Generic's
        cls.api_key = cls.response.api_key = key
        cls.versions = cls.response.versions = VersionRange.parse(versions)
        cls.flexible = cls.response.flexible = VersionRange.parse(flexible)
        cls.min_version = cls.versions.first
        cls.max_version = cls.versions.last - is_newest_unstable
        cls.used_from = max(used_from, cls.min_version)
        cls.used_to = cls.max_version if used_to is None else used_to

    @property
    def expects_response(self) -> bool:
        """False for a Produce with acks=0."""
        return True

    @property
    def usable_max_version(self) -> int:
        """The newest stable version that can carry this content: older without topic ids."""
        return self.used_to
