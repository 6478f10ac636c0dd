"""Both ConsumerRecord classes behave as aiokafka's mutable dataclass does."""

from __future__ import annotations

import copy
import dataclasses
import gc
import importlib
import itertools
import pickle
import sys
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import pytest
from aiokafka.structs import ConsumerRecord as AiokafkaRecord

from aiokafka_lite import _record_py, records, structs
from tests.support.crafted import batch, record_set
from tests.support.for_each import for_each

FIELDS: dict[str, Any] = {
    "topic": "topic",
    "partition": 3,
    "offset": 2**40,
    "timestamp": 1_700_000_000_000,
    "timestamp_type": 0,
    "key": b"key",
    "value": b"value",
    "checksum": None,
    "serialized_key_size": 3,
    "serialized_value_size": 5,
    "headers": (("name", b"value"),),
}
# Fields that the extension type keeps as C integers.
INTEGERS = ["offset", "timestamp", "serialized_key_size", "serialized_value_size"]

CLASSES: dict[str, type[Any]] = {"aiokafka": AiokafkaRecord, "python": _record_py.ConsumerRecord}
try:
    CLASSES["compiled"] = importlib.import_module("aiokafka_lite._record").ConsumerRecord
except ModuleNotFoundError:
    pass


@pytest.fixture(params=CLASSES)
def cls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[Any]:
    """Each class, aiokafka's too: what it does not pass is no test of ours."""
    found = CLASSES[request.param]
    if request.param != "aiokafka":
        monkeypatch.setattr(structs, "ConsumerRecord", found)  # pickle looks it up there
    return found


@pytest.fixture
def record(cls: type[Any]) -> Any:
    return cls(**FIELDS)


def test_extension_is_the_public_class_where_it_is_built() -> None:
    assert structs.ConsumerRecord is CLASSES["compiled" if records.COMPILED else "python"]
    assert structs.ConsumerRecord.__module__ == "aiokafka_lite.structs"


# --- making --------------------------------------------------------------------------------------


def test_fields_are_given_by_position_or_name(cls: type[Any]) -> None:
    by_position = cls(*FIELDS.values())
    assert by_position == cls(**FIELDS)
    assert {name: getattr(by_position, name) for name in FIELDS} == FIELDS


@pytest.mark.parametrize("count", [0, 10, 12])
def test_every_field_has_to_be_given_once(cls: type[Any], count: int) -> None:
    with pytest.raises(TypeError):
        cls(*[*FIELDS.values(), "one too many"][:count])
    with pytest.raises(TypeError):
        cls(*FIELDS.values(), topic="again")
    with pytest.raises(TypeError):
        cls(**FIELDS, other=1)


@for_each(FIELDS)
def test_any_field_holds_anything(name: str, cls: type[Any]) -> None:
    for value in (None, "text", 2.5, True, 2**70, -(2**63), 2**63 - 1, [1], object()):
        given = cls(**{**FIELDS, name: value})
        assert getattr(given, name) is value or getattr(given, name) == value
        assert type(getattr(given, name)) is type(value)
        setattr(given, name, FIELDS[name])
        assert given == cls(**FIELDS)
        setattr(given, name, value)
        assert type(getattr(given, name)) is type(value)
        assert dataclasses.asdict(given)[name] == value or value is given.__dict__[name]


def test_initialising_again_replaces_the_fields(record: Any) -> None:
    record.__init__(*[*list(FIELDS.values())[:-1], ()])
    assert record.headers == ()


# --- comparing and showing -----------------------------------------------------------------------


@for_each(FIELDS)
def test_records_are_equal_if_all_fields_are(name: str, cls: type[Any]) -> None:
    assert cls(**FIELDS) == cls(**FIELDS)
    other = cls(**{**FIELDS, name: "other"})
    assert cls(**FIELDS) != other


def test_record_equals_nothing_of_another_class(cls: type[Any], record: Any) -> None:
    class Message(cls):  # type: ignore[misc]
        pass

    assert record != tuple(FIELDS.values())
    assert record != Message(**FIELDS)
    assert Message(**FIELDS) == Message(**FIELDS)
    assert record.__eq__(5) is NotImplemented


def test_attributes_of_ones_own_do_not_count_for_equality(cls: type[Any], record: Any) -> None:
    record.consumer = 1
    assert record == cls(**FIELDS)


def test_record_has_no_order_and_no_hash(record: Any) -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(record)
    with pytest.raises(TypeError):
        _ = record < record
    assert type(record).__hash__ is None


def test_repr_is_the_dataclass_one(cls: type[Any], record: Any) -> None:
    assert repr(record) == repr(AiokafkaRecord(**FIELDS))

    class Message(cls):  # type: ignore[misc]
        pass

    assert repr(Message(**FIELDS)).startswith(f"{Message.__qualname__}(topic='topic', ")


