"""Run a storm on three real nodes that are made for it; end with 1 if a promise was not kept."""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import random
import shutil
import signal
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

from aiokafka_lite.errors import KafkaError
from tests.chaos.storm.clients import Clients
from tests.chaos.storm.journal import COPY, INPUT, PARTITIONS, READERS, Journal
from tests.chaos.storm.verdict import Verdict, judge
from tests.support.failover.cluster import OFFSETS_TOPIC, FailingCluster
from tests.support.real_kafka import RealKafka

CALM_S: Final = (1.0, 8.0)
LASTS_S: Final = {"SIGKILL": (0.0, 8.0), "SIGSTOP": (1.0, 20.0), "SIGTERM": (0.0, 8.0)}
# How often the next fault begins when the node is up, before its replicas are in sync.
OVERLAPS: Final = 0.25
# A fault may be the reason of a repeated record until so long after its end.
AFTERMATH_S: Final = 30.0
# When the nodes are whole again and nothing more is sent, all clients have everything within this.
SETTLE_S: Final = 60.0
MOST_MIB: Final = 160
SHOWN_S: Final = 10.0


class Storm:
    """One storm: its clients, its faults, and what is printed of them."""

    def __init__(self, kafka: RealKafka, seed: int, home: Path) -> None:
        self._cluster, self._rng = FailingCluster(kafka), random.Random(seed)
        self.journal = Journal(home)
        rng = random.Random(f"{seed}:clients")
        self._clients = Clients(kafka.bootstrap_servers, self.journal, rng)
        self._spans: list[tuple[float, float]] = []
        self._counts = Counter[str]()
        self._figures: dict[str, object] = {}
        self.problems: list[str] = []

    def _show(self, text: str) -> None:
        print(f"{self.journal.now():7.1f} s  {text}", flush=True)

    async def run(self, seconds: float, rate: int) -> None:
        """Have nodes fail for a time, and wait until all clients have everything."""
        for topic in (INPUT, COPY):
            await self._cluster.create(topic, PARTITIONS)
        producing = asyncio.ensure_future(self._clients.produce(rate))
        blowing = asyncio.ensure_future(self._blow(seconds))
        tasks = [blowing, *self._clients.start(), asyncio.ensure_future(self._show_progress())]
        await asyncio.wait([producing, *tasks], return_when=asyncio.FIRST_COMPLETED)
        began = self.journal.now()
        self._figures["acknowledged/s"] = round(sum(self.journal.acked) / began)
        self._clients.has_ended.set()
        others = tasks[1:]  # they never end
        settled = ["0 waiting", *(f"{name} ok -0" for name in READERS)]
        while self._states() != settled and self.journal.now() - began < SETTLE_S:
            if (await asyncio.wait(others, timeout=0.1, return_when=asyncio.FIRST_COMPLETED))[0]:
                break
        if (states := self._states()) != settled:
            self.problems.append(f"not settled in {SETTLE_S:g} s: {states}")
        self._figures["settled in s"] = round(self.journal.now() - began, 1)
        self._figures["MiB, all in one process"] = most_mib = resident_mib("VmHWM")
        if most_mib > MOST_MIB:
            self.problems.append(f"more than {MOST_MIB} MiB")
        for task in (producing, *tasks):
            task.cancel()
        for ended in await asyncio.gather(producing, *tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                self.problems.append(repr(ended))
        self.journal.close()

    async def _blow(self, seconds: float) -> None:
        is_whole = True
        while self.journal.now() < seconds:
            await asyncio.sleep(self._rng.uniform(*CALM_S))
            began = self.journal.now()
            await self._fail(self._rng.choice(sorted(LASTS_S)))
            self._spans.append((began, self.journal.now()))
            is_whole = not is_whole or self._rng.random() > OVERLAPS
            if is_whole:
                await self._heal()
        await self._heal()

    async def _heal(self) -> None:
        """Wait until all replicas are in sync, and have leaders move back."""
        while True:
            try:
                await self._cluster.whole(INPUT, COPY, OFFSETS_TOPIC, "__transaction_state")
                return await self._cluster.elect_preferred()
            except (OSError, EOFError, KafkaError) as error:
                self._show(f"not healed: {error!r}")

    async def _fail(self, kind: str) -> None:
        cluster, lasts_s = self._cluster, self._rng.uniform(*LASTS_S[kind])
        node_id = self._rng.choice(sorted(cluster.kafka.nodes))
        self._counts[kind] += 1
        self._show(f"{kind} for node {node_id}, back after {lasts_s:.1f} s")
        if kind == "SIGSTOP":
            cluster.pause(node_id)
            await asyncio.sleep(lasts_s)
            cluster.resume(node_id)
        else:
            await cluster.stop(node_id, signal.Signals[kind])
            await asyncio.sleep(lasts_s)
            await cluster.start(node_id)

    def _states(self) -> list[str]:
        """Return how many records wait, and the health of each reader and what it has to read."""
        states = [f"{sum(self.journal.sent) - sum(self.journal.acked)} waiting"]
        for name in READERS:
            health = "/".join(sorted(self._clients.verdicts(name)))
            states.append(f"{name} {health} -{self.journal.behind(name)}")
        return states

    async def _show_progress(self) -> None:
        while True:
            await asyncio.sleep(SHOWN_S)
            acked, states = sum(self.journal.acked), ", ".join(self._states())
            self._show(f"{acked} acknowledged, {states}; {resident_mib('VmRSS')} MiB")

    def report(self, verdicts: list[Verdict]) -> str:
        """Return the figures and the problems."""
        self.problems += self._clients.problems
        self.problems += [f"{found.rule}: {found.text}" for one in verdicts for found in one[0]]
        records = [sum(one.records[topic] for one in verdicts) for topic in (INPUT, COPY)]
        if records[0] != records[1]:
            self.problems.append("the topics have different numbers of records")
        for name in verdicts[0].repeats:
            times = [at for one in verdicts for at in one.repeats[name]]
            by = [any(a <= at <= b + AFTERMATH_S for a, b in self._spans) for at in times]
            self._figures[f"repeated, {name}"] = f"{len(times)}, {by.count(False)} without a fault"
        figures = self._figures | {
            "sent, acknowledged": (sum(self.journal.sent), sum(self.journal.acked)),
            "records, in the copy": records,
            "faults": dict(self._counts),
            "errors": dict(self.journal.errors),
            "longest standstill in s": {n: round(s) for n, s in self._clients.standstill_s.items()},
            "health() not ok in s": self._clients.degraded_s,
            "problems": len(self.problems),
        }
        lines = [f"{name:24} {figure}" for name, figure in figures.items()]
        return "\n".join([*lines, *self.problems[:40]])


def resident_mib(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith(name))


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.chaos.storm", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800.0, help="how long nodes fail")
    parser.add_argument("--seed", type=int, default=1, help="which nodes fail, how and when")
    parser.add_argument("--rate", type=int, default=5000, help="records a second")
    parser.add_argument("--home", type=Path, default=Path("out/storm"), help="for logs")
    options = parser.parse_args()
    home: Path = options.home / f"{options.seed}-{time.strftime('%H%M%S')}"
    home.mkdir(parents=True)
    logging.basicConfig(
        filename=home / "log", level=logging.INFO, format="%(asctime)s %(name)s %(message)s"
    )
    with RealKafka(3, heap_mib=384) as kafka:
        storm = Storm(kafka, options.seed, home)
        asyncio.run(storm.run(options.seconds, options.rate))
        rows = zip(range(PARTITIONS), storm.journal.paths, storm.journal.sent, strict=True)
        with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
            judging = [pool.submit(judge, kafka.bootstrap_servers, *row) for row in rows]
            report = storm.report([each.result() for each in judging])
        for node in kafka.nodes.values():
            for log in node.home.glob("kafka.log*"):
                shutil.copy(log, home / log.name.replace("kafka", f"node{node.node_id}"))
    settings = f"--seconds {options.seconds:g} --seed {options.seed} --rate {options.rate}"
    print(f"python -m tests.chaos.storm {settings}\n{report}", flush=True)
    if storm.problems:
        print(f"journals and logs are in {home}")
        return 1
    for path in storm.journal.paths:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
