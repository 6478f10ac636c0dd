"""Private attributes of aiokafka's consumer that programs in the wild have come to use.

All of it is compatibility, and no way to reach more of this package. Most of the attributes are
views over its parts that answer what is asked of aiokafka's.

==============================================  ====================================================
attribute                                       asked by
==============================================  ====================================================
``_group_id``                                   everybody; a plain attribute of the consumer
``_closed``                                     everybody; some set it, so that nobody is warned
``_group_instance_id``                          as that
``_max_poll_records``                           tests of flechtwerk: how much may a get return
``_subscription.topics``                        FastStream's log of assignments
``_subscription.wait_for_assignment()``         services that want to be ready before they read
``_coordinator.member_id``                      FastStream's log of assignments
``_coordinator._rejoin_needed_fut.done()``      health checks: has the member to join (again)
``_client``                                     see client/aiokafka_names.py
==============================================  ====================================================
"""

from __future__ import annotations

import asyncio

from aiokafka_lite.consumer.life import Engine


class SubscriptionNames:
    """What is asked of ``consumer._subscription``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def topics(self) -> frozenset[str]:
        """The topics subscribed to, or those of the partitions assigned by hand."""
        state = self._engine.state
        return state.subscription or frozenset(tp.topic for tp in state.assignment)

    async def wait_for_assignment(self) -> None:
        """Wait until the subscription has its assignment, unless a rebalance listener asks.

        Raises:
            KafkaError, ConsumerStoppedError: It was not started, is stopped, or cannot join.
        """
        membership = self._engine.running.membership
        if not membership.is_called_by_listener():
            await membership.wait_assigned()


class CoordinatorNames:
    """What is asked of ``consumer._coordinator``."""

    def __init__(self, engine: Engine) -> None:
        self._membership = engine.running.membership

    @property
    def member_id(self) -> str:
        """The id that the group's coordinator gave; empty while there is none."""
        return self._membership.member_id

    @property
    def generation(self) -> int:
        """The group's generation that the assignment is of; -1 while there is none."""
        return self._membership.generation

    @property
    def coordinator_id(self) -> int | None:
        """The node that coordinates the group; None while it is not known."""
        return self._membership.coordinator_id

    @property
    def _rejoin_needed_fut(self) -> asyncio.Future[None]:
        """A future that is done when the member has to join again, or does so.

        It is not while the listener is told of what the group has assigned.
        """
        future = asyncio.get_running_loop().create_future()
        status = self._membership.status
        if status is not None and not (status.is_settled or status.withheld):
            future.set_result(None)
        return future