def test_repr_of_a_record_that_holds_itself_ends(record: Any) -> None:
    record.value = [record]
    assert "value=[...]" in repr(record)


# --- attributes ----------------------------------------------------------------------------------


def test_attributes_of_ones_own_can_be_set(record: Any) -> None:
    with pytest.raises(AttributeError, match="consumer"):
        _ = record.consumer
    record.consumer = "me"
    assert record.consumer == "me"
    assert vars(record) == {**FIELDS, "consumer": "me"}
    del record.consumer
    assert not hasattr(record, "consumer")
    with pytest.raises(AttributeError):
        del record.consumer


def test_dict_shows_the_fields_in_order_as_they_are_now(record: Any) -> None:
    assert list(vars(record).items()) == list(FIELDS.items())
    record.value = {"decoded": 1}
    record.offset = None
    assert vars(record) == {**FIELDS, "value": {"decoded": 1}, "offset": None}


def test_attributes_can_be_set_through_the_dict(record: Any) -> None:
    vars(record)["consumer"] = "me"
    assert record.consumer == "me"
    record.__dict__.update(other=2)
    assert record.other == 2
    record.__dict__ = {**FIELDS, "topic": "else", "more": 3}
    assert (record.topic, record.more) == ("else", 3)


@for_each(FIELDS)
def test_deleted_field_is_missing_until_it_is_set(name: str, cls: type[Any]) -> None:
    record = cls(**FIELDS)
    _ = vars(record)
    delattr(record, name)
    with pytest.raises(AttributeError, match=name):
        getattr(record, name)
    with pytest.raises(AttributeError):
        delattr(record, name)
    with pytest.raises(AttributeError):
        repr(record)
    assert name not in vars(record)
    setattr(record, name, FIELDS[name])
    assert record == cls(**FIELDS)


@for_each(INTEGERS)
def test_odd_value_can_be_deleted(name: str, record: Any) -> None:
    setattr(record, name, "odd")
    delattr(record, name)
    assert not hasattr(record, name)
    with pytest.raises(AttributeError):
        delattr(record, name)


# --- what the dataclasses module does with it ----------------------------------------------------


def test_dataclasses_module_knows_it(cls: type[Any], record: Any) -> None:
    assert dataclasses.is_dataclass(cls)
    assert [field.name for field in dataclasses.fields(record)] == list(FIELDS)
    assert dataclasses.asdict(record) == FIELDS
    assert dataclasses.astuple(record) == tuple(FIELDS.values())
    changed = dataclasses.replace(record, value=b"new", offset=1)
    assert type(changed) is cls
    assert changed == cls(**{**FIELDS, "value": b"new", "offset": 1})
    with pytest.raises(TypeError):
        dataclasses.replace(record, nonsense=1)


def test_it_is_matched_by_position(cls: type[Any], record: Any) -> None:
    match record:
        case cls(topic, partition, offset):
            assert (topic, partition, offset) == ("topic", 3, 2**40)
        case _:
            pytest.fail("no match")
    assert cls.__match_args__ == tuple(FIELDS)


def test_signature_is_told(cls: type[Any]) -> None:
    import inspect

    assert list(inspect.signature(cls).parameters) == list(FIELDS)


def test_the_docstring_is_that_of_the_twin(cls: type[Any]) -> None:
    import inspect

    if cls is not AiokafkaRecord:
        assert inspect.getdoc(cls) == inspect.getdoc(_record_py.ConsumerRecord)


def test_annotations_are_those_of_the_twin(cls: type[Any]) -> None:
    import inspect

    if cls is CLASSES.get("compiled") and sys.version_info >= (3, 14):
        pytest.skip("from 3.14 on, Python reads no annotations of types that are written in C")
    assert list(inspect.get_annotations(cls)) == list(FIELDS)
    if cls is not AiokafkaRecord:
        assert inspect.get_annotations(cls) == inspect.get_annotations(_record_py.ConsumerRecord)


# --- copies --------------------------------------------------------------------------------------


@for_each(range(pickle.HIGHEST_PROTOCOL + 1))
def test_record_is_pickled(protocol: int, record: Any) -> None:
    record.mine = "attribute"
    record.timestamp = None
    copied = pickle.loads(pickle.dumps(record, protocol))  # noqa: S301 -- just written
    assert (copied, type(copied), copied.mine) == (record, type(record), "attribute")


@pytest.mark.parametrize("writer", [name for name in CLASSES if name != "aiokafka"])
@pytest.mark.parametrize("reader", [name for name in CLASSES if name != "aiokafka"])
def test_pickle_of_one_class_is_read_by_the_other(
    writer: str, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(structs, "ConsumerRecord", CLASSES[writer])
    record = CLASSES[writer](**FIELDS)
    record.mine = 1
    written = pickle.dumps(record)
    monkeypatch.setattr(structs, "ConsumerRecord", CLASSES[reader])
    read = pickle.loads(written)  # noqa: S301 -- just written
    assert (read, read.mine) == (CLASSES[reader](**FIELDS), 1)


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy])
def test_record_is_copied(record: Any, copier: Callable[[Any], Any]) -> None:
    record.value = [1]
    record.mine = "attribute"
    copied = copier(record)
    assert (copied, type(copied), copied.mine) == (record, type(record), "attribute")
    assert (copied.value is record.value) == (copier is copy.copy)
    copied.mine = "other"
    assert record.mine == "attribute"


