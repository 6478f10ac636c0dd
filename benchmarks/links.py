"""Reading to the end where something around the client is bad: its link, its loop, its brokers.

    sudo .venv/bin/python -m benchmarks.links [CASE …]

A link is two TUN devices, one of them in a network namespace of its own, with a process between
them that forwards packets late, slowly, or not at all. It needs root and Linux. Each contestant
reads with default settings, alone, in a process of its own. The table is for docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import heapq
import json
import multiprocessing
import os
import random
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from aiokafka_lite.broker import Broker
from aiokafka_lite.structs import TopicPartition
from benchmarks.contestants import AIOKAFKA_GETMANY, CONFLUENT_CONSUME, LITE_GETMANY, Contestant
from benchmarks.contestants.reader import open_reader
from benchmarks.loading import ensure_topics
from benchmarks.measure import Workload
from benchmarks.topics import Topic
from tests.support.real_kafka import RealKafka

CONTESTANTS: Final = (LITE_GETMANY, AIOKAFKA_GETMANY, CONFLUENT_CONSUME)
SERVER_ADDRESS: Final = "10.78.0.1"
CLIENT_ADDRESS: Final = "10.78.0.2"
TIMEOUT_S: Final = 180.0
BLOCK_S: Final = 12.0
EXECUTOR_WORKERS: Final = 64
LARGE: Final = Topic(value_bytes=100_000, records=480, partition_count=40, batch_records=1)
SMALL: Final = Topic(codec="zstd", records=300_000, partition_count=4)
MANY_PARTITIONS: Final = 3_000
_TUNSETIFF: Final = 0x400454CA
_IFF_TUN: Final = 0x0001
_IFF_NO_PI: Final = 0x1000


@dataclass(frozen=True, slots=True)
class Link:
    """What a link does to packets, the same in both directions.

    Attributes:
        rate: Bytes per second; what waits for longer than `queue_s` is dropped.
        delay_s: How long each packet is on its way.
        loss: The share of packets that are dropped.
        queue_s: How much of the rate the queue holds.
    """

    rate: float = 125e6
    delay_s: float = 0.0005
    loss: float = 0.0
    queue_s: float = 0.4


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table."""

    name: str
    topic: Topic | None = LARGE
    link: Link | None = None
    trouble: str = ""


CASES: Final = (
    Case("2 MB/s", link=Link(rate=2e6)),
    Case("200 ms there and back", link=Link(delay_s=0.1)),
    Case("2 % of packets lost", link=Link(delay_s=0.01, loss=0.02)),
    Case("default executor full", SMALL, trouble="executor"),
    Case("loop blocked for 12 s", LARGE, trouble="block"),
    Case("3,000 leaders move", None, trouble="leaders"),
)


# --- The link ---------------------------------------------------------------------------------


