"""Committed offsets: kept, within transactions too, and expired."""
