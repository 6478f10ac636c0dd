"""Finds a group's coordinator, and sends requests to it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Final, TypeVar

from aiokafka_lite._compat import timeout_at
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.lanes import Lane
from aiokafka_lite.client.view import Node
from aiokafka_lite.consumer.events import Events
from aiokafka_lite.consumer.membership.recovery import Recovery, recovery_for
from aiokafka_lite.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError, for_code
from aiokafka_lite.events import CoordinatorChanged
from aiokafka_lite.protocol.schema import Request, Response

log = logging.getLogger(__name__)

# A deadline that equals the answer's timeout expires some loop iterations earlier.
ALMOST: Final = 0.9

R = TypeVar("R", bound=Response)


class Coordinator:
    """Finds the coordinator of one group, and forgets it after an error. Does not retry.

    `node_id` is None if the next request looks it up.
    """

    def __init__(self, cluster: Cluster, group_id: str, events: Events) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._events = events
        self.node_id: int | None = None
        self._previous_id: int | None = None
        self._finding = asyncio.Lock()
        self._loop = asyncio.get_running_loop()

    @property
    def node(self) -> Node | None:
        return None if self.node_id is None else self._cluster.view.nodes.get(self.node_id)

    def forget(self, node_id: int, reason: object) -> None:
        """Look up the coordinator at the next request, unless it is another node already."""
        if node_id == self.node_id:
            log.info(
                "group %s: node %s is no longer used as the coordinator: %s",
                self._group_id,
                node_id,
                reason,
            )
            self._previous_id, self.node_id = node_id, None

    async def request(
        self,
        request: Request[R],
        *,
        error_code: Callable[[R], int],
        deadline: float,
        answer_s: float | None = None,
        lane: Lane = Lane.GENERAL,
        error_message: Callable[[R], str | None] = lambda _: None,
    ) -> R:
        """Send a request to the coordinator, after a lookup if it is unknown.

        If the coordinator does not answer within `answer_s`, by default a part of the time until
        the deadline, its connection is closed.

        Raises:
            KafkaError: The response has an error code, or the deadline has passed. If the
                coordinator may have moved, the next request looks it up.
        """
        node_id = None
        asked_at = math.inf
        try:
            async with timeout_at(deadline):
                node_id = await self._find()
                asked_at = self._loop.time()
                try:
                    response = await self._cluster.request(
                        node_id,
                        request,
                        lane=lane,
                        timeout_s=answer_s,
                        left_s=deadline - asked_at,
                    )
                    if code := error_code(response):
                        error_class = for_code(code)
                        raise error_class(
                            f"{type(request).__name__} of group {self._group_id} to node {node_id}:"
                            f" {error_message(response) or error_class.description}"
                        )
                except KafkaError as error:
                    if recovery_for(error) is Recovery.REDISCOVER:
                        self.forget(node_id, error)
                    raise
        except asyncio.TimeoutError:
            cause = self._unreachable(node_id)
            silence = KafkaTimeoutError(
                f"the coordinator of group {self._group_id} did not answer "
                f"{type(request).__name__} in time{'' if cause is None else f': {cause}'}"
            )
            if node_id is not None:
                # The deadline often expires before the answer's timeout, which would do this.
                self.forget(node_id, silence)
                self._cluster.invalidate()  # its address may have changed
                if answer_s is not None and self._loop.time() - asked_at >= ALMOST * answer_s:
                    # Also end earlier requests: a broker that does not know yet that it is no
                    # longer the coordinator could answer them wrongly.
                    text = f"node {node_id} stopped answering: {silence.args[0]}"
                    self._cluster.pool.give_up(node_id, lane, KafkaConnectionError(text))
            raise silence from cause
        return response

    def _unreachable(self, node_id: int | None) -> KafkaError | None:
        """Return the connection error of the coordinator, or of all brokers that could name it."""
        pool = self._cluster.pool
        node_ids = pool.node_ids() if node_id is None else [node_id]
        errors = [error for each in node_ids if (error := pool.last_error(each)) is not None]
        return errors[0] if len(errors) == len(node_ids) and errors else None

    def send_nowait(self, request: Request[Response]) -> None:
        """Send a request and ignore its response, if a connection is open and idle."""
        if self.node_id is not None:
            self._cluster.pool.send_nowait(self.node_id, request)

    async def _find(self) -> int:
        async with self._finding:  # one lookup for all callers
            if self.node_id is None:
                self.node_id = await self._cluster.find_coordinator(self._group_id)
                log.info("group %s: coordinator is node %s", self._group_id, self.node_id)
                if self.node_id != self._previous_id:
                    changed = CoordinatorChanged(self.node_id, self._previous_id)
                    self._events.publish(changed)
            return self.node_id
