"""SIGTERM while the main task of a program awaits `run` of a share consumer."""

from __future__ import annotations

import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

from aiokafka_lite._compat import timeout
from tests.consumer.sharing.reading import PATIENCE_S, filled, member, new_group, take
from tests.support.cluster import KafkaHandle
from tests.support.programs import started

PROGRAM = Path(__file__).parents[1] / "programs/sharing.py"


async def test_sigterm_drains_and_the_second_signal_releases_what_runs(kafka: KafkaHandle) -> None:
    topic, group = await filled(kafka, 2), await new_group(kafka)
    arguments = (sys.executable, str(PROGRAM), kafka.bootstrap_servers, topic, group)
    async with timeout(2 * PATIENCE_S):
        async with started(*arguments, stdin=PIPE, stdout=PIPE) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            assert {await process.stdout.readline(), await process.stdout.readline()} == {
                b"began 0\n",
                b"began 1\n",
            }
            process.send_signal(signal.SIGTERM)
            process.stdin.write(b"\n")
            assert await process.stdout.readline() == b"ended 0\n"
            process.send_signal(signal.SIGTERM)
            rest = await process.stdout.read()
            assert await process.wait() == 128 + signal.SIGTERM
            assert b"returned" not in rest
        async with member(kafka, topic, group) as consumer:
            (record,) = await take(consumer, 1)
            assert (record.offset, record.delivery_count) == (1, 2)
            assert await consumer.getmany(timeout_ms=500) == {}
