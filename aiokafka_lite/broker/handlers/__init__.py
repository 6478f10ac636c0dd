"""Answers requests: one function per API, in the module of the service that answers."""
