"""Committed offsets: what is committed, within transactions too, and how it goes."""
