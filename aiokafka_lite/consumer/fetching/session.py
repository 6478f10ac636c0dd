"""Incremental fetch sessions (KIP-227), the client's side, without any I/O.

A broker remembers a session's partitions. So a request names only changed ones, and an answer only
those with news.

States, and the (session id, epoch) of the next request:

    none                          (0, 0)     full: opens a session
    open(id, n)                   (id, n)    incremental, n counts up from 1
    to be replaced(id)            (id, 0)    full: closes that session and opens another

    none | to be replaced --answer with id--> open(id, 1)         id 0: the broker keeps none
    open(id, n) --answer--> open(id, n + 1)
    open(id, n) --SESSION_ID_NOT_FOUND--> none
    open(id, n) --any other error or a lost answer--> to be replaced(id)
    open | to be replaced --closing()--> (id, -1): forgotten by both sides

References: Java's FetchSessionHandler and FetchMetadata; FetchRequest.json.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from aiokafka_lite.consumer.assignment.cursor import Loan
from aiokafka_lite.protocol.fetch_template import PartitionToFetch, TopicToFetch, TopicToForget
from aiokafka_lite.protocol.messages.fetch import FetchRequest
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.structs import TopicPartition

NO_SESSION: Final = 0
FULL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
LAST_EPOCH: Final = 2**31 - 1
# The last version of Fetch that names topics. Later ones give ids (KIP-516).
LAST_VERSION_WITH_NAMES: Final = 12


class SessionRequest(NamedTuple):
    session_id: int
    session_epoch: int
    topics: Sequence[TopicToFetch]
    forgotten: Sequence[TopicToForget]
    # None: any version will do.
    max_version: int | None


class FetchSession:
    """The partitions of one session, as loans.

    Attributes:
        changed: Those that the next incremental request names.
    """

    def __init__(self) -> None:
        self.id = NO_SESSION
        self.epoch = FULL_EPOCH
        # Partitions that had records go to the end: brokers fill answers in this order.
        self._loans: dict[tuple[str, int], Loan] = {}
        self.changed: dict[tuple[str, int], Loan] = {}
        self._forgotten: dict[TopicPartition, bytes] = {}
        self._topic_names: dict[bytes, str] = {}
        self._unnamed_count = 0

    def __len__(self) -> int:
        return len(self._loans)

    @property
    def loans(self) -> Collection[Loan]:
        return self._loans.values()

    def is_settled(self) -> bool:
        """Whether the next request is incremental, by topic ids, and names no partition so far."""
        return not (not self.epoch or self.changed or self._forgotten or self._unnamed_count)

    def loan(self, topic: str, topic_id: bytes, partition_index: int) -> Loan | None:
        name = topic or self._topic_names.get(topic_id, "")
        return self._loans.get((name, partition_index))

    def lend(self, loan: Loan) -> None:
        """Ask for a loan from the next request on, after all others."""
        tp, topic_id = loan.cursor.tp, loan.topic_id
        self.end(tp)
        if self._forgotten.pop(tp, topic_id) != topic_id:
            # The topic was recreated: the session's entry is another partition.
            self.replace()
        self._loans[tp] = loan
        self.changed[tp] = loan
        if topic_id == ZERO_UUID:
            self._unnamed_count += 1
        self._topic_names[topic_id] = tp.topic

    def renew(self, loan: Loan) -> None:
        tp = loan.cursor.tp
        del self._loans[tp]
        self._loans[tp] = loan
        self.changed[tp] = loan

    def end(self, tp: TopicPartition) -> None:
        loan = self._loans.pop(tp, None)
        if loan is None:
            return
        if loan.topic_id == ZERO_UUID:
            self._unnamed_count -= 1
        self.changed.pop(tp, None)
        self._forgotten[tp] = loan.topic_id

    def request(self) -> SessionRequest:
        """Build the part of a request that is sent now."""
        is_open = self.epoch != FULL_EPOCH
        max_version = LAST_VERSION_WITH_NAMES if self._unnamed_count else None
        named = self.changed if is_open else self._loans
        topics: dict[str, tuple[str, bytes, list[PartitionToFetch]]] = {}
        for (name, index), loan in named.items():
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = (name, loan.topic_id, [])
            topic[2].append((index, loan.leader_epoch, loan.offset, loan.max_bytes))
        forgotten: dict[str, tuple[str, bytes, list[int]]] = {}
        for tp, topic_id in self._forgotten.items() if is_open else ():
            forgotten.setdefault(tp.topic, (tp.topic, topic_id, []))[2].append(tp.partition)
        self.sent()
        return SessionRequest(
            self.id, self.epoch, list(topics.values()), list(forgotten.values()), max_version
        )

    def sent(self) -> None:
        """Note that all changes were sent. If the request fails, the next one is full."""
        self.changed.clear()
        self._forgotten.clear()

    def succeeded(self, session_id: int) -> None:
        """Note an answer without a top-level error: the broker knows the sent changes."""
        self.id = session_id
        if session_id == NO_SESSION:
            self.epoch = FULL_EPOCH
        else:
            self.epoch = 1 if self.epoch == LAST_EPOCH else self.epoch + 1

    def replace(self) -> None:
        self.epoch = FULL_EPOCH

    def forget(self) -> None:
        self.id = NO_SESSION
        self.epoch = FULL_EPOCH

    def closing(self) -> FetchRequest | None:
        """Forget the session. Return the request that closes it, if there is one."""
        session_id = self.id
        self.forget()
        if session_id == NO_SESSION:
            return None
        return FetchRequest(session_id=session_id, session_epoch=FINAL_EPOCH)
