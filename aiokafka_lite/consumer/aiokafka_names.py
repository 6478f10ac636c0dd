"""Private attributes of aiokafka's consumer that programs use: views over this consumer's parts.

==============================================  ====================================================
attribute                                       used by
==============================================  ====================================================
``_group_id``                                   many; a plain attribute of the consumer
``_closed``                                     many; some set it, to suppress the warning
``_group_instance_id``                          many
``_max_poll_records``                           tests of flechtwerk
``_subscription.topics``                        FastStream's log of assignments
``_subscription.wait_for_assignment()``         services that wait before their first read
``_coordinator.member_id``                      FastStream's log of assignments
``_coordinator._rejoin_needed_fut.done()``      health checks
``_client``                                     see client/aiokafka_names.py
==============================================  ====================================================
"""

from __future__ import annotations

import asyncio

from aiokafka_lite.consumer.life import Engine


class SubscriptionNames:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def topics(self) -> frozenset[str]:
        state = self._engine.core.state
        return state.subscription or frozenset(tp.topic for tp in state.assignment)

    async def wait_for_assignment(self) -> None:
        running = self._engine.running
        if not running.membership.is_called_by_listener():
            await running.wait_assigned()


class CoordinatorNames:
    def __init__(self, engine: Engine) -> None:
        self._membership = engine.running.membership

    @property
    def member_id(self) -> str:
        return self._membership.member_id

    @property
    def generation(self) -> int:
        return self._membership.generation

    @property
    def coordinator_id(self) -> int | None:
        status = self._membership.status
        return None if status is None else status.coordinator_id

    @property
    def _rejoin_needed_fut(self) -> asyncio.Future[None]:
        future = asyncio.get_running_loop().create_future()
        status = self._membership.status
        if status is not None and not (status.is_settled or status.withheld):
            future.set_result(None)
        return future
