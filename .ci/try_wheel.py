"""Try an installed aiokafka_lite: a broker, its records, a consumer in a group.

    python .ci/try_wheel.py [--plain]

To be run by an interpreter in whose environment the wheel is, and nothing of the checkout. With
--plain the wheel is the one without compiled extensions.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

BEGAN = time.perf_counter()

import aiokafka_lite  # noqa: E402 -- measured
from aiokafka_lite import AIOKafkaConsumer  # noqa: E402
from aiokafka_lite.broker import Broker, NewRecord  # noqa: E402
from aiokafka_lite.util import COMPILED  # noqa: E402

RECORD_COUNT = 10_000
CHECKOUT = Path(__file__).resolve().parents[1]


def main() -> int | str:
    """Return what is wrong, or 0."""
    home = Path(aiokafka_lite.__file__).parent
    decoder = "compiled" if COMPILED else "plain Python"
    if home == CHECKOUT / "aiokafka_lite":
        return f"this is the checkout, not an installed wheel: {home}"
    if ("--plain" in sys.argv) == COMPILED:
        return f"the decoder is {decoder}: {home}"
    count = asyncio.run(read_all())
    if count != RECORD_COUNT:
        return f"{count} records came of {RECORD_COUNT}"
    python = ".".join(map(str, sys.version_info[:3]))
    print(
        f"aiokafka_lite {aiokafka_lite.__version__} on Python {python}, {sys.platform}, decoder "
        f"{decoder}: {count} records in {time.perf_counter() - BEGAN:.2f} s, import and broker "
        "included"
    )
    return 0


async def read_all() -> int:
    """Read what a broker of our own has, and return how many records came."""
    async with Broker() as broker:
        broker.create_topic("t")
        broker.produce_all("t", [NewRecord(b"%d" % number) for number in range(RECORD_COUNT)])
        consumer = AIOKafkaConsumer(
            "t",
            bootstrap_servers=broker.bootstrap_servers,
            group_id="g",
            auto_offset_reset="earliest",
        )
        count = 0
        async with consumer:
            while found := await consumer.getmany(timeout_ms=2_000):
                count += sum(map(len, found.values()))
                if count >= RECORD_COUNT:
                    break
        return count


if __name__ == "__main__":
    sys.exit(main())
