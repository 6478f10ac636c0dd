"""What is done to a cluster while records flow. Each names its faults in the course's windows."""

from __future__ import annotations

import asyncio
import signal
from typing import Final

from tests.support.failover.cluster import until
from tests.support.failover.course import Course

DOWN_S: Final = 8.0
HANG_S: Final = 15.0
KILLS: Final = ("kill the coordinator", "kill the controller", "kill the third")
ELECTION: Final = "leaders move back"
HANG: Final = "a broker hangs"
CONTROLLER_KILL: Final = "kill a controller that is no broker"


async def kill_each(course: Course, *, down_s: float = DOWN_S, moves_back: bool = True) -> None:
    """Kill three brokers, one after the other: the coordinator, the controller, another.

    Each leads a third of the partitions, comes back, and is given its leaders again, unless they
    are not to move back.
    """
    cluster = course.cluster
    killed: list[int] = []
    for name in KILLS:
        if name == KILLS[0]:
            node_id = await course.coordinator()
        elif name == KILLS[1]:
            node_id = await cluster.controller()
        else:
            node_id = next((n for n in cluster.kafka.nodes if n not in killed), killed[0])
        killed.append(node_id)
        await course.kill(name, node_id, down_s=down_s)
        if not moves_back:
            continue
        async with course.fault(f"{ELECTION} after: {name}"):
            await cluster.elect_preferred()


async def restart_each(course: Course) -> None:
    """Shut every broker down in good order, and start it again."""
    for node_id in course.cluster.kafka.nodes:
        async with course.fault(f"restart {node_id}"):
            await course.cluster.stop(node_id, signal.SIGTERM)
            await course.flows()
            await course.cluster.start(node_id)
            await course.heal()
        async with course.fault(f"{ELECTION} after: restart {node_id}"):
            await course.cluster.elect_preferred()


async def hang(course: Course, *, is_coordinator: bool = False) -> None:
    """Have a broker hang with its connections open, for much longer than its session lasts."""
    cluster = course.cluster
    coordinator = await course.coordinator()
    others = [n for n in cluster.kafka.nodes if n not in (coordinator, await cluster.controller())]
    node_id = coordinator if is_coordinator else others[0]
    async with course.fault(HANG):
        cluster.pause(node_id)
        try:
            await asyncio.sleep(HANG_S)
        finally:
            cluster.resume(node_id)
        await course.heal()


async def kill_controller_only(course: Course) -> None:
    """Kill the active controller, where controllers are no brokers; another takes over."""
    cluster = course.cluster
    node_id = await cluster.controller()
    async with course.fault(CONTROLLER_KILL):
        await cluster.stop(node_id)
        await until(cluster.controller, lambda found: found not in (node_id, -1))
        await course.flows()
        await cluster.start(node_id)
        await course.heal()
