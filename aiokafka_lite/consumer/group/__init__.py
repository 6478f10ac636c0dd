"""Membership of a consumer group by the classic protocol.

Only a consumer with a group id imports this, when it starts (engine.py).
"""

from aiokafka_lite.consumer.group.coordinator import Coordinator
from aiokafka_lite.consumer.group.member import Member, MemberState
from aiokafka_lite.consumer.group.membership import GroupMembership

__all__ = ["Coordinator", "GroupMembership", "Member", "MemberState"]
