"""The faults that can be played to any client, by row and variant."""

from __future__ import annotations

import asyncio
import atexit
import gzip
import itertools
import random
import shutil
import signal
import socket
import struct
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final, NamedTuple

from aiokafka_lite import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.faults import Rule
from aiokafka_lite.broker.handlers.base import RequestContext
from aiokafka_lite.client.config import parse_address
from aiokafka_lite.consumer.assignors import RangePartitionAssignor, RoundRobinPartitionAssignor
from aiokafka_lite.errors import (
    BrokerResponseError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    FencedMemberEpochError,
    FetchSessionIdNotFound,
    IllegalGenerationError,
    InvalidFetchSessionEpoch,
    NotCoordinatorForGroupError,
    OffsetOutOfRangeError,
    RebalanceInProgressError,
    UnknownError,
    UnknownMemberIdError,
    UnsupportedVersionError,
)
from aiokafka_lite.protocol.messages.group_members import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
)
from aiokafka_lite.protocol.messages.metadata import ApiVersion, ApiVersionsResponse
from aiokafka_lite.protocol.messages.offsets import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from aiokafka_lite.protocol.messages.sasl import SaslAuthenticateResponse
from aiokafka_lite.structs import TopicPartition
from tests.faults.playing import LIMIT_S, T0, Play, Stage, reader
from tests.support.certificates import Authority
from tests.support.crafted import message, raw_batch, record, varint
from tests.support.proxy import Proxy
from tests.support.real_kafka import RealKafka
from tests.support.token_server import TokenServer, token_server
from tests.support.wire import RawClient


class Fault(NamedTuple):
    """A fault: how it is played, the broker's settings, and the clients that it is for."""

    row: str
    variant: str
    play: Play
    broker: Callable[[], Mapping[str, Any]]
    clients: tuple[str, ...]


FAULTS: Final[list[Fault]] = []
FOLDER: Final = Path(mkdtemp(prefix="faults-"))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
IN_PYTHON: Final = ("aiokafka_lite", "aiokafka", "kafka-python")
ALL: Final = ("aiokafka_lite", "aiokafka", "confluent-kafka", "kafka-python")
WITH_SESSIONS: Final = ("aiokafka_lite", "kafka-python")
DEMAND_STABLE: Final = ("aiokafka_lite", "confluent-kafka", "kafka-python")
BEAT: Final = "ConsumerGroupHeartbeat"
KIP_848: Final = ("aiokafka_lite", "confluent-kafka")
COUNT: Final = 20


def fault(
    row: str, variant: str, clients: tuple[str, ...] = ALL,
    later: Callable[[], Mapping[str, Any]] = dict, **broker: Any,
) -> Callable[[Play], Play]:  # fmt: skip
    def add(play: Play) -> Play:
        FAULTS.append(Fault(row, variant, play, lambda: {**broker, **later()}, clients))
        return play

    return add


def while_reading(
    row: str, variant: str, put: Callable[[Broker], Rule], clients: tuple[str, ...] = ALL
) -> None:
    """Add a fault of the broker under which 40 records are read."""

    @fault(row, variant, clients)
    def play(stage: Stage) -> None:
        stage.write(COUNT)
        stage.rules.append(put(stage.broker))


def sending(frame: bytes) -> Callable[[Broker], Rule]:
    return lambda broker: broker.on("Fetch").on_frame(lambda _, __: frame)


def failing(api: str, error: type[BrokerResponseError]) -> Callable[[Broker], Rule]:
    return lambda broker: broker.on(api).fail(error, times=2)


def with_body(api: str, body: bytes) -> Callable[[Broker], Rule]:
    def replaced(_: object, frame: bytes) -> bytes:
        return struct.pack(">i", 4 + len(body)) + frame[4:8] + body

    return lambda broker: broker.on(api).on_frame(replaced)


async def until_committed(stage: Stage) -> None:
    await stage.until(stage.is_done)
    for _ in range(50):
        written = sum(map(len, stage.expected.values()))
        uncommitted = written - sum(stage.broker.committed("g").values())
        if not uncommitted:
            return
        await asyncio.sleep(0.1)
    stage.errors.append(f"{uncommitted} uncommitted")


def in_a_group(
    row: str, variant: str, put: Callable[[Broker], Rule], clients: tuple[str, ...] = ALL,
    **settings: object,
) -> None:  # fmt: skip
    """Add a fault of the broker under which a member reads 40 records and commits."""

    @fault(row, variant, clients)
    async def play(stage: Stage) -> None:
        stage.write(COUNT)
        stage.task.update(group="g", commits=True, settings=settings)
        stage.rules.append(put(stage.broker))
        await stage.until_seen(2 * COUNT)
        await stage.rules[0].reached()
        stage.write(5)
        await until_committed(stage)


# --- Connections --------------------------------------------------------------------------------
@fault("CN-1", "", nodes=3)
async def leader_killed(stage: Stage) -> None:
    stage.write(COUNT)
    await stage.until_seen(2 * COUNT)
    await stage.broker.stop_node(stage.broker.leader_of(T0), clean=False)
    stage.write(COUNT)


@fault("CN-6", "")
async def connections_die(stage: Stage) -> None:
    first_seen: dict[str, float] = {}

    def is_old(context: RequestContext, _: object) -> bool:
        peer = str(getattr(context.connection, "peer", id(context.connection)))
        return time.monotonic() - first_seen.setdefault(peer, time.monotonic()) > 1

    stage.write(1)
    stage.broker.on(when=is_old).disconnect(times=None, reset=True)
    await stage.until_seen(2)
    for _ in range(40):
        stage.write(1)
        await asyncio.sleep(0.25)


@fault("CN-7", "connecting")
def reset_when_connecting(stage: Stage) -> None:
    stage.write(COUNT)
    stage.broker.on_connect().refuse(times=3)


SASL: Final[dict[str, Any]] = {
    "security_protocol": "SASL_PLAINTEXT",
    "users": {"alice": "wonderland"},
}


