"""Heartbeat (key 12): stay in a classic group, and hear about rebalances.

v3 static members (KIP-345); v4 is flexible.
"""

from __future__ import annotations

from aiokafka_lite.protocol.schema import Request, Response, int16, int32, string


class HeartbeatResponse(Response):
    """All well, or the reason to join again."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0+")


class HeartbeatRequest(Request[HeartbeatResponse], key=12, versions="0-4", flexible="4+"):
    """A sign of life."""

    group_id: str = string("0+")
    generation_id: int = int32("0+")
    member_id: str = string("0+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)  # KIP-345
