"""The driver's side: looks up offsets, chooses ranges, divides them among tasks.

resolution, splitting (rules without I/O) → planner (one query, with
client/offset_lookups.py) → group_commits, micro_batches. Spark's readers call the last two.
"""
