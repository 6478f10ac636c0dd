"""`cat` and `tail`: a topic's records in a terminal, a pipe or a file.

command (options) → reading (records, and filters) → formats (bytes) → sinks (output).
"""
