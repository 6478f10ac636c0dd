"""The course of a storm: who is killed, stopped, cut off or joins, and which leaders move."""

from __future__ import annotations

import asyncio
import math
import random
import signal
import sys
import time
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from aiokafka_lite.producing import AIOKafkaProducer
from aiokafka_lite.structs import RecordMetadata
from tests.chaos.sharing.journal import rows_of
from tests.chaos.sharing.verdict import Verdict, judge
from tests.support.child_sockets import cut_connections
from tests.support.share_groups import FinishedRecords, configure_share_group

MEMBERS: Final = 8
MOST_MEMBERS: Final = 10
# Between one fault and the next.
CALM_S: Final = (0.2, 1.5)
# As a part of all faults. Leaders move only if the cluster has several nodes.
FAULTS: Final = {"kill": 3, "stop": 2, "join": 2, "cut": 3, "leader": 2}
# Records that are killed with their members four times could be archived by the fifth.
DELIVERY_LIMIT: Final = 10
LOCK_S: Final = 15.0
LEAVES_S: Final = 40.0
LOOK_S: Final = 0.2
# Records that are sent and not finished.
MOST_WAITING: Final = 20_000


class ShareStorm:
    """One storm. Use `run`.

    Attributes:
        problems: Of the storm itself, such as a member that has failed.
        faults: How many there were, by kind.
    """

    def __init__(
        self,
        address: str,
        topic: str,
        group: str,
        home: Path,
        *,
        client: str,
        partitions: int,
        seed: int,
        move_leader: Callable[[random.Random], asyncio.Future[None]] | None = None,
    ) -> None:
        self._address, self._topic, self._group = address, topic, group
        self._home, self._client, self._partitions = home, client, partitions
        self._rng = random.Random(seed)
        self._move_leader = move_leader
        self._members: dict[str, Process] = {}
        self._leaving: list[asyncio.Task[None]] = []
        self._killed_at: dict[str, float] = {}
        self._count = 0
        self._sent = [0] * partitions
        self.problems: list[str] = []
        self.faults: Counter[str] = Counter()

    async def run(
        self, records: int, rate: int, longest_s: float, *, sends_for_s: float = math.inf
    ) -> Verdict:
        """Have so many records sent and handled; faults end when all are sent.

        Fewer are sent if that takes longer than `sends_for_s`.
        """
        settings = {
            "auto.offset.reset": "earliest",
            "delivery.count.limit": str(DELIVERY_LIMIT),
            "record.lock.duration.ms": str(round(LOCK_S * 1000)),
        }
        await configure_share_group(self._address, self._group, settings)
        finished = FinishedRecords(self._address, self._group, LOOK_S, self._sent_count)
        watching = asyncio.ensure_future(finished.watch())
        try:
            for _ in range(MEMBERS):
                await self._join()
            blowing = asyncio.ensure_future(self._blow())
            until = time.monotonic() + sends_for_s
            await self._produce(records, rate, lambda: finished.count, until)
            records = sum(self._sent)
            blowing.cancel()
            for ended in await asyncio.gather(blowing, return_exceptions=True):
                if isinstance(ended, Exception):
                    raise ended
            while len(self._members) < MEMBERS // 2:
                await self._join()
            if not await finished.reach(records, longest_s):
                self.problems.append(f"{finished.count} of {records} records are finished")
        finally:
            watching.cancel()
            await asyncio.wait([watching])
            for name in tuple(self._members):
                self._stop(name)
            await asyncio.gather(*self._leaving)
        return self._judge()

    def _judge(self) -> Verdict:
        """Judge one partition after the other: a million records need much memory."""
        verdict = Verdict([*self.problems])
        paths = list(self._home.glob("*.rows"))
        for partition, count in enumerate(self._sent):
            rows = (row for path in paths for row in rows_of(path) if row.partition == partition)
            verdict.add(judge({partition: count}, rows, self._killed_at))
        return verdict

    async def _sent_count(self) -> int:
        return sum(self._sent)

    async def _produce(
        self, records: int, rate: int, finished: Callable[[], int], until: float
    ) -> None:
        """Send at a rate, or as fast as the members are, so that faults last until the end."""
        async with AIOKafkaProducer(bootstrap_servers=self._address, linger_ms=5) as producer:
            began, total = time.monotonic(), 0
            while total < records and (now := time.monotonic()) < until:
                due = min(records, int((now - began) * rate), finished() + MOST_WAITING)
                for number in range(total, due):
                    index = number % self._partitions
                    sending = await producer.send(self._topic, b"%020d" % number, partition=index)
                    sending.add_done_callback(partial(self._answered, index))
                total = max(total, due)
                await asyncio.sleep(LOOK_S / 10)
            await producer.flush()

    def _answered(self, index: int, answer: asyncio.Future[RecordMetadata]) -> None:
        if (error := answer.exception()) is not None:
            self.problems.append(f"a record was refused: {error!r}")
        else:
            self._sent[index] += 1

    # --- Members --------------------------------------------------------------------------
    async def _join(self) -> None:
        name = f"member-{self._count}"
        self._count += 1
        path = str(self._journal(name))
        orders = (self._client, self._address, self._group, self._topic, path)
        with (self._home / f"{name}.log").open("wb") as log:
            self._members[name] = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.chaos.sharing.member", *orders, stdout=log, stderr=log
            )

    def _journal(self, name: str) -> Path:
        return self._home / f"{name}.rows"

    def _stop(self, name: str) -> None:
        process = self._members.pop(name)
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        self._leaving.append(asyncio.ensure_future(self._leave(name, process)))

    async def _leave(self, name: str, process: Process) -> None:
        """Wait until a member has left."""
        try:
            code = await asyncio.wait_for(process.wait(), LEAVES_S)
        except asyncio.TimeoutError:
            self._kill(name, process)
            self.problems.append(f"{name} does not leave within {LEAVES_S:g} s")
            await process.wait()
        else:
            is_new = code == -signal.SIGTERM and not self._journal(name).exists()
            if code and not is_new:  # one that has not started cannot leave
                last = (self._home / f"{name}.log").read_text().strip().splitlines()[-1:]
                self.problems.append(f"{name} has ended with {code}: {last}")

    def _kill(self, name: str, process: Process) -> None:
        with suppress(ProcessLookupError):
            process.kill()
        self._killed_at[name] = time.monotonic()

    # --- Faults ---------------------------------------------------------------------------
    async def _blow(self) -> None:
        kinds = [kind for kind in FAULTS if kind != "leader" or self._move_leader]
        weights = [FAULTS[kind] for kind in kinds]
        while True:
            await asyncio.sleep(self._rng.uniform(*CALM_S))
            kind = self._rng.choices(kinds, weights)[0]
            if kind in ("kill", "stop") and len(self._members) <= MEMBERS // 2:
                kind = "join"
            if kind == "join" and len(self._members) >= MOST_MEMBERS:
                kind = "cut"
            self.faults[kind] += 1
            await self._fail(kind)

    async def _fail(self, kind: str) -> None:
        name = self._rng.choice(sorted(self._members))
        if kind == "join":
            await self._join()
        elif kind == "stop":
            self._stop(name)
        elif kind == "kill":
            process = self._members.pop(name)
            self._kill(name, process)
            await process.wait()
        elif kind == "cut":
            with suppress(ProcessLookupError):
                cut_connections(self._members[name].pid)
        elif self._move_leader is not None:
            await self._move_leader(self._rng)

    def report(self, verdict: Verdict, seconds: float) -> str:
        """Return the figures and the problems."""
        faults = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        sent = sum(self._sent)
        return f"{sent} records in {seconds:.0f} s; {faults or 'no faults'}\n{verdict.text()}"
