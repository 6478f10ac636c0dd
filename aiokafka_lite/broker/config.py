"""What can be set on a broker; the names are Kafka's where Kafka has the setting."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from aiokafka_lite.errors import InsecureConfigError


@dataclass(frozen=True)
class BrokerConfig:
    """A broker's settings. Times are in seconds unless the name says milliseconds.

    Attributes:
        host: The address to listen on; also what clients are told to connect to.
        port: 0 takes a free one.
        allow_remote: Listen also where other machines can connect: whoever can, may do anything.
        data_dir: Where logs and topics are kept; None keeps them in memory.
        num_partitions: Of topics created without saying how many.
        auto_create_topics: Metadata requests that allow it create the topics they ask for.
        segment_bytes: Size at which a log starts a new segment (segment.bytes of a topic wins).
        message_max_bytes: Largest batch accepted (max.message.bytes of a topic wins).
        max_frame_bytes: Largest request accepted; a larger one closes its connection.
        queued_max_requests: Requests that may wait for a handler; no more are read then.
        max_connections: More are closed as they arrive.
        connections_max_idle_s: A connection without a request for so long is closed.
        max_partitions: All topics together; creating more is refused.
        max_fetch_sessions: Incremental fetch sessions kept at most.
        fetch_max_bytes: Most a Fetch answer may hold, whatever the client asks for.
        stop_timeout_s: How long stopping waits for connections to take their last bytes.
    """

    host: str = "127.0.0.1"
    port: int = 0
    allow_remote: bool = False
    data_dir: Path | None = None
    node_id: int = 1
    num_partitions: int = 1
    auto_create_topics: bool = True
    segment_bytes: int = 64 << 20
    message_max_bytes: int = 1_048_588
    max_frame_bytes: int = 100 << 20
    queued_max_requests: int = 500
    max_connections: int = 10_000
    connections_max_idle_s: float = 600.0
    max_partitions: int = 50_000
    max_fetch_sessions: int = 1_000
    fetch_session_eviction_s: float = 120.0
    fetch_max_bytes: int = 55 << 20
    stop_timeout_s: float = 1.0
    offsets_topic_partitions: int = 50
    group_initial_rebalance_delay_ms: int = 0
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = 10_000
    offset_metadata_max_bytes: int = 4_096

    def __post_init__(self) -> None:
        for name in (
            "num_partitions",
            "segment_bytes",
            "message_max_bytes",
            "max_frame_bytes",
            "queued_max_requests",
            "max_connections",
            "max_partitions",
            "offsets_topic_partitions",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not (self.allow_remote or _is_loopback(self.host)):
            raise InsecureConfigError(
                f"{self.host} can be reached from other machines, and this broker asks nobody for "
                f"a password: listen on 127.0.0.1, or allow it (allow_remote, --allow-remote)"
            )
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port must be 0 to 65535, not {self.port}")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