def _open_tun(name: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return device


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


class Direction:
    """Forwards packets from one device to the other."""

    def __init__(self, source: int, target: int, link: Link, seed: int) -> None:
        self._source, self._target, self._link = source, target, link
        self._rng = random.Random(seed)
        self._waiting: list[tuple[float, int, bytes]] = []
        self._count = 0
        self._free_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(source, self._receive)

    def _receive(self) -> None:
        link, now = self._link, self._loop.time()
        with suppress(BlockingIOError):
            for _ in range(64):
                packet = os.read(self._source, 65_536)
                if self._rng.random() < link.loss or self._free_at > now + link.queue_s:
                    continue
                self._free_at = max(now, self._free_at) + len(packet) / link.rate
                self._count += 1
                due_at = self._free_at + link.delay_s
                heapq.heappush(self._waiting, (due_at, self._count, packet))
        if self._timer is None and self._waiting:
            self._timer = self._loop.call_at(self._waiting[0][0], self._send)

    def _send(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._waiting and self._waiting[0][0] <= now:
            with suppress(BlockingIOError):
                os.write(self._target, heapq.heappop(self._waiting)[2])
        if self._waiting:
            self._timer = self._loop.call_at(self._waiting[0][0], self._send)


def _carry(near: int, far: int, link: Link) -> None:
    async def forward() -> None:
        directions = (Direction(near, far, link, 1), Direction(far, near, link, 2))
        await asyncio.Event().wait()
        del directions

    asyncio.run(forward())


@contextmanager
def linked(link: Link) -> Iterator[str]:
    """Make a link from a new network namespace to this one; yield the name of the new one.

    Raises:
        PermissionError: This is not root.
    """
    name = f"link{os.getpid()}"
    near, far = _open_tun(f"{name[:12]}a"), _open_tun(f"{name[:12]}b")
    _ip("netns", "add", name)
    carrier = multiprocessing.get_context("fork").Process(target=_carry, args=(near, far, link))
    try:
        _ip("addr", "add", SERVER_ADDRESS, "peer", CLIENT_ADDRESS, "dev", f"{name[:12]}a")
        _ip("link", "set", f"{name[:12]}a", "up")
        _ip("link", "set", f"{name[:12]}b", "netns", name)
        inside = ("netns", "exec", name, "ip")
        _ip(*inside, "addr", "add", CLIENT_ADDRESS, "peer", SERVER_ADDRESS, "dev", f"{name[:12]}b")
        _ip(*inside, "link", "set", f"{name[:12]}b", "up")
        _ip(*inside, "link", "set", "lo", "up")
        carrier.start()
        yield name
    finally:
        if carrier.pid is not None:
            carrier.kill()
            carrier.join()
        _ip("netns", "del", name)
        os.close(near)
        os.close(far)


# --- A contestant, in a process of its own --------------------------------------------------------


async def _read(subject: str, workload: Workload, trouble: str) -> dict[str, float]:
    """Read all records; return how many were read, and the seconds that took."""
    loop = asyncio.get_running_loop()
    pool = ThreadPoolExecutor(EXECUTOR_WORKERS)
    loop.set_default_executor(pool)
    if trouble == "executor":
        for _ in range(EXECUTOR_WORKERS):
            loop.run_in_executor(None, time.sleep, TIMEOUT_S)
    read, blocks = 0, trouble == "block"

    def take(values: Sequence[bytes | None]) -> bool:
        nonlocal read, blocks
        read += len(values)
        if blocks and read >= workload.records // 10:
            blocks = False
            time.sleep(BLOCK_S)
        return read < workload.records

    began = time.monotonic()
    with suppress(TimeoutError, asyncio.TimeoutError):
        async with open_reader(subject, workload) as reader:
            await reader.assign()
            await asyncio.wait_for(reader.read(take), TIMEOUT_S)
    return {"records": float(read), "seconds": time.monotonic() - began}


def run_reader(
    subject: str, workload: Workload, trouble: str = "", namespace: str | None = None
) -> str:
    """Let a contestant read; return how long that took, or what became of it."""
    if trouble == "executor" and subject == CONFLUENT_CONSUME.subject:
        return "-"  # it has no event loop, but the benchmark would read it in that executor
    command = [sys.executable, "-m", "benchmarks.links", "--read", subject]
    command += ["--workload", workload.to_json(), "--trouble", trouble]
    if namespace is not None:
        command = ["ip", "netns", "exec", namespace, *command]
    try:
        answer = subprocess.run(
            command, capture_output=True, timeout=TIMEOUT_S + 60,
            text=True, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"not ended within {TIMEOUT_S + 60:.0f} s"
    if answer.returncode:
        return (answer.stderr.strip().splitlines() or ["failed"])[-1]
    found = json.loads(answer.stdout)
    spared = found["seconds"] - (BLOCK_S if trouble == "block" else 0.0)
    if found["records"] == workload.records:
        return f"{spared:.1f} s"
    return f"{found['records']:,.0f} of {workload.records:,} in {spared:.0f} s"


# --- Leaders that move ----------------------------------------------------------------------------


@asynccontextmanager
async def _many_leaders() -> AsyncIterator[Broker]:
    async with Broker(nodes=3) as broker:
        broker.create_topic("many", MANY_PARTITIONS)
        for number in range(MANY_PARTITIONS):
            broker.produce("many", f"{number}-0", partition=number)
        yield broker


async def _move_leaders(contestant: Contestant) -> str:
    """Move every leader while a contestant reads, then write a second half; return its time."""
    async with _many_leaders() as broker:
        workload = Workload(
            broker.bootstrap_servers, ("many",), MANY_PARTITIONS, records=2 * MANY_PARTITIONS
        )
        running = asyncio.ensure_future(asyncio.to_thread(run_reader, contestant.subject, workload))
        # The contestant reads the first half meanwhile, if it can.
        await asyncio.sleep(10.0)
        for number in range(MANY_PARTITIONS):
            tp = TopicPartition("many", number)
            broker.move_leader(tp, broker.partition(*tp).leader_id % 3 + 1)
            if number % 100 == 99:
                await asyncio.sleep(0)
        for number in range(MANY_PARTITIONS):
            broker.produce("many", f"{number}-1", partition=number)
        moved_at = asyncio.get_running_loop().time()
        answer = await running
        if " of " in answer or not answer.endswith(" s"):
            return answer
        return f"{asyncio.get_running_loop().time() - moved_at:.1f} s"


# --- The table -----------------------------------------------------------------------------------


def _rows(cases: Sequence[Case]) -> Iterator[tuple[str, list[str]]]:
    properties = {"log.retention.check.interval.ms": "600000"}
    for case in cases:
        if case.topic is None:
            yield case.name, [asyncio.run(_move_leaders(each)) for each in CONTESTANTS]
            continue
        host = SERVER_ADDRESS if case.link is not None else "127.0.0.1"
        with _link_of(case) as namespace, RealKafka(properties=properties, host=host) as kafka:
            ensure_topics(kafka.bootstrap_servers, [case.topic])
            workload = Workload(
                kafka.bootstrap_servers,
                (case.topic.name,),
                case.topic.partition_count,
                records=case.topic.records,
                wait_s=TIMEOUT_S,
            )
            yield (
                case.name,
                [
                    run_reader(each.subject, workload, case.trouble, namespace)
                    for each in CONTESTANTS
                ],
            )


@contextmanager
def _link_of(case: Case) -> Iterator[str | None]:
    if case.link is None:
        yield None
        return
    with linked(case.link) as namespace:
        yield namespace


def main() -> int:
    """Print the table, a row as soon as it is known."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.links", description=__doc__)
    parser.add_argument("case", nargs="*", help="words that are in a case's name; all by default")
    for name in ("--read", "--workload", "--trouble"):
        parser.add_argument(name, default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        workload = Workload.from_json(arguments.workload)
        print(json.dumps(asyncio.run(_read(arguments.read, workload, arguments.trouble))))
        os._exit(0)  # an executor that is full would be waited for
    cases = [c for c in CASES if not arguments.case or any(w in c.name for w in arguments.case)]
    print("| | " + " | ".join(each.client for each in CONTESTANTS) + " |")
    print("|---" * (len(CONTESTANTS) + 1) + "|")
    for name, cells in _rows(cases):
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
