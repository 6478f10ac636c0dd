"""Committed offsets: commits, auto-commit, and reads."""