def sign_on(stage: Stage, mechanism: str = "SCRAM-SHA-256", password: str = "wonderland") -> None:  # noqa: S107
    stage.task["settings"] = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": password,
    }


@fault("CN-7", "SASL", **SASL)
def reset_during_sasl(stage: Stage) -> None:
    stage.write(COUNT)
    sign_on(stage)
    stage.broker.on("SaslAuthenticate").disconnect(times=2, reset=True)


def named(row: str, variant: str, addresses: Sequence[str]) -> None:
    """Add a broker's name with these addresses. librdkafka resolves names in C."""

    @fault(row, variant, IN_PYTHON)
    async def play(stage: Stage) -> None:
        stage.write(COUNT)
        port = stage.task["servers"].rpartition(":")[2]
        stage.task.update(servers=f"kafka.test:{port}", addresses={"kafka.test": addresses})
        if not addresses:
            stage.task["obeys"] = True
            await stage.until_word("imported")
            await asyncio.sleep(3)
            await stage.command("named", addresses={"kafka.test": ["127.0.0.1"]})


named("CN-8", "dead address first", ["127.0.0.9", "127.0.0.1"])
named("CN-8", "unknown at first", [])


@fault("CN-9", "", later=lambda: {"data_dir": mkdtemp(dir=FOLDER)})
async def all_brokers_are_replaced(stage: Stage) -> None:
    stage.write(COUNT)
    stage.ready.clear()
    async with Proxy(parse_address(stage.broker.bootstrap_servers)) as door:
        stage.task["servers"] = f"127.0.0.1:{door.port}"
        stage.ready.set()
        await stage.until_seen(2 * COUNT)
    await stage.broker.stop()
    async with Broker(num_partitions=2, data_dir=stage.broker.config.data_dir) as stage.broker:
        stage.write(COUNT)
        address = parse_address(stage.broker.bootstrap_servers)
        async with Proxy(address, port=door.port):
            await stage.until(stage.is_done)


def versions(count: int, low: int, high: int) -> ApiVersionsResponse:
    keys = [ApiVersion(api_key=n % 32_768, min_version=low, max_version=high) for n in range(count)]
    return ApiVersionsResponse(api_keys=keys)


def answering(offered: ApiVersionsResponse) -> Callable[[Broker], Rule]:
    return lambda broker: broker.on("ApiVersions").answer(offered, None)


# --- Cluster -------------------------------------------------------------------------------------
@fault("CL-1", "moves twice", nodes=2)
async def leader_moves(stage: Stage) -> None:
    stage.write(COUNT)
    for _ in range(2):
        await stage.until_seen(stage.seen and 2 * COUNT)
        for partition in range(2):
            stage.broker.move_leader(TopicPartition("t", partition))
        await asyncio.sleep(0.3)
    stage.write(COUNT)


@fault("CL-1", "stale metadata", nodes=2)
async def stale_metadata(stage: Stage) -> None:
    stage.write(COUNT)
    await stage.until_seen(2 * COUNT)
    stage.broker.on("Metadata").stale_metadata(times=4)
    for partition in range(2):
        stage.broker.move_leader(TopicPartition("t", partition))
    stage.write(COUNT)


@fault("CL-3", "")
async def topic_deleted(stage: Stage) -> None:
    stage.broker.create_topic("u", 2)
    stage.task["topics"]["u"] = 2
    stage.write(COUNT)
    stage.write(COUNT, topic="u")
    await stage.until_seen(4 * COUNT)
    stage.broker.delete_topic("t")
    for _ in range(32):
        await asyncio.sleep(0.25)
        stage.write(1, topic="u")


@fault("CL-4", "")
async def topic_recreated(stage: Stage) -> None:
    stage.write(10)
    stage.task["settings"] = {"metadata_max_age_ms": 1_000}
    await stage.until_seen(20)
    stage.broker.recreate_topic("t")
    for partition in range(2):
        for number in range(10, 30):
            value = f"t{partition}:{number}"
            stage.broker.produce("t", value, partition=partition)
            stage.expected[f"t/{partition}"].append(value)


@fault("CL-5", "")
async def partitions_added(stage: Stage) -> None:
    settings = {"auto_offset_reset": "latest", "metadata_max_age_ms": 1_000}
    stage.task.update(group="g", settings=settings)
    stage.expected["t/0"].append("a hold until all is written")
    await stage.broker.wait_for_members("g", 1, timeout_s=LIMIT_S)
    await asyncio.sleep(2)
    stage.broker.add_partitions("t", 4)
    for partition in (2, 3):
        for number in range(5):
            stage.expected[f"t/{partition}"].append(f"t{partition}:{number}")
            stage.broker.produce("t", f"t{partition}:{number}", partition=partition)
    del stage.expected["t/0"]
    await asyncio.sleep(8)
    for partition in (2, 3):
        stage.broker.produce("t", "last", partition=partition)
        stage.expected[f"t/{partition}"].append("last")


@fault("CL-6", "", nodes=2)
async def log_truncated(stage: Stage) -> None:
    stage.write(COUNT)
    await stage.until_seen(2 * COUNT)
    stage.broker.truncate(T0, 10)
    for number in range(30):
        stage.broker.produce("t", f"new {number}", partition=0)
        stage.expected["t/0"].append(f"new {number}")


def follower(variant: str, act: Callable[[Stage, int], Awaitable[object]]) -> None:
    """Add a fault of the follower in the client's rack, from which the client reads."""

    @fault("CL-7", variant, nodes=3, racks=("1", "2", "3"))
    async def play(stage: Stage) -> None:
        node = stage.broker.leader_of(T0) % 3 + 1
        stage.task["settings"] = {"client_rack": str(node)}
        stage.write(COUNT, partitions=1)
        await stage.until_seen(COUNT)
        for _ in range(8):
            stage.write(1, partitions=1)
            await asyncio.sleep(0.25)
        await act(stage, node)
        if not any(seen.node_id == node for seen in stage.broker.requests.of("Fetch")):
            stage.verdict = "reads from the leader"
        stage.write(COUNT, partitions=1)


