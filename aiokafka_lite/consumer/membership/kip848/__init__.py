"""Membership in a group by the consumer protocol (KIP-848)."""
