"""`produce`: lines of the standard input as records of a topic.

command (options) → lines (records of lines) → sending (outcomes of lines), by `BulkProducer`.
"""