async def out_of_range(stage: Stage, node: int) -> None:
    stage.broker.on("Fetch", node=node, partition=0).fail(OffsetOutOfRangeError, times=2)


follower("dead", lambda stage, node: stage.broker.stop_node(node, clean=False))
follower("out of range", out_of_range)


@fault("CL-10", "")
async def records_deleted(stage: Stage) -> None:
    stage.write(COUNT)
    await stage.until_seen(2 * COUNT)
    with stage.broker.on("Fetch").hold():
        await asyncio.sleep(1.5)  # until the long poll before is over
        for number in range(20):
            stage.broker.produce("t", f"new {number}", partition=0)
        stage.broker.partition("t", 0).delete_before(COUNT + 10)
        stage.expected["t/0"] += [f"new {number}" for number in range(10, 20)]


@fault("CL-2", "")
async def controller_killed(stage: Stage) -> None:
    stage.ready.clear()
    kafka = RealKafka(1, controllers=1, heap_mib=256)
    await asyncio.to_thread(kafka.__enter__)
    try:
        stage.task["servers"] = kafka.bootstrap_servers
        async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:

            async def write() -> None:
                for number, partition in itertools.product(range(COUNT), range(2)):
                    value = f"{len(stage.expected[f't/{partition}'])}:{number}"
                    stage.expected[f"t/{partition}"].append(value)
                    await producer.send_and_wait("t", value.encode(), partition=partition)

            await write()
            stage.ready.set()
            await stage.until_seen(2 * COUNT)
            for node_id in kafka.controllers:
                await asyncio.to_thread(kafka.kill_node, node_id)
            await write()
            await stage.until(stage.is_done)
    finally:
        await asyncio.to_thread(kafka.close)


# --- Groups --------------------------------------------------------------------------------------
@fault("GR-2", "", nodes=3)
async def coordinator_killed(stage: Stage) -> None:
    stage.write(COUNT)
    stage.task.update(group="g", commits=True)
    await stage.until_seen(2 * COUNT)
    await stage.until_word("committed")
    await stage.broker.stop_node(stage.broker.coordinator_of("g"), clean=False)
    stage.write(COUNT)
    await until_committed(stage)


async def away(stage: Stage, put: Callable[[], Awaitable[object]], **task: object) -> None:
    """Have a member with 40 records be away, and read on and commit."""
    stage.write(COUNT)
    stage.task.update(group="g", commits=True, **task)
    await stage.until_seen(2 * COUNT)
    await put()
    stage.write(COUNT)
    stage.limit_s = 60
    await until_committed(stage)


@fault("GR-5", "")
async def loop_blocked(stage: Stage) -> None:
    await away(stage, lambda: stage.until_word("blocked"), blocks_s=9)


@fault("GR-6", "")
async def no_reads(stage: Stage) -> None:
    settings = {"max_poll_interval_ms": 7_000}
    await away(stage, lambda: stage.until_word("working"), works_s=10, settings=settings)


@fault("AP-10", "")
async def suspended(stage: Stage) -> None:
    async def suspend() -> None:
        await until_committed(stage)
        await asyncio.sleep(0.5)
        assert stage.process is not None
        stage.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(12)
        stage.process.send_signal(signal.SIGCONT)

    await away(stage, suspend)


@fault("GR-7", "id used twice")
async def id_used_twice(stage: Stage) -> None:
    stage.write(COUNT)
    stage.task.update(group="g", commits=True, settings={"group_instance_id": "one"})
    await stage.until_seen(2 * COUNT)
    async with AIOKafkaConsumer(
        "t",
        bootstrap_servers=stage.broker.bootstrap_servers,
        group_id="g",
        group_instance_id="one",
        group_protocol="classic",
        session_timeout_ms=6_000,
    ):
        seen = stage.seen
        for _ in range(10):
            if not stage.errors:
                seen = stage.seen
            stage.broker.produce("t", "another", partition=0)
            await asyncio.sleep(1)
        told = f"error {stage.errors[0]}" if stage.errors else "no error"
        stage.verdict = f"{told}, reads on" if stage.seen > seen + 1 else told


def classic_member(stage: Stage) -> AIOKafkaConsumer[bytes | None, bytes | None]:
    """Another member, which reads no records and commits nothing."""
    return AIOKafkaConsumer(
        "t",
        bootstrap_servers=stage.broker.bootstrap_servers,
        group_id="g",
        group_protocol="classic",
        enable_auto_commit=False,
        partition_assignment_strategy=(RoundRobinPartitionAssignor, RangePartitionAssignor),
    )


@fault("GR-3", "")
async def members_join_and_leave(stage: Stage) -> None:
    stage.write(COUNT)
    stage.task.update(group="g", commits=True)
    stage.limit_s = 60
    await stage.until_seen(2 * COUNT)
    for _ in range(15):
        async with classic_member(stage):
            stage.write(1)
            await asyncio.sleep(1)
        await asyncio.sleep(0.3)
    await until_committed(stage)


@fault("GR-4", "")
async def member_killed(stage: Stage) -> None:
    stage.write(COUNT)
    stage.task.update(group="g", commits=True)
    stage.limit_s = 60
    await stage.until_seen(2 * COUNT)
    async with reader(stage.task) as other:
        listening = asyncio.ensure_future(stage.listen(other))
        await stage.broker.wait_for_members("g", 2, timeout_s=LIMIT_S)
        stage.write(COUNT)
        await until_committed(stage)
        other.kill()
        await listening
    stage.write(COUNT)
    await until_committed(stage)


