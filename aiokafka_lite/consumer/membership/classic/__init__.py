"""Membership of a consumer group by the classic protocol.

Only a consumer with a group id imports this, when it starts.
"""
