"""Fuzzing of everything that takes bytes or text from others: `make fuzz`."""
