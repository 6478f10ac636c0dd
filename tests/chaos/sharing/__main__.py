"""Run a storm on nodes that are made for it; end with 1 if a promise was not kept."""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import sys
import time
from pathlib import Path
from typing import Final

from tests.chaos.sharing.course import ShareStorm
from tests.chaos.sharing.member import LIVES
from tests.support.failover.cluster import FailingCluster
from tests.support.real_kafka import RealKafka

TOPIC: Final = "jobs"
GROUP: Final = "workers"
PARTITIONS: Final = 6


async def storm_of(cluster: FailingCluster, options: argparse.Namespace, home: Path) -> int:
    """Run the storm; returns the exit code."""
    nodes = sorted(cluster.kafka.nodes)

    async def move(rng: random.Random) -> None:
        index = rng.randrange(PARTITIONS)
        led_by = (await cluster.leaders(TOPIC))[index]
        await cluster.move(TOPIC, index, rng.choice([n for n in nodes if n != led_by]))

    await cluster.create(TOPIC, PARTITIONS)
    storm = ShareStorm(
        cluster.bootstrap_servers,
        TOPIC,
        GROUP,
        home,
        client=options.client,
        partitions=PARTITIONS,
        seed=options.seed,
        move_leader=lambda rng: asyncio.ensure_future(move(rng)),
    )
    began = time.monotonic()
    verdict = await storm.run(
        options.records, options.rate, options.longest, sends_for_s=options.seconds
    )
    print(storm.report(verdict, time.monotonic() - began), flush=True)
    return 1 if verdict.problems else 0


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.chaos.sharing", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument(
        "--rate", type=int, default=4_000, help="records a second, if members keep up"
    )
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="send no more records after so long"
    )
    parser.add_argument("--seed", type=int, default=1, help="which faults, and when")
    parser.add_argument("--client", choices=LIVES, default="lite")
    parser.add_argument("--longest", type=float, default=300.0, help="seconds, once all are sent")
    parser.add_argument("--home", type=Path, default=Path("out/share-storm"), help="for journals")
    options = parser.parse_args()
    home: Path = options.home / f"{options.seed}-{time.strftime('%H%M%S')}"
    home.mkdir(parents=True)
    with RealKafka(3, heap_mib=384) as kafka:
        code = asyncio.run(storm_of(FailingCluster(kafka), options, home))
    print(f"journals are in {home}")
    return code


if __name__ == "__main__":
    sys.exit(main())
