"""Share sessions: the partitions that a member fetches at a node (KIP-932).

    epoch  0  opens the session, or opens it again without partitions; it may not acknowledge
    epoch  n  the n-th request after that, a ShareFetch or a ShareAcknowledge
    epoch -1  the last request: the session closes, and the member's records are released

A session closes with the connection that opened it. Kafka:
org.apache.kafka.server.share.session.ShareSessionCache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from aiokafka_lite.broker.topics import PartitionKey
from aiokafka_lite.errors import (
    InvalidShareSessionEpochError,
    ShareSessionLimitReachedError,
    ShareSessionNotFoundError,
)

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_LAST_EPOCH: Final = 2**31 - 1


class ShareSessionKey(NamedTuple):
    group_id: str
    member_id: str


@dataclass(slots=True, eq=False)
class BrokerShareSession:
    connection: object
    epoch: int = 1  # of the next request
    # In the order in which they get records next.
    partitions: dict[PartitionKey, None] = field(default_factory=dict)

    def update(self, wanted: Iterable[PartitionKey], forgotten: Iterable[PartitionKey]) -> None:
        self.partitions.update(dict.fromkeys(wanted))
        for key in forgotten:
            self.partitions.pop(key, None)

    def serve_last(self, served: Iterable[PartitionKey]) -> None:
        """Let partitions that got records wait until the others had a turn."""
        for key in served:
            if key in self.partitions:
                del self.partitions[key]
                self.partitions[key] = None


class ShareSessionCache:
    """The sessions at one node, `capacity` at most."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._sessions: dict[ShareSessionKey, BrokerShareSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def clear(self) -> None:
        self._sessions.clear()

    def open(self, member: ShareSessionKey, connection: object) -> BrokerShareSession:
        """Open a member's session. Raises ShareSessionLimitReachedError if there is no room."""
        if member not in self._sessions and len(self._sessions) >= self._capacity:
            raise ShareSessionLimitReachedError(
                f"this node has {self._capacity} share sessions, and takes no more"
            )
        session = self._sessions[member] = BrokerShareSession(connection)
        return session

    def use(self, member: ShareSessionKey, epoch: int) -> BrokerShareSession:
        """Return the session for its next request, or the last one, which closes it.

        Raises:
            ShareSessionNotFoundError: The member has no session.
            InvalidShareSessionEpochError: The request is not the next one of the session.
        """
        session = self._sessions.get(member)
        if session is None:
            raise ShareSessionNotFoundError(f"{member} has no share session")
        if epoch == FINAL_EPOCH:
            del self._sessions[member]
        elif epoch != session.epoch:
            raise InvalidShareSessionEpochError(
                f"the next epoch of {member} is {session.epoch}, not {epoch}"
            )
        else:
            session.epoch = epoch + 1 if epoch < _LAST_EPOCH else 1
        return session

    def keys_of(self, member: ShareSessionKey) -> Sequence[PartitionKey]:
        session = self._sessions.get(member)
        return () if session is None else tuple(session.partitions)

    def close_of(self, connection: object) -> Sequence[ShareSessionKey]:
        """Close the sessions that a connection opened, and return their members."""
        members = [
            member for member, session in self._sessions.items() if session.connection is connection
        ]
        for member in members:
            del self._sessions[member]
        return members