@fault("GR-12", "")
async def subscription_is_unreadable(stage: Stage) -> None:
    stage.write(COUNT)
    stage.task.update(group="g", commits=True)
    stage.limit_s = 60
    await stage.until_seen(2 * COUNT)
    async with RawClient(stage.broker.bootstrap_servers) as client:
        protocols = [
            JoinGroupRequestProtocol(name=name, metadata=b"\x00\x00\x7f\xff\xff\xff")
            for name in ("roundrobin", "range", "sticky", "cooperative-sticky")
        ]

        def join(member_id: str = "") -> JoinGroupRequest:
            return JoinGroupRequest(
                group_id="g", session_timeout_ms=6_000, rebalance_timeout_ms=6_000,
                member_id=member_id, protocol_type="consumer", protocols=protocols,
            )  # fmt: skip

        joined = await client.request(join((await client.request(join())).member_id))
        syncing = SyncGroupRequest(
            group_id="g", generation_id=joined.generation_id, member_id=joined.member_id,
            protocol_type="consumer", protocol_name=joined.protocol_name,
        )  # fmt: skip
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(client.request(syncing), 10)
    stage.write(COUNT)  # its session ends
    await until_committed(stage)


def is_settled(_: RequestContext, request: Any) -> bool:
    return bool(request.member_epoch > 0)


async def commit_10(stage: Stage, offset: int = 10) -> None:
    consumer = AIOKafkaConsumer(bootstrap_servers=stage.broker.bootstrap_servers, group_id="g")
    consumer.assign([TopicPartition("t", n) for n in range(2)])
    async with consumer:
        await consumer.commit({TopicPartition("t", n): offset for n in range(2)})


def omitted(context: RequestContext, _: object) -> OffsetFetchResponse:
    if context.api_version < 8:
        return OffsetFetchResponse()
    return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g")])


def from_committed(
    variant: str, put: Callable[[Broker], Rule], clients: tuple[str, ...] = ALL
) -> None:
    @fault("GR-11", variant, clients)
    async def play(stage: Stage) -> None:
        stage.write(COUNT)
        for values in stage.expected.values():
            del values[:10]  # if they come nevertheless, they count as garbage
        stage.task.update(group="g")
        await commit_10(stage)
        stage.rules.append(put(stage.broker))
        await stage.until(stage.is_done)
        early = sum(offset < 10 for some in stage.got.values() for offset, _ in some)
        if early:
            stage.verdict = f"repeats {early}"


# --- Records -------------------------------------------------------------------------------------
def batches(content: bytes) -> Iterator[bytes]:
    while len(content) >= 12:
        size = 12 + int.from_bytes(content[8:12], "big")
        yield content[:size]
        content = content[size:]


def at_5(replacement: bytes | Callable[[bytes], bytes], until: int = 6) -> Callable[..., bytes]:
    """Replace the batch at offset 5, and those behind it that `until` covers."""

    def rewrite(_: TopicPartition, content: bytes) -> bytes:
        out = b""
        for each in batches(content):
            offset = int.from_bytes(each[:8], "big")
            if offset == 5:
                out += replacement(each) if callable(replacement) else replacement
            elif not 5 < offset < until:
                out += each
        return out

    return rewrite


def bad(
    row: str, variant: str, replacement: bytes | Callable[[bytes], bytes], until: int = 6
) -> None:
    """Add a batch at offset 5 of partition 0 that cannot be read."""

    @fault(row, variant)
    def play(stage: Stage) -> None:
        stage.write(COUNT)
        del stage.expected["t/0"][5:]
        stage.bad = 5
        on = stage.broker.on("Fetch", partition=0)
        stage.rules.append(on.rewrite_batch(at_5(replacement, until), times=None))


def good(
    row: str, variant: str, replacement: bytes | Callable[[bytes], bytes], *values: str,
    until: int = 6, times: int | None = None,
) -> None:  # fmt: skip
    """Add a replacement for offsets 5 to `until` of partition 0, which is read as `values`."""

    @fault(row, variant)
    def play(stage: Stage) -> None:
        stage.write(COUNT)
        if times is None:
            stage.expected["t/0"][5:until] = values
        rewrite = at_5(replacement, until)
        on = stage.broker.on("Fetch", partition=0)
        stage.rules.append(on.rewrite_batch(rewrite, times=times))


def flipped(each: bytes) -> bytes:
    return each[:-2] + bytes([each[-2] ^ 0x40]) + each[-1:]  # a letter of the value


@fault("FE-2", "last cut")
def last_batch_cut(stage: Stage) -> None:
    stage.write(COUNT)
    on = stage.broker.on("Fetch", partition=0)
    on.rewrite_batch(
        lambda _, content: content[:-3] if content.count(b"t0:") > 1 else content, None
    )


@fault("FE-3", "")
def record_larger_than_fetches(stage: Stage) -> None:
    stage.write(2)
    stage.broker.produce("t", "x" * 300_000, partition=0)
    stage.expected["t/0"].append("x" * 20)
    stage.write(2)
    stage.task["settings"] = {"fetch_max_bytes": 1_000, "max_partition_fetch_bytes": 1_000}


def control(kind: int) -> bytes:
    key, value = varint(4) + struct.pack(">hh", 0, kind), varint(6) + bytes(6)
    return one(record(0, key=key, value=value), attributes=0x20)


@fault("FE-5", "")
async def aborted_transactions(stage: Stage) -> None:
    servers = stage.broker.bootstrap_servers
    stage.task["settings"] = {"isolation_level": "read_committed"}
    stage.expected["t/0"].append("a hold until all is written")
    async with AIOKafkaProducer(bootstrap_servers=servers, transactional_id="x") as producer:
        for round_ in range(10):
            await producer.begin_transaction()
            for number in range(5):
                value = f"{round_}:{number}"
                await producer.send("t", value.encode(), partition=0)
                if round_ % 2:
                    stage.expected["t/0"].append(value)
            await (producer.commit_transaction if round_ % 2 else producer.abort_transaction)()
            stage.broker.produce("t", f"alone {round_}", partition=0)
            stage.expected["t/0"].append(f"alone {round_}")
    del stage.expected["t/0"][0]


@fault("FE-10", "overlap")
def batches_overlap(stage: Stage) -> None:
    stage.write(COUNT)

    def again(_: TopicPartition, content: bytes) -> bytes:
        all_batches = list(batches(content))
        return b"".join([*all_batches, *all_batches[-5:]])

    stage.broker.on("Fetch", partition=0).rewrite_batch(again, times=1)


