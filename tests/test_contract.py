"""The surface of aiokafka's consumer, walked over beside the installed aiokafka."""

from __future__ import annotations

import abc
import asyncio
import copy
import dataclasses
import importlib
import inspect
import pickle
import subprocess
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import aiokafka
import aiokafka.abc
import aiokafka.errors
import aiokafka.helpers
import aiokafka.structs
import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.cluster import ClusterMetadata

import aiokafka_lite
from aiokafka_lite import errors, helpers, structs
from aiokafka_lite.client.aiokafka_names import ClientNames, ClusterNames
from aiokafka_lite.consumer.config import NotGiven
from aiokafka_lite.structs import ConsumerRecord, OffsetAndMetadata, TopicPartition
from tests.support.for_each import for_each

Theirs: Final = aiokafka.AIOKafkaConsumer
Ours: Final = aiokafka_lite.AIOKafkaConsumer

# What the constructor and methods have on top.
OUR_ARGUMENTS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "__init__": frozenset(
            {
                "ack_mode",
                "allow_auto_create_topics",
                "allow_plaintext_credentials",
                "group_protocol",
                "group_remote_assignor",
                "heartbeat_thread",
                "max_batch_bytes",
                "max_buffered_bytes",
                "max_records_per_partition",
                "on_bad_record",
                "rebalance_hold_ms",
                "seed",
            }
        ),
        "stop": frozenset({"timeout", "leave"}),
        "committed": frozenset({"others", "metadata"}),
        "getmany": frozenset({"max_records_per_partition"}),
        "position": frozenset({"others"}),
    }
)
METHODS: Final = sorted(
    name
    for name, value in vars(Theirs).items()
    if inspect.isfunction(value)
    and (not name.startswith("_") or (name.endswith("__") and name != "__del__"))
)


# --- The consumer --------------------------------------------------------------------------
@for_each(METHODS)
def test_method_takes_what_aiokafkas_takes(name: str) -> None:
    theirs, ours = getattr(Theirs, name), getattr(Ours, name)
    if name == "__anext__":  # an extension type's: made for await, no coroutine function
        return
    assert inspect.iscoroutinefunction(ours) == inspect.iscoroutinefunction(theirs)
    expected = inspect.signature(theirs).parameters
    found = inspect.signature(ours).parameters
    assert found.keys() - expected.keys() == OUR_ARGUMENTS.get(name, frozenset())
    assert [parameter for parameter in found if parameter in expected] == list(expected)
    for parameter in expected.values():
        same = found[parameter.name]
        assert same.kind is parameter.kind, parameter.name
        if name == "__init__" and parameter.name == "client_id":
            assert same.default == f"aiokafka-lite-{aiokafka_lite.__version__}"
        elif parameter.name == "partition_assignment_strategy":
            names = [assignor.name for assignor in same.default]
            assert names == ["cooperative-sticky", "range", "roundrobin"]
            # So that groups of aiokafka's members, as they come, can be joined.
            assert names[-1:] == [assignor.name for assignor in parameter.default]
        else:
            assert same.default == parameter.default, parameter.name
            kind = int if type(same.default) is NotGiven else type(same.default)
            assert kind is type(parameter.default), parameter.name


