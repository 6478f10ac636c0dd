"""A share source: the requests of one member to one node, over one connection.

One request is in flight, and none is cancelled: the broker would lock records for an answer that
nobody reads, until the locks' end. What is sent next, in this order:

    renewals                     when due, alone
    a fetch                      if records are wanted; with acknowledgements
    acknowledgements             soon, if no fetch will take them along

A fetch waits in the broker for records, and acknowledgements wait for its answer. So it waits for
long only if no lock is held here.

A lost connection, a broker that stops answering, and a refused session end all leases of the node.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from aiokafka_lite._tasks import Event
from aiokafka_lite._threads import compute
from aiokafka_lite.client.connection import Connection
from aiokafka_lite.client.lanes import Lane
from aiokafka_lite.client.view import Node
from aiokafka_lite.consumer.events import LogLimit
from aiokafka_lite.consumer.sharing.demand import FETCH_RANGE_S
from aiokafka_lite.consumer.sharing.leases import (
    RENEWED_AT_SHARE,
    Acknowledgements,
    Acquired,
    Record,
    SharePartition,
    may_pass,
)
from aiokafka_lite.consumer.sharing.session import ShareSession, acknowledgement
from aiokafka_lite.errors import (
    BrokerResponseError,
    FencedLeaderEpochError,
    KafkaConnectionError,
    KafkaError,
    NoError,
    NotLeaderForPartitionError,
    for_code,
)
from aiokafka_lite.protocol.messages.share import PartitionData
from aiokafka_lite.protocol.messages.share import ShareFetchResponse as Fetched
from aiokafka_lite.protocol.messages.share_acknowledge import (
    PartitionData as AcknowledgedPartition,
)
from aiokafka_lite.protocol.messages.share_acknowledge import (
    ShareAcknowledgeRequest,
)
from aiokafka_lite.protocol.messages.share_acknowledge import (
    ShareAcknowledgeResponse as Acknowledged,
)
from aiokafka_lite.protocol.schema import Request
from aiokafka_lite.records import RecordSet, end_offset
from aiokafka_lite.records.batch import peek_header
from aiokafka_lite.structs import TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.consumer.membership.heartbeat_thread import Send
    from aiokafka_lite.consumer.sharing.sharing import Leasing

log = logging.getLogger(__name__)

# How long a broker may be silent beyond the wait that a request asks for.
ANSWER_S: Final = 5.0
# The range of the wait for records while locks are held: a part of their age.
HELD_WAIT_S: Final = (0.005, 0.1)
HELD_WAIT_SHARE: Final = 0.25
# How long acknowledgements wait for others if no fetch will take them along.
ACKNOWLEDGE_S: Final = 0.005
# Records that are decoded before others may run, and the longest decompression on the loop.
DECODED_AT_ONCE: Final = 2_048
INFLATE_ON_LOOP_S: Final = 0.0005
# Whole batches are locked if what they add to the demand is less than this share of it.
EXCESS_SHARE: Final = 0.5
EXCESS_MEMORY: Final = 0.9

# Of ShareAcknowledge (KIP-1222).
FIRST_WITH_RENEWALS: Final = 2
# Errors for which an answer names the leader. With others, it is 0.
LEADER_MOVED: Final = (NotLeaderForPartitionError, FencedLeaderEpochError)

AnswerT = TypeVar("AnswerT", Fetched, Acknowledged)
Errors: TypeAlias = "dict[SharePartition, KafkaError]"


class SentByThread(NamedTuple):
    """A renewal that the heartbeat thread has sent, and its answer."""

    source: ShareSource
    session_number: int
    renewals: Acknowledgements
    asked_at: float
    answer: Acknowledged | KafkaError


class ShareSource:
    """The requests to one node.

    Attributes:
        partitions: Those to fetch, by topic id and number. Written by `Leasing`.
        failure: The latest error that the node has answered, and the loop time of the first one. It
            is None after an answer without errors.
        fetched_at: Loop time of the latest answer to a fetch.
    """

    def __init__(self, leasing: Leasing, node_id: int) -> None:
        self.node_id = node_id
        self.partitions: dict[tuple[bytes, int], SharePartition] = {}
        self.failure: tuple[KafkaError, float] | None = None
        self.fetched_at: float | None = None
        self._leasing = leasing
        self._leases, self._demand = leasing.leases, leasing.demand
        self._settings, self._cluster = leasing.settings, leasing.cluster
        self._loop = asyncio.get_running_loop()
        self._wake = Event()
        self._session = ShareSession(leasing.settings.group_id, leasing.member_id)
        # Counts sessions, so that late news of an earlier one are recognised.
        self._session_number = 0
        self._connection: Connection | None = None
        self._backoff = leasing.new_backoff()
        self._not_before = -math.inf
        self._log_limit = LogLimit()
        # Loop times: of the first acknowledgement that waits, and of the latest records.
        self._unsent_since: float | None = None
        self._acquired_at = 0.0
        # The next fetch: the number of records to ask for, and its time.
        self._fetch_count, self._fetch_at = 0, math.inf
        # Records that whole batches have had beyond what was asked for.
        self._excess: float | None = None
        # Why all is to be given up, and the session closed.
        self._dropped: str | None = None
        self._is_closing = False
        # What the fetch in flight brings is released, unless it is wanted.
        self._is_left = False
        # Renewals of the heartbeat thread that the loop has not taken over, oldest first.
        self._by_thread: list[SentByThread] = []

    @property
    def is_connected(self) -> bool:
        """Whether there may be a session, and locks."""
        return self._connection is not None

    # --- Notifications --------------------------------------------------------------------
    def wake(self) -> None:
        self._wake.set()

    def settled(self, now: float) -> None:
        """Send acknowledgements soon."""
        if self._unsent_since is None:
            self._unsent_since = now
            self._wake.set()

    def drop(self, reason: str) -> None:
        """End the session, because the group has removed the member. The leases are lost."""
        self._dropped = reason
        self._leases.lose_node(self.node_id, reason)
        self._wake.set()

    def leave(self) -> None:
        """Release what the fetch in flight brings, because its use ends, unless it is wanted."""
        self._is_left = True
        self._wake.set()

    def close(self) -> None:
        """Send what is left, close the session, and end the task."""
        self._is_closing = True
        self._wake.set()

    # --- The task -------------------------------------------------------------------------
    async def run(self) -> None:
        leases = self._leases
        while True:
            self._wake.clear()
            now, due_at = self._loop.time(), math.inf
            leases.expire(self.node_id, now)
            if self._connection is not None and (error := self._connection.error) is not None:
                self._lose_session(error)
                due_at = now
            elif self._leasing.take_turn():  # else the heartbeat thread will wake this
                if self._dropped is not None:
                    await self._end_session()
                    self._dropped = None
                    continue
                if self._is_closing and not self._has_to_send(now):
                    await self._end_session()
                    return
                due_at = self._due_at(now)
                try:
                    if due_at <= now and await self._connect():
                        await self._send(now)
                except KafkaError as error:
                    self._lose_session(error)
            if due_at > now:
                await self._wake.wait(None if due_at == math.inf else due_at)

    def _has_to_send(self, now: float) -> bool:
        """Whether acknowledgements keep the session open. The stop does not retry releases."""
        if now < self._not_before:
            return self._leases.has_results(self.node_id)
        return self._leases.has_unsent(self.node_id)

    def _due_at(self, now: float) -> float:
        """Return when to send the next request, and note when and how much to fetch."""
        leases, node_id = self._leases, self.node_id
        due_at = leases.renewal_due_at(node_id)
        self._fetch_count, self._fetch_at = 0, math.inf
        if now < self._not_before:
            self._fetch_at = self._not_before  # it has no turn to fetch before
        elif self.partitions and not self._is_closing:
            node_count = self._leasing.fetching_count
            self._fetch_count, self._fetch_at = self._demand.wanted(node_id, node_count, now)
        if not leases.has_unsent(node_id):
            self._unsent_since = None
        elif self._is_closing or self._unsent_since is None:
            due_at = now
        elif self._fetch_at == math.inf:
            due_at = min(due_at, self._unsent_since + ACKNOWLEDGE_S)
        return max(min(due_at, self._fetch_at), self._not_before)

    async def _send(self, now: float) -> None:
        """Send the request that is due."""
        leases, node_id = self._leases, self.node_id
        if renewals := leases.renewals(node_id, now):
            await self._acknowledge(renewals, renews=True)
            return
        sent = leases.take_acknowledgements(node_id)
        # Not with those of partitions that are not fetched any more.
        if self._fetch_at <= now and sent.keys() <= set(self.partitions.values()):
            await self._fetch(sent)
        elif sent:
            await self._acknowledge(sent)

    async def _connect(self) -> bool:
        """Return whether the connection can be used at once; otherwise wait for it."""
        pool = self._cluster.pool
        connection = pool.ready_connection(self.node_id, Lane.FETCH)
        if connection is None:
            await pool.connect(self.node_id, Lane.FETCH)
            return False
        if connection is not self._connection:
            if self._connection is not None:
                self._lose_session(KafkaConnectionError("the connection was replaced"))
            self._connection = connection
            version = connection.api_versions.choose(ShareAcknowledgeRequest)
            self._leases.connected(self.node_id, can_renew=version >= FIRST_WITH_RENEWALS)
            connection.closed.add_done_callback(lambda _: self._wake.set())
        return True

    # --- Requests -------------------------------------------------------------------------
    async def _fetch(self, sent: Acknowledgements) -> None:
        asked_at, count = self._loop.time(), self._fetch_count
        wait_s = self._wait_s(asked_at)
        most_excess = max(count * EXCESS_SHARE, self._demand.excess(asked_at))
        is_exact = self._excess is None or self._excess > most_excess
        request = self._session.fetch(
            self.partitions.values(),
            sent,
            max_records=count,
            max_wait_ms=math.ceil(wait_s * 1000),  # 0 would be answered at once, again and again
            max_bytes=self._settings.fetch_max_bytes,
            is_exact=is_exact,
        )
        self._unsent_since = None
        self._is_left = False
        self._demand.note_fetch(self.node_id, count)
        self._leasing.share_demand()
        acquired_count = 0
        try:
            response = await self._answer(request, wait_s + ANSWER_S, sent)
            self.fetched_at = self._loop.time()
            acquired_count = await self._take_over(response, sent, count, asked_at)
        finally:
            took_s = self._loop.time() - asked_at
            self._demand.note_answer(self.node_id, acquired_count, took_s)
            self._leasing.share_demand()

    def _wait_s(self, now: float) -> float:
        wait_s = self._settings.fetch_max_wait_s
        if self._leasing.fetching_count > 1 and self._demand.is_awaited(self.node_id):
            wait_s = min(wait_s, FETCH_RANGE_S[1])
        if not self._leases.is_holding(self.node_id):
            return wait_s
        least_s, most_s = HELD_WAIT_S
        held_s = min(max((now - self._acquired_at) * HELD_WAIT_SHARE, least_s), most_s)
        renewal_s = self._leases.renewal_due_at(self.node_id) - now
        return min(wait_s, held_s, max(renewal_s, 0.0))

    async def _acknowledge(self, sent: Acknowledgements, *, renews: bool = False) -> None:
        asked_at = self._loop.time()
        request = self._session.acknowledge(sent, renews=renews)
        if not renews:
            self._unsent_since = None
        response = await self._answer(request, ANSWER_S, {} if renews else sent)
        if renews:
            self._renewed(sent, response, asked_at)
        else:
            self._leases.answered(sent, self._errors_of(sent, response))

    async def _end_session(self) -> None:
        """Close the session, so that the broker releases what is left of it."""
        if self._session.is_open and self._connection is not None:
            request = self._session.acknowledge({}, is_last=True)
            with suppress(KafkaError):  # its locks end with the connection, or by themselves
                await self._answer(request, ANSWER_S, {})
        self._session.reset()
        self._leases.lose_node(self.node_id, "the share session was closed")

    async def _answer(
        self, request: Request[AnswerT], timeout_s: float, sent: Acknowledgements
    ) -> AnswerT:
        """Send a request and return the answer. An error ends the session, and all leases."""
        assert self._connection is not None  # noqa: S101 -- `_connect` has set it
        try:
            response = checked(await self._connection.request(request, timeout_s=timeout_s))
        except KafkaError as error:
            self._leases.failed(sent, f"it is unknown whether it was acknowledged: {error}")
            raise
        self._backoff.reset()
        return response

    def _lose_session(self, error: KafkaError) -> None:
        """Begin another session later, and let the broker release the locks of this one now."""
        connection, self._connection = self._connection, None
        # A refused first fetch has locked nothing.
        may_lock = self._session.epoch > 1 or not isinstance(error, BrokerResponseError)
        if connection is not None and may_lock:
            connection.close()
        self._session.reset()
        self._session_number += 1
        self._leases.lose_node(self.node_id, str(error))
        self._back_off(error)
        if isinstance(error, BrokerResponseError):
            self._leasing.surface_if_permanent(error)
        else:
            self._cluster.invalidate()

    def _back_off(self, error: KafkaError) -> None:
        now = self._loop.time()
        if not isinstance(error, KafkaConnectionError):  # which the pool reports
            self.failure = error, now if self.failure is None else self.failure[1]
        self._not_before = now + self._backoff.next_delay_s()
        if (ending := self._log_limit.let_in(type(error), now)) is not None:
            peer = self._cluster.pool.describe(self.node_id)
            log.warning("share requests to %s failed and are retried: %s%s", peer, error, ending)

    # --- Answers --------------------------------------------------------------------------
    async def _take_over(
        self, response: Fetched, sent: Acknowledgements, asked: int, asked_at: float
    ) -> int:
        """Return how many records were acquired."""
        fetched = self._session.partitions
        self._leases.answered(sent, self._errors_of(sent, response))
        # A lock that is over is known to be before its records are delivered again.
        self._leases.expire(self.node_id, self._loop.time())
        lock_s = response.acquisition_lock_timeout_ms / 1000
        self._leasing.lock_s = lock_s or self._leasing.lock_s
        count, offset_count = 0, 0
        for topic in response.responses:
            for data in topic.partitions:
                partition = fetched.get((topic.topic_id, data.partition_index))
                if partition is None or not data.acquired_records:
                    continue
                acquired = [
                    Acquired(each.first_offset, each.last_offset, each.delivery_count)
                    for each in data.acquired_records
                ]
                records, bad, seen = await self._decode(partition.tp, data, acquired)
                offset_count += seen
                count += self._leases.acquire(
                    partition, records, acquired, lock_s=lock_s, asked_at=asked_at, undecodable=bad
                )
                if self.partitions.get(partition.key) is not partition:
                    # It was taken away meanwhile, so others may have these records.
                    count -= self._leases.release_waiting(partition)
        if count:
            self._acquired_at = self._loop.time()
            self._excess = max(offset_count - asked, (self._excess or 0.0) * EXCESS_MEMORY, 0.0)
        is_left = self._is_left and self._leasing.want() <= 0
        if self._is_closing or self._dropped is not None or is_left:
            self._leases.release_waiting()
        if count:
            self._leasing.on_ready()
        return count

    async def _decode(
        self, tp: TopicPartition, data: PartitionData, acquired: list[Acquired]
    ) -> tuple[list[Record], list[tuple[int, int]], int]:
        """Return the records, the offsets of undecodable batches, and how many offsets came."""
        view = memoryview(data.records or b"")
        next_offset = min(each.first_offset for each in acquired)
        end = max(each.last_offset for each in acquired) + 1
        records: list[Record] = []
        bad: list[tuple[int, int]] = []
        seen = max(0, (end_offset(view) or 0) - next_offset)
        while len(view):
            record_set = RecordSet(
                *tp,
                view,
                fetch_offset=next_offset,
                end_offset=end,
                check_crcs=self._settings.check_crcs,
                max_batch_bytes=self._settings.max_batch_bytes,
                may_block=False,
            )
            try:
                while not record_set.is_exhausted:
                    if record_set.inflate_estimate_s > INFLATE_ON_LOOP_S:
                        await compute(record_set.inflate)
                    records += record_set.take(DECODED_AT_ONCE)
                    if len(records) >= DECODED_AT_ONCE:
                        await asyncio.sleep(0)
                break
            except KafkaError as error:
                log.warning("%s (its records are released)", error)
                first = record_set.next_offset if error.offset is None else error.offset
                next_offset = max(first + 1, error.next_offset or 0)
                bad.append((first, next_offset - 1))
                view = after_batch(view, first)
        return records, bad, seen

    def _errors_of(self, sent: Acknowledgements, response: Fetched | Acknowledged) -> Errors:
        """Return the errors of acknowledgements, and act on those of partitions."""
        partitions = (*self.partitions.values(), *sent)
        by_id = {each.key: each for each in partitions}
        errors: Errors = {}
        moved: Errors = {}
        # Why the next request has to wait.
        failure: KafkaError | None = None
        leaders: dict[TopicPartition, tuple[int, int]] = {}
        for topic in response.responses:
            for data in topic.partitions:
                partition = by_id.get((topic.topic_id, data.partition_index))
                if partition is None:
                    continue
                error = error_of(partition.tp, data.error_code, data.error_message)
                if isinstance(data, AcknowledgedPartition):
                    of_ack = error
                else:
                    code, message = data.acknowledge_error_code, data.acknowledge_error_message
                    of_ack = error_of(partition.tp, code, message)
                    if error is not None:
                        failure = error
                        self._leasing.surface_if_permanent(error)
                if of_ack is not None:
                    errors[partition] = of_ack
                    if may_pass(of_ack):
                        failure = of_ack
                for each in (error, of_ack):
                    if each is not None and each.invalid_metadata:
                        moved[partition] = each
                        leader = data.current_leader
                        if isinstance(each, LEADER_MOVED) and leader.leader_id >= 0:
                            leaders[partition.tp] = leader.leader_id, leader.leader_epoch
        if failure is not None:
            self._back_off(failure)
        else:
            self.failure = None
        if moved:
            self._leave(moved, leaders, response)
        return errors

    def _leave(
        self,
        moved: Errors,
        leaders: Mapping[TopicPartition, tuple[int, int]],
        response: Fetched | Acknowledged,
    ) -> None:
        """Give up partitions that this node does not lead, for the leaders that it names."""
        for partition, error in moved.items():
            self._leases.lose_partition(partition, str(error))
        nodes = [Node(e.node_id, e.host, e.port, e.rack) for e in response.node_endpoints]
        if not self._cluster.apply_leader_hints(leaders, nodes):
            self._cluster.invalidate()

    def _renewed(self, sent: Acknowledgements, answer: Acknowledged, asked_at: float) -> None:
        errors, lock_s = self._errors_of(sent, answer), answer.acquisition_lock_timeout_ms / 1000
        if lock_s <= 0:  # v1, or no partition was renewed
            lock_s = min(portion.range.lock_s for mine in sent.values() for portion in mine)
        self._leases.renewed(sent, errors, lock_s=lock_s, asked_at=asked_at)

    # --- The heartbeat thread -------------------------------------------------------------
    def renew_in_thread(self, send: Send, now: float) -> SentByThread | None:
        """Renew what is due, from the heartbeat thread, while the loop is blocked.

        The loop sends nothing meanwhile (`take_turn`), and its last request is answered by now, in
        the kernel's buffer: while locks are held, requests wait only briefly.
        """
        number, settings, earlier = self._session_number, self._settings, tuple(self._by_thread)
        if earlier and (
            isinstance(earlier[-1].answer, KafkaError)
            or now < earlier[-1].asked_at + self._leasing.lock_s * RENEWED_AT_SHARE
        ):
            return None
        renewals = self._leases.renewals(self.node_id, now)
        node = self._cluster.view.nodes.get(self.node_id)
        if not renewals or node is None or not self._session.is_open:
            return None
        # The loop counts those of the thread when it takes them over.
        epoch = self._session.epoch + len(earlier)
        request = acknowledgement(
            settings.group_id, self._leasing.member_id, epoch, renewals, renews=True
        )
        answer: Acknowledged | KafkaError
        try:
            answer = checked(send(request, node))
        except KafkaError as error:
            answer = error
        sent = SentByThread(self, number, renewals, now, answer)
        self._by_thread.append(sent)
        return sent

    def take_over_from_thread(self, sent: SentByThread) -> None:
        """Take over what `renew_in_thread` has done, on the loop."""
        self._by_thread.remove(sent)
        if sent.session_number != self._session_number:
            return
        answer = sent.answer
        if isinstance(answer, KafkaError):
            self._lose_session(answer)  # the epoch is unknown
        else:
            self._session.next_epoch()
            self._renewed(sent.renewals, answer, sent.asked_at)
        self._wake.set()


def checked(response: AnswerT) -> AnswerT:
    """Raise the error of a whole request."""
    if response.error_code:
        kind = for_code(response.error_code)
        raise kind(response.error_message or kind.description)
    return response


def error_of(tp: TopicPartition, code: int, message: str | None) -> KafkaError | None:
    kind = for_code(code)
    if kind is NoError:
        return None
    return kind(f"partition {tp.partition} of topic {tp.topic}: {message or kind.description}")


def after_batch(view: memoryview, offset: int) -> memoryview:
    """Return what follows the batch with this offset; nothing if a header is broken."""
    pos = 0
    while (header := peek_header(view, pos)) is not None and header.batch_length > 0:
        pos += header.size
        if header.last_offset >= offset:
            return view[pos:]
    return view[:0]