def one(payload: bytes, *, count: int = 1, **claims: int) -> bytes:
    """A batch at offset 5, which claims what it is told to."""
    return raw_batch(payload, count=count, base_offset=5, **claims)


def in_two(compress: Callable[[bytes], bytes]) -> bytes:
    return compress(record(0)[:4]) + compress(record(0)[4:])


@cache
def bomb(codec: int) -> bytes:
    zeros = 256 << 20
    head = record(0, value=varint(zeros), length=zeros + 20)
    if codec == 1:
        squeezing = zlib.compressobj(wbits=31)
        chunks = [squeezing.compress(head)]
        chunks += [squeezing.compress(bytes(1 << 20)) for _ in range(zeros >> 20)]
        stream = b"".join([*chunks, squeezing.compress(bytes(1)), squeezing.flush()])
    else:
        stream = zstd(head + bytes(zeros + 1))
    return one(stream, attributes=codec)


def zstd(content: bytes) -> bytes:
    import cramjam

    return bytes(cramjam.zstd.compress(content))


@fault("FE-14", "policy")
async def committed_beyond_the_end(stage: Stage) -> None:
    stage.write(COUNT)
    stage.task.update(group="g")
    await commit_10(stage, 1_000)


@fault("FE-14", "no policy")
async def committed_beyond_the_end_without_policy(stage: Stage) -> None:
    stage.task.update(group="g", settings={"auto_offset_reset": "none"})
    await commit_10(stage, 1_000)
    await stage.until(lambda: bool(stage.errors))
    stage.verdict = f"error {stage.errors[0]}"


async def hold_a_fetch(stage: Stage) -> Rule:
    """Have 20 records be in the response to a fetch in flight, which the returned rule holds."""
    stage.task["obeys"] = True
    stage.write(COUNT, partitions=1)
    await stage.until_seen(COUNT)
    rule = stage.broker.on("Fetch").hold()
    await asyncio.sleep(1.5)  # until the long poll before is over
    stage.write(COUNT, partitions=1)
    return rule


@fault("FE-15", "seek")
async def sought_during_a_fetch(stage: Stage) -> None:
    rule = await hold_a_fetch(stage)
    await stage.command("sought", verb="seek", arguments=["t", 0, 10])
    rule.release()
    await stage.until(lambda: stage.seen > COUNT and stage.got["t/0"][-1][0] == 2 * COUNT - 1)
    await asyncio.sleep(2)
    found = [offset for offset, _ in stage.got["t/0"][COUNT:]]
    wrong = "repeats" if set(found) == set(range(10, 2 * COUNT)) else "old records"
    stage.verdict = "delivers" if found == list(range(10, 2 * COUNT)) else wrong


@fault("FE-15", "pause")
async def paused_during_a_fetch(stage: Stage) -> None:
    rule = await hold_a_fetch(stage)
    await stage.command("paused", verb="pause", arguments=["t", 0])
    rule.release()
    await asyncio.sleep(3)
    if stage.seen > COUNT:
        stage.verdict = "returns paused records"
    await stage.command("resumed", verb="resume", arguments=["t", 0])


# --- Application ---------------------------------------------------------------------------------
@fault("AP-1", "", ("aiokafka_lite", "aiokafka"))
async def reads_are_cancelled(stage: Stage) -> None:
    stage.write(1)
    stage.task["cancelled_after_s"] = 0.003
    await stage.until_seen(2)
    for _ in range(400):
        stage.write(1)
        await asyncio.sleep(0.005)


@fault("AP-3", "")
async def killed_while_processing(stage: Stage) -> None:
    stage.write(COUNT)
    stage.task.update(group="g", most=1, works_s=4)
    stage.task["settings"] = {"enable_auto_commit": True, "auto_commit_interval_ms": 500}
    await stage.until_word("working")
    await asyncio.sleep(2.5)
    assert stage.process is not None
    stage.process.kill()
    lost = sum(stage.broker.committed("g").values())
    stage.verdict = f"lost {lost}" if lost else "delivers"


@fault("AP-5", "", ("aiokafka_lite", "aiokafka", "kafka-python"))
def value_cannot_be_deserialised(stage: Stage) -> None:
    stage.write(5)
    stage.broker.produce("t", "bad", partition=0)
    for number in range(5):
        stage.broker.produce("t", f"behind {number}", partition=0)
    stage.bad = 5
    stage.task["refuses_bad"] = True


@fault("AP-2", "", ("aiokafka_lite", "aiokafka"))
async def tasks_are_cancelled(stage: Stage) -> None:
    stage.write(COUNT)
    stage.task.update(group="g", cancels_tasks=True)
    await stage.until_word("cancelled")
    for _ in range(10):
        stage.write(1)
        await asyncio.sleep(0.2)


@fault("AP-6", "")
async def application_is_slow(stage: Stage) -> None:
    stage.broker.create_topic("big", 64)
    for partition, number in itertools.product(range(64), range(4)):
        value = f"{partition}:{number} "
        stage.broker.produce("big", value + "x" * 1_000_000, partition=partition)
        if partition:
            stage.expected[f"big/{partition}"].append((value + "x" * 20)[:20])
    stage.task.update(topics={"big": 64}, obeys=True, most=1, works_s=12)
    await stage.until_word("working")
    await stage.command("paused", verb="pause", arguments=["big", 0])
    stage.got["big/0"].clear()
    held_mb = stage.peaks_mb[-1] - stage.peaks_mb[0]
    await stage.until(lambda: bool(stage.got["big/0"]) or stage.is_done())
    stage.verdict = "returns paused records" if stage.got["big/0"] else f"delivers, {held_mb} MB"


@fault("AP-4", "")
def listener_raises(stage: Stage) -> None:
    stage.write(COUNT)
    stage.task.update(group="g", listener_raises=True)


@fault("AP-8", "")
async def never_closed(stage: Stage) -> None:
    stage.write(COUNT)
    stage.task.update(group="g", leaves_after=2 * COUNT)
    stage.otherwise = "hangs"
    await stage.until_word("leaving")
    assert stage.process is not None
    code = await stage.process.wait()
    stage.verdict = "exits" if code == 0 else f"crashes ({code})"


