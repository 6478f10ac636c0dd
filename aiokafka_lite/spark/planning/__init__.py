"""The driver's side: looks up offsets, chooses ranges, divides them among tasks.

resolution, splitting (rules without I/O) → planner (one query, with
client/offset_lookups.py) → micro_batches, group_commits → driver (called by Spark's readers).
"""
