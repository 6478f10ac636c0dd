"""Membership of a consumer group by the classic protocol, and what stands in without a group."""

from aiokafka_lite.consumer.group.coordinator import Coordinator
from aiokafka_lite.consumer.group.member import Member, MemberState
from aiokafka_lite.consumer.group.membership import GroupMembership
from aiokafka_lite.consumer.group.no_group import NoCommits, NoGroup

__all__ = ["Coordinator", "GroupMembership", "Member", "MemberState", "NoCommits", "NoGroup"]
