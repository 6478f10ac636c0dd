"""Fetches records from brokers."""
