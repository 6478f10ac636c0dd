"""Brokers die, hang and come back while records flow."""
