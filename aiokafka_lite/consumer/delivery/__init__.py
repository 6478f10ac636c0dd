"""The ways to read records."""