# --- subclasses ----------------------------------------------------------------------------------

K = TypeVar("K")
V = TypeVar("V")


def test_it_is_subscribed_and_subclassed(cls: type[Any]) -> None:
    alias = cls[str, bytes]
    assert alias(**FIELDS) == cls(**FIELDS)

    class Message(cls[K, V], Generic[K, V]):  # type: ignore[misc]
        @property
        def name(self) -> str:
            return f"{self.topic}:{self.offset}"

    message = Message[str, bytes](**FIELDS)
    assert message.__orig_class__ == Message[str, bytes]
    del message.__orig_class__
    message.consumer = "me"
    assert isinstance(message, cls)
    assert message.name == f"topic:{2**40}"
    assert vars(message) == {**FIELDS, "consumer": "me"}
    copied = copy.copy(message)
    assert (copied, copied.consumer, type(copied)) == (message, "me", Message)
    assert dataclasses.replace(message, offset=1).name == "topic:1"


def test_subclass_may_be_a_dataclass(cls: type[Any]) -> None:
    @dataclasses.dataclass
    class Message(cls):  # type: ignore[misc]
        attempt: int = 0

    message = Message(**FIELDS, attempt=2)
    assert message == Message(**FIELDS, attempt=2)
    assert message != Message(**FIELDS)
    assert dataclasses.asdict(message) == {**FIELDS, "attempt": 2}
    assert copy.deepcopy(message) == message


def test_subclass_may_have_slots(cls: type[Any]) -> None:
    class Message(cls):  # type: ignore[misc]
        __slots__ = ("extra",)

    message = Message(**FIELDS)
    message.extra = 1
    assert (message.extra, message.topic) == (1, "topic")


# --- memory --------------------------------------------------------------------------------------


def test_record_is_weakly_referenced(record: Any) -> None:
    reference = weakref.ref(record)
    assert reference() is record


class Holder:
    """Something that can be part of a cycle and be watched."""


def decoded_record() -> Any:
    return record_set(batch(1)).take(1)[0]


MAKERS: list[Callable[[], Any]] = [
    *(lambda cls=found: cls(**FIELDS) for found in CLASSES.values()),
    decoded_record,
]


def store_as_attribute(record: Any, holder: Holder) -> None:
    record.holder = holder


def store_in_field(record: Any, holder: Holder) -> None:
    record.value = holder


def store_in_integer(record: Any, holder: Holder) -> None:
    record.offset = holder


def store_in_dict(record: Any, holder: Holder) -> None:
    vars(record)["holder"] = holder


def store_by_init(record: Any, holder: Holder) -> None:
    record.__init__(**{**FIELDS, "headers": [holder]})


@for_each(
    itertools.product(
        MAKERS, [store_as_attribute, store_in_field, store_in_integer, store_in_dict, store_by_init]
    )
)
def test_cycle_through_a_record_is_collected(
    make: Callable[[], Any], store: Callable[[Any, Holder], None]
) -> None:
    record, holder = make(), Holder()
    watched = weakref.ref(holder)
    holder.record = record  # type: ignore[attr-defined]
    store(record, holder)
    del record, holder
    gc.collect()
    assert watched() is None


@pytest.mark.parametrize("make", MAKERS)
def test_record_that_holds_itself_is_collected(make: Callable[[], Any]) -> None:
    record = make()
    watched = weakref.ref(record)
    record.key = record.me = record
    del record
    gc.collect()
    assert watched() is None


@pytest.mark.skipif(not records.COMPILED, reason="the extension is not built")
def test_decoded_records_cost_the_garbage_collector_nothing() -> None:
    with records.use_decoder("compiled"):
        taken = record_set(batch(50)).take(50)
    assert not any(map(gc.is_tracked, taken))
    taken[0].value = b"bytes cannot be part of a cycle"
    assert not gc.is_tracked(taken[0])
    taken[0].value = ["this could"]  # type: ignore[assignment]
    assert gc.is_tracked(taken[0])


def test_nothing_is_leaked(cls: type[Any]) -> None:
    import sys

    key = object()
    before = sys.getrefcount(key)
    for _ in range(100):
        record = cls(**{**FIELDS, "key": key, "offset": key, "timestamp": key})
        record.other = record.key
        record.timestamp = 5
        copy.copy(record)
        assert vars(record)["key"] is key
        repr(record)
    del record
    gc.collect()
    assert sys.getrefcount(key) == before
