"""Additions to the consumer that use only its public API; each needs an extra."""