@fault("AP-7", "dead broker")
async def stopped_without_a_broker(stage: Stage) -> None:
    stage.write(COUNT)
    stage.task.update(group="g", stops_after=2 * COUNT, settings={"enable_auto_commit": True})
    stage.otherwise = "hangs"
    await stage.until_word("stopping")
    await stage.broker.stop_node(1, clean=False)
    assert stage.process is not None
    assert stage.process.stdin is not None
    stage.process.stdin.write(b"\n")
    stopped = await stage.until_word("stopped")
    stage.verdict = f"stops in {stopped['seconds']:.0f} s"


@fault("AP-9", "fork")
async def forked(stage: Stage) -> None:
    stage.write(COUNT)
    stage.task["forks"] = 1
    stage.otherwise = "hangs"
    await stage.until_word("child")
    stage.write(COUNT)
    await stage.until(stage.is_done)
    child = next(each["child"] for each in stage.words if each["word"] == "child")
    stage.verdict = f"child: {child if isinstance(child, str) else f'{child} records'}"


# --- Security ------------------------------------------------------------------------------------
def own_address() -> Mapping[str, Any]:
    """The settings of a broker at an address that is not of the loopback interface."""
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing
        host = probe.getsockname()[0]
    return {"host": host, "allow_remote": True, "allow_cleartext_credentials": True}


@fault("SE-4", "", later=own_address, sasl_mechanisms=["PLAIN"], **SASL)
async def password_in_clear(stage: Stage) -> None:
    stage.write(COUNT)
    sign_on(stage, "PLAIN")
    stage.otherwise = "hangs"
    await stage.until(lambda: bool(stage.errors) or stage.is_done())
    sent = stage.broker.requests.of("SaslAuthenticate")
    stage.verdict = "sends it" if sent else f"error {stage.errors[0]}"


@fault("SE-5", "wrong password", **SASL)
async def wrong_password(stage: Stage) -> None:
    stage.write(COUNT)
    sign_on(stage, password="wrong")
    stage.task["gives_up"] = True
    await asyncio.sleep(10)
    attempts = len({seen.peer for seen in stage.broker.requests.of("SaslAuthenticate")})
    told = f"error {stage.told[0]}" if stage.told else "hangs"
    stage.verdict = f"{told}, {attempts} attempt{'s'[: attempts - 1]} in 10 s"


def scram(variant: str, first: Callable[[bytes], bytes]) -> None:
    @fault("SE-6", variant, **SASL)
    async def play(stage: Stage) -> None:
        sign_on(stage)

        def answer(_: object, request: Any) -> SaslAuthenticateResponse | None:
            sent = bytes(request.auth_bytes)
            if b"r=" not in sent or b"p=" in sent:
                stage.verdict = "sends its proof"
                return None
            return SaslAuthenticateResponse(auth_bytes=first(sent.rpartition(b"r=")[2]))

        stage.broker.on("SaslAuthenticate").answer(answer, times=None)
        stage.limit_s, stage.otherwise = 20, "hangs"
        while not stage.verdict:
            await asyncio.sleep(0.1)
            if stage.told and not stage.verdict:
                await asyncio.sleep(2)
                stage.verdict = str(stage.verdict) or f"error {stage.told[0]}"


@fault("SE-7", "", connections_max_reauth_ms=2_000, **SASL)
async def session_expires(stage: Stage) -> None:
    stage.write(1)
    sign_on(stage)
    await stage.until_seen(2)
    for _ in range(40):
        stage.write(1)
        await asyncio.sleep(0.2)


def token(variant: str, times: int, lifetime_s: int) -> None:
    """Add a token with which the client signs on, so often repeated."""

    @fault("SE-8", variant, sasl_mechanisms=["OAUTHBEARER"], **SASL)
    async def play(stage: Stage) -> None:
        stage.write(1)
        kept = stage.broker.oauth_token("alice", lifetime_s=lifetime_s)
        stage.task.update(token=kept, token_times=times, lifetime_s=lifetime_s, gives_up=True)
        names = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
        stage.task["settings"] = names
        stage.otherwise, stage.limit_s = "hangs", 20
        await stage.until(lambda: bool(stage.told) or stage.seen > 0)
        sent = stage.broker.requests.of("SaslAuthenticate")
        stage.verdict = f"{'sends it' if sent else 'does not send it'}, error {stage.told[0]}"


token("expired", 1, -60)
token("missing", 0, 3_600)
token("10 MB", 100_000, 3_600)


def token_endpoint(variant: str, act: Callable[[TokenServer, TokenServer], None]) -> None:
    """Add a token endpoint. Of the peers, only confluent-kafka can ask one."""

    @fault("SE-9", variant, ("confluent-kafka",), sasl_mechanisms=["OAUTHBEARER"], **SASL)
    async def play(stage: Stage) -> None:
        with contextmanager(token_server)() as server, contextmanager(token_server)() as other:
            act(server, other)
            stage.task["librdkafka"] = {
                "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.method": "oidc", "sasl.oauthbearer.client.id": "reader",
                "sasl.oauthbearer.client.secret": "secret",
                "sasl.oauthbearer.token.endpoint.url": server.url,
            }  # fmt: skip
            stage.otherwise, stage.limit_s = "hangs", 20
            await stage.until(lambda: bool(server.asked or other.asked) or bool(stage.told))
            await asyncio.sleep(5)
            words = ["sends its secret"] if server.asked else []
            words += ["also to the other server"] if other.asked else []
            words += [f"error {stage.told[0]}"] if stage.told else []
            words += [f"{grown} MB"] if (grown := stage.grown_mb) > 50 else []
            stage.verdict = ", ".join(words)


def redirect(server: TokenServer, other: TokenServer) -> None:
    server.location, server.answer = other.url, lambda: (307, b"{}")


