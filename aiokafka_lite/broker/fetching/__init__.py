"""Fetch: sessions, replicas, and reading what a request asks for."""