def test_additions_are_by_keyword_or_behind_what_aiokafka_takes() -> None:
    for method, names in OUR_ARGUMENTS.items():
        parameters = list(inspect.signature(getattr(Ours, method)).parameters.values())
        positional = [each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        for parameter in positional:
            if parameter.name in names:
                assert parameter is positional[-1]


def test_consumer_is_made_in_a_running_loop_only() -> None:
    with pytest.raises(RuntimeError, match="loop"):
        Ours("topic")


async def test_deprecated_arguments_warn_as_aiokafkas_do() -> None:
    with pytest.warns(DeprecationWarning, match="api_version"):
        Ours(api_version="2.4.0")._closed = True


# --- The client inside ----------------------------------------------------------------------
# What only aiokafka's own client calls.
INTERNAL: Final = frozenset({"failed_update", "update_metadata", "with_partitions"})
CLIENTS: Final = [
    (theirs, ours, name)
    for theirs, ours in ((AIOKafkaClient, ClientNames), (ClusterMetadata, ClusterNames))
    for name, value in vars(theirs).items()
    if (inspect.isfunction(value) or isinstance(value, property))
    and not name.startswith("_")
    and name not in INTERNAL
]


@for_each(CLIENTS)
def test_method_of_the_client_takes_what_aiokafkas_takes(
    theirs: type, ours: type, name: str
) -> None:
    expected, found = vars(theirs)[name], vars(ours)[name]
    assert isinstance(found, property) == isinstance(expected, property)
    if isinstance(expected, property):
        return
    # Those that return a future return an awaitable here, also where they have nothing to await.
    assert not inspect.iscoroutinefunction(expected) or inspect.iscoroutinefunction(found)
    assert [(each.name, each.kind) for each in inspect.signature(found).parameters.values()] == [
        (each.name, each.kind) for each in inspect.signature(expected).parameters.values()
    ]


# --- Values --------------------------------------------------------------------------------
NAMED_TUPLES: Final = [
    "BrokerMetadata", "OffsetAndMetadata", "OffsetAndTimestamp", "PartitionMetadata",
    "RecordMetadata", "TopicPartition",
]  # fmt: skip


@for_each(NAMED_TUPLES)
def test_named_tuple_has_the_fields_of_aiokafkas(name: str) -> None:
    theirs, ours = getattr(aiokafka.structs, name), getattr(structs, name)
    assert ours._fields == theirs._fields
    assert ours._field_defaults == theirs._field_defaults
    values = range(len(ours._fields))
    assert ours(*values) == theirs(*values) == tuple(values)
    assert hash(ours(*values)) == hash(theirs(*values))
    assert pickle.loads(pickle.dumps(ours(*values))) == ours(*values)  # noqa: S301 -- ours


VALUES: Final = ("topic", 1, 5, 1_000, 0, b"k", b"v", None, 1, 1, (("h", b"x"),))


def test_record_has_the_fields_of_aiokafkas_in_their_order() -> None:
    theirs = aiokafka.ConsumerRecord(*VALUES)
    ours: ConsumerRecord = ConsumerRecord(*VALUES)
    names = [field.name for field in dataclasses.fields(theirs)]
    assert [field.name for field in dataclasses.fields(ours)] == names
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert dataclasses.astuple(ours) == dataclasses.astuple(theirs)
    assert repr(ours) == repr(theirs)


def test_record_is_mutable_comparable_and_not_hashable() -> None:
    record: ConsumerRecord = ConsumerRecord(*VALUES)
    same: ConsumerRecord = ConsumerRecord(*VALUES)
    assert record == same
    assert dataclasses.replace(record, offset=6) != same
    record.value = b"other"
    assert record != same
    with pytest.raises(TypeError, match="hash"):
        hash(record)


def test_record_takes_attributes_subclasses_and_type_arguments() -> None:
    record: ConsumerRecord = ConsumerRecord(*VALUES)
    record.consumer = "FastStream sets it"  # type: ignore[attr-defined]
    assert vars(record)["consumer"] == "FastStream sets it"

    class Mine(ConsumerRecord[bytes, bytes]):
        """A program's own, as FastStream's test record."""

    mine = Mine(*VALUES)
    assert (mine.topic, mine.offset, isinstance(mine, ConsumerRecord)) == ("topic", 5, True)
    assert ConsumerRecord[str, int](*VALUES) == record  # type: ignore[arg-type]


def test_record_survives_pickle_and_copy() -> None:
    record: ConsumerRecord = ConsumerRecord(*VALUES)
    assert pickle.loads(pickle.dumps(record)) == record  # noqa: S301 -- our own bytes
    assert copy.copy(record) == record
    assert copy.deepcopy(record) == record


# --- Interfaces and functions --------------------------------------------------------------
@pytest.mark.parametrize("name", ["AbstractTokenProvider", "ConsumerRebalanceListener"])
def test_interface_has_the_methods_of_aiokafkas(name: str) -> None:
    theirs, ours = (
        getattr(aiokafka.abc, name),
        getattr(importlib.import_module("aiokafka_lite.abc"), name),
    )
    assert ours.__abstractmethods__ == theirs.__abstractmethods__
    assert isinstance(ours, abc.ABCMeta)
    for method, value in vars(theirs).items():
        if inspect.isfunction(value):
            assert list(inspect.signature(getattr(ours, method)).parameters) == list(
                inspect.signature(value).parameters
            )


def test_ssl_helper_takes_what_aiokafkas_takes() -> None:
    theirs = inspect.signature(aiokafka.helpers.create_ssl_context).parameters
    ours = inspect.signature(helpers.create_ssl_context).parameters
    assert {name: (p.kind, p.default) for name, p in ours.items()} == {
        name: (p.kind, p.default) for name, p in theirs.items()
    }
    assert helpers.create_ssl_context().check_hostname


# --- Errors --------------------------------------------------------------------------------
# Where aiokafka says otherwise than Kafka's own table (test_errors.py compares that whole).
AIOKAFKA_DIFFERS: Final = frozenset(
    {
        "ConcurrentTransactions", "CorruptRecordException", "FetchSessionIdNotFound",
        "InvalidFetchSessionEpoch", "InvalidMessageError", "InvalidReplicationAssignmentError",
        "InvalidTopicError", "KafkaTimeoutError", "ListenerNotFound", "MessageSizeTooLargeError",
        "NoError", "NotLeaderForPartitionError", "ReplicaNotAvailableError",
        "StaleLeaderEpochCodeError", "UnknownError",
    }
)  # fmt: skip


def aiokafkas_errors() -> dict[str, type[Exception]]:
    return {
        name: value
        for name, value in vars(aiokafka.errors).items()
        if inspect.isclass(value) and issubclass(value, Exception)
    }


@for_each(sorted(aiokafkas_errors()))
def test_error_stands_where_aiokafkas_does(name: str) -> None:
    theirs, ours = aiokafkas_errors()[name], getattr(errors, name)
    renamed = {vars(errors)[parent.__name__] for parent in theirs.__mro__[:-1]
               if parent.__name__ in vars(errors)}  # fmt: skip
    assert renamed <= set(ours.__mro__)
    is_different = any(
        getattr(theirs, attribute) != getattr(ours, attribute)
        for attribute in ("errno", "message", "retriable", "invalid_metadata")
        if hasattr(theirs, attribute)
    )
    assert is_different == (name in AIOKAFKA_DIFFERS)
    if not hasattr(theirs, "errno"):
        assert not is_different or name == "KafkaTimeoutError"
        return
    assert ours.errno == theirs.errno
    assert errors.for_code(ours.errno) is errors.kafka_errors[ours.errno] is ours


def test_not_every_error_is_a_kafka_error() -> None:
    for name in ("ConsumerStoppedError", "IllegalOperation"):
        assert getattr(errors, name).__bases__ == (Exception,)


# --- Module paths --------------------------------------------------------------------------
IMPORTS: Final = [
    "from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, AIOKafkaClient",
    "from aiokafka import ConsumerRebalanceListener, ConsumerRecord, TopicPartition, __version__",
    "from aiokafka import OffsetAndMetadata, OffsetAndTimestamp",
    "from aiokafka import ConsumerStoppedError, IllegalOperation",
    "from aiokafka.abc import AbstractTokenProvider, ConsumerRebalanceListener",
    "from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete",
    "from aiokafka.admin.client import AIOKafkaAdminClient",
    "from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType",
    "from aiokafka.admin.new_partitions import NewPartitions",
    "from aiokafka.admin.new_topic import NewTopic",
    "from aiokafka.admin.records_to_delete import RecordsToDelete",
    "from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType",
    "from aiokafka.cluster import ClusterMetadata",
    "from aiokafka.consumer import AIOKafkaConsumer",
    "from aiokafka.consumer.consumer import AIOKafkaConsumer",
    "from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor",
    "from aiokafka.coordinator.assignors.range import RangePartitionAssignor",
    "from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor",
    "from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor",
    "from aiokafka.coordinator.protocol import ConsumerProtocol",
    "from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment",
    "from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata",
    "from aiokafka.errors import KafkaError, KafkaConnectionError, for_code, kafka_errors",
    "from aiokafka.helpers import create_ssl_context",
    "from aiokafka.partitioner import DefaultPartitioner, murmur2",
    "from aiokafka.producer import AIOKafkaProducer",
    "from aiokafka.producer.producer import AIOKafkaProducer, TransactionContext, _missing",
    "from aiokafka.record import MemoryRecords",
    "from aiokafka.structs import BrokerMetadata, ConsumerRecord, PartitionMetadata",
    "from aiokafka.structs import OffsetAndMetadata, OffsetAndTimestamp, RecordMetadata",
    "from aiokafka.util import INTEGER_MAX_VALUE, INTEGER_MIN_VALUE, NO_EXTENSIONS",
    "from aiokafka.util import create_future, create_task, get_running_loop, wait_for",
    "from aiokafka.util import commit_structure_validate",
    "import aiokafka; aiokafka.coordinator, aiokafka.util, aiokafka.producer",
]


@for_each(IMPORTS)
def test_import_works_with_either_package(line: str) -> None:
    exec(line, {})  # noqa: S102 -- a line of the list above
    exec(line.replace("aiokafka", "aiokafka_lite", 1).replace("; ", " as aiokafka; "), {})  # noqa: S102


LENT: Final = [
    ("", "AIOKafkaClient"), (".admin", "AIOKafkaAdminClient"), (".client", "AIOKafkaClient"),
    (".partitioner", "DefaultPartitioner"), (".record", "MemoryRecords"),
]  # fmt: skip


@for_each(LENT)
def test_what_is_not_here_is_aiokafkas_own(module: str, name: str) -> None:
    ours = importlib.import_module(f"aiokafka_lite{module}")
    assert getattr(ours, name) is getattr(importlib.import_module(f"aiokafka{module}"), name)


def test_without_aiokafka_the_import_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['aiokafka'] = None\n" + "".join(
        f"import aiokafka_lite{module}\n"
        "from aiokafka_lite import *\n"
        f"try: from aiokafka_lite{module} import {name}\n"
        "except ImportError as error: print(error)\n"
        for module, name in LENT
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for (_, name), error in zip(LENT, done.stdout.splitlines(), strict=True):
        assert error.startswith(f"{name} is part of aiokafka, which is not installed: pip install")


# --- aiokafka.util -------------------------------------------------------------------------
async def test_utilities_do_what_aiokafkas_do() -> None:
    from aiokafka_lite import util

    async def answer() -> int:
        return 42

    assert await util.create_task(answer()) == await util.wait_for(answer(), 60) == 42
    future = util.create_future()
    with pytest.raises(asyncio.TimeoutError):
        await util.wait_for(future, 0)
    tp = TopicPartition("t", 0)
    assert util.commit_structure_validate({tp: 3}) == {tp: OffsetAndMetadata(3, "")}
    with pytest.raises(ValueError):
        util.commit_structure_validate({})
    assert util.get_running_loop() is future.get_loop()