def return_much(server: TokenServer, other: TokenServer) -> None:
    body = b'{"access_token": "' + b"x" * 100_000_000 + b'"}'
    server.answer = lambda: (200, body)


token_endpoint("redirect", redirect)
token_endpoint("without TLS", lambda server, other: None)
token_endpoint("100 MB", return_much)


def secrets(variant: str, password: str, mechanism: str) -> None:
    """Add a password that must be in no log, error, repr or pickle."""

    @fault("SE-10", variant, sasl_mechanisms=[mechanism], **SASL)
    async def play(stage: Stage) -> None:
        stage.write(COUNT)
        sign_on(stage, mechanism, password)
        stage.task.update(secrets=[password], obeys=True)
        await stage.until(lambda: bool(stage.told) or stage.seen > 0)
        await stage.command("leaks")
        (leaks,) = (each["where"] for each in stage.words if each["word"] == "leaks")
        stage.verdict = f"in {' and '.join(leaks)}" if leaks else "hidden"


secrets("PLAIN", "wonderland", "PLAIN")
secrets("SCRAM", "wonderland", "SCRAM-SHA-256")
secrets("wrong password", "looking-glass", "PLAIN")


@fault("SE-12", "", ("confluent-kafka",))
async def hostile_client_of_a_mock(stage: Stage) -> None:
    """librdkafka's mock cluster gets a frame of 2 GiB."""
    stage.task.update(mock=True, librdkafka={"test.mock.num.brokers": 1})
    mock = await stage.until_word("mock")
    incoming, outgoing = await asyncio.open_connection(mock["host"], mock["port"])
    outgoing.write(struct.pack(">i", 2**31 - 1) + bytes(1_000))
    with suppress(ConnectionError):
        assert not await asyncio.wait_for(incoming.read(), 5)
    outgoing.close()
    stage.verdict = f"refuses it, at {mock['host']}"


@fault("SE-13", "records")
def pickles_in_records(stage: Stage) -> None:
    stage.task["forbidden"] = ["forbidden_module"]
    value = b"cforbidden_module\nrun\n(tR."
    stage.broker.produce("t", value, partition=0, headers=[("class", value)])
    stage.expected["t/0"].append(value.decode()[:20])


def in_settings(variant: str, clients: tuple[str, ...], **settings: str) -> None:
    """Add settings that name code or a file, which must not be imported or read."""

    @fault("SE-13", variant, clients)
    async def play(stage: Stage) -> None:
        stage.write(1)
        stage.task.update(forbidden=["forbidden_module"], gives_up=True)
        stage.task["librdkafka" if "plugin.library.paths" in settings else "settings"] = settings
        stage.limit_s = 15
        await stage.until(lambda: bool(stage.told) or stage.seen == 2)
        runs = any(each["word"] == "runs" for each in stage.words)
        told = f"error {stage.told[0]}" if stage.told else "not run"
        stage.verdict = "runs it" if runs else told


in_settings("class", IN_PYTHON, value_deserializer="forbidden_module:run")
in_settings("file", ALL, client_id="${file:/tmp/forbidden_module}")


@fault("SE-13", "plugin", ("confluent-kafka",))
async def plugin_in_settings(stage: Stage) -> None:
    """`plugin.library.paths` names a library, whose constructor writes a file."""
    stage.ready.clear()
    source, library, mark = (FOLDER / name for name in ("plugin.c", "plugin.so", "plugin.ran"))
    source.write_text(
        "#include <stdio.h>\n__attribute__((constructor)) static void run(void) "
        f'{{ fclose(fopen("{mark}", "w")); }}\n'
    )
    compiling = await asyncio.create_subprocess_exec(
        "cc", "-shared", "-fPIC", "-o", library, source
    )
    assert await compiling.wait() == 0
    stage.task["librdkafka"] = {"plugin.library.paths": str(library)}
    stage.task["gives_up"] = True
    stage.ready.set()
    await stage.until(lambda: bool(stage.told) or mark.exists())
    stage.verdict = "runs it" if mark.exists() else f"error {stage.told[0]}"


def tls(name: str, from_days: int = -1, to_days: int = 1) -> Mapping[str, Any]:
    certificate = AUTHORITY.issue(name, from_days=from_days, to_days=to_days)
    return {"security_protocol": "SSL", "ssl_context": certificate.server_context(FOLDER)}


def refused(variant: str, later: Callable[[], Mapping[str, Any]], row: str = "SE-1") -> None:
    @fault(row, variant, later=later)
    async def play(stage: Stage) -> None:
        stage.write(1)
        cafile = FOLDER / "ca.pem"
        cafile.write_text(AUTHORITY.pem)
        stage.task["settings"] = {"security_protocol": "SSL", "cafile": str(cafile)}
        stage.otherwise, stage.limit_s = "hangs", 15
        await stage.until(lambda: bool(stage.told) or stage.seen > 0)
        stage.verdict = f"error {stage.told[0]}" if stage.told else "connects"


@fault("SE-2", "", later=lambda: {**SASL, **tls("localhost"), "security_protocol": "SASL_SSL"})
async def advertised_name_is_not_in_the_certificate(stage: Stage) -> None:
    stage.write(1)
    cafile = FOLDER / "ca.pem"
    cafile.write_text(AUTHORITY.pem)
    sign_on(stage)
    stage.task["settings"].update(security_protocol="SASL_SSL", cafile=str(cafile))
    stage.task["servers"] = stage.task["servers"].replace("127.0.0.1", "localhost")
    stage.otherwise = "hangs"
    await stage.until(lambda: bool(stage.told) or stage.seen > 0)
    stage.verdict = f"error {stage.told[0]}" if stage.told else "connects"


AUTHORITY: Final = Authority()


