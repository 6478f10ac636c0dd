"""`produce`: lines of the standard input as records of a topic.

command (options) → lines (records of lines) → sending (batches, one in flight for each partition).
"""
