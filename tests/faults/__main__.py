"""Play faults to clients: `python -m tests.faults [ROW ...] [--client NAME ...] [--keep]`.

With --keep, the outcomes replace those in outcomes.json, and docs/reliability.md is written.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import aiokafka_lite
from tests.faults import page
from tests.faults.catalogue import ALL, FAULTS, Fault
from tests.faults.playing import play
from tests.faults.rows import PEERS
from tests.support.extensions import stale_extensions


async def run(faults: Sequence[Fault], clients: Sequence[str], at_once: int) -> page.Outcomes:
    found: page.Outcomes = {}
    turns = asyncio.Semaphore(at_once)

    async def one(fault: Fault, client: str) -> None:
        async with turns:
            try:
                outcome = await play(fault.play, client, fault.broker())
            except Exception as error:  # noqa: BLE001 — a bug here, and no reason to end the run
                outcome = f"BUG {error!r}"
        print(f"{fault.row:6}{fault.variant:26}{client:16} {outcome}", flush=True)
        found.setdefault(fault.row, {}).setdefault(fault.variant, {})[client] = outcome

    jobs = [(each, client) for each in faults for client in clients if client in each.clients]
    await asyncio.gather(*(one(*job) for job in jobs))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="all by default")
    parser.add_argument("--client", action="append", choices=ALL)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--keep", action="store_true")
    chosen = parser.parse_args(arguments)
    stale = stale_extensions(Path(aiokafka_lite.__file__).parent)
    if stale and os.environ.get("AIOKAFKA_LITE_IMPL") != "python":
        parser.error(f"{', '.join(stale)} changed after it was compiled")
    logging.disable(logging.CRITICAL)  # of the broker, about the faults
    faults = [each for each in FAULTS if not chosen.rows or each.row in chosen.rows]
    found = asyncio.run(run(faults, chosen.client or ALL, chosen.at_once))
    if chosen.keep:
        page.keep(found, {name: version(name) for name in PEERS})


if __name__ == "__main__":
    main()
