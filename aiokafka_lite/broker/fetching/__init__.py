"""Fetch requests: sessions, and reads from leaders and replicas."""
