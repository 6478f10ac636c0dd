"""Positions: lookups, resets and validation."""
