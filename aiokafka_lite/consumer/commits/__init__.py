"""Committed offsets: writing them, reading them, committing by the clock."""
