"""What a run's process does: one module per kind of scenario.

Each has a coroutine function `measure(subject, workload)`; `subject` is what the contestant names:
a reader for most tasks.
"""
