"""Connections, and the way of a request from its bytes to its response."""