# fmt: off
WHILE_READING: Final[dict[tuple[str, str], Callable[[Broker], Rule]]] = {
    ("CN-2", ""): lambda b: b.on("Fetch").silence(),
    ("CN-3", "single bytes"): lambda b: b.on("Fetch").split(piece_bytes=1, times=2),
    ("CN-3", "stalled"): lambda b: b.on("Fetch").split(at=[40], pause_s=3600),
    ("CN-4", "HTTP"): sending(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    ("CN-4", "2 GiB"): sending(b"\x7f" + b"\xff" * 100),
    ("CN-4", "negative"): sending(b"\xff" * 100),
    ("CN-5", "wrong id"): lambda b: b.on("Fetch").wrong_correlation_id(),
    ("CN-5", "late"): lambda b: b.on("Fetch").delay(12, handled=True),
    ("CN-10", "refused once"): lambda b: b.on("ApiVersions").fail(UnsupportedVersionError),
    ("CN-10", "always refused"): lambda b: b.on("ApiVersions").fail(UnsupportedVersionError, None),
    ("CN-10", "empty range"): answering(versions(70, 9, 0)),
    ("CN-10", "100,000 keys"): answering(versions(100_000, 0, 3)),
    ("CL-9", ""): lambda b: b.on("Fetch").throttle(5, mute=True),
    ("FE-16", "whole fetch"): lambda b: b.on("Fetch").fail(UnknownError, 3, at="answer"),
    ("FE-16", "unknown code"): lambda b: b.on("Fetch").fail(999, 3),
}
for (row, variant), put in WHILE_READING.items():
    while_reading(row, variant, put)
NOISE: Final = random.Random(1).randbytes(200)
BODIES: Final = {"huge counts": b"\x7f" * 200, "long varint": b"\xff" * 200, "noise": NOISE}
for api, (variant, body) in itertools.product(("Fetch", "Metadata"), BODIES.items()):
    while_reading("FE-13", f"{api}: {variant}", with_body(api, body))

while_reading("CL-8", "forgotten", failing("Fetch", FetchSessionIdNotFound), WITH_SESSIONS)
while_reading("CL-8", "epoch", failing("Fetch", InvalidFetchSessionEpoch), WITH_SESSIONS)

# Kafka's coordinators answer Heartbeat and SyncGroup otherwise while they load.
in_a_group("GR-1", "FindCoordinator", failing("FindCoordinator", CoordinatorNotAvailableError))
for api in ("JoinGroup", "OffsetFetch", "OffsetCommit"):
    in_a_group("GR-1", f"{api}, loading", failing(api, CoordinatorLoadInProgressError))
for api in ("JoinGroup", "SyncGroup", "Heartbeat", "OffsetFetch", "OffsetCommit"):
    in_a_group("GR-1", f"{api}, moved", failing(api, NotCoordinatorForGroupError))
in_a_group("GR-9", "response lost", lambda b: b.on("OffsetCommit").disconnect(handled=True))
in_a_group("GR-9", "rebalance", lambda b: b.on("OffsetCommit").fail(RebalanceInProgressError))
in_a_group("GR-8", "generation", lambda b: b.on("Heartbeat").fail(IllegalGenerationError))
in_a_group("GR-8", "member", lambda b: b.on("Heartbeat").fail(UnknownMemberIdError))
for variant, put in {
    "fenced": lambda b: b.on(BEAT, when=is_settled).fail(FencedMemberEpochError),
    "stale commit": lambda b: b.on("OffsetCommit").fail(113),
}.items():
    in_a_group("GR-10", variant, put, KIP_848, group_protocol="consumer")
from_committed(
    "unstable", lambda b: b.on("OffsetFetch").fail(88, times=8, at="partition"), DEMAND_STABLE
)
from_committed("omitted", lambda b: b.on("OffsetFetch").answer(omitted, times=2))

good("FE-1", "once", flipped, times=1)
good("FE-4", "commit", control(1))
good("FE-4", "unknown type", control(99))
good("FE-4", "leader change", control(2))
good("FE-4", "empty", one(b"", count=0, last_offset_delta=0, attributes=0x30))
good("FE-6", "empty batch", one(b"", count=0, last_offset_delta=3), until=9)
good("FE-6", "missing batches", b"", until=9)
good("FE-6", "last record gone", one(record(0), last_offset_delta=3), "v", until=9)
good("FE-7", "format 0", message(5, b"old", magic=0), "old")
good("FE-7", "format 1", message(5, b"old", magic=1), "old")
good("FE-12", "gzip twice", one(in_two(gzip.compress), attributes=1), "v")
good("FE-12", "zstd twice", one(in_two(zstd), attributes=4), "v")
bad("FE-1", "always", flipped)
bad("FE-2", "first cut", lambda each: each[:-3], until=COUNT)
bad("FE-7", "format 3", one(record(0), magic=3))
bad("FE-7", "format 127", one(record(0), magic=127))
bad("FE-8", "", one(record(0), attributes=5))
bad("FE-9", "too few", one(record(0), count=3))
bad("FE-9", "too many", one(record(0) + record(1), last_offset_delta=0))
bad("FE-9", "2³¹-1", one(record(0), count=2**31 - 1, last_offset_delta=0))
bad("FE-9", "-5", one(record(0), count=-5, last_offset_delta=0))
bad("FE-9", "negative length", one(record(0, length=-1)))
bad("FE-9", "long value", one(record(0, value=varint(10_000) + b"v")))
bad("FE-11", "gzip", lambda _: bomb(1))
bad("FE-11", "zstd", lambda _: bomb(4))
bad("FE-12", "cut", one(gzip.compress(record(0))[:-12], attributes=1))
bad("FE-12", "wrong codec", one(gzip.compress(record(0)), attributes=2))

scram("1 iteration", lambda nonce: b"r=" + nonce + b"x,s=c2FsdA==,i=1")
scram("2³¹-1 iterations", lambda nonce: b"r=" + nonce + b"x,s=c2FsdA==,i=2147483647")
scram("another nonce", lambda nonce: b"r=other,s=c2FsdA==,i=4096")
scram("same nonce", lambda nonce: b"r=" + nonce + b",s=c2FsdA==,i=4096")
refused("another host", lambda: tls("example.org"))
refused("expired", lambda: tls("127.0.0.1", -3, -1))
refused("another authority", lambda: {"security_protocol": "SSL"})
refused("without TLS", dict, row="SE-3")
