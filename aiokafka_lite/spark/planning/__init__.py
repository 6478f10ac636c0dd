"""The driver's side: looks offsets up, decides what is read, divides it among tasks.

subscribed, resolution, data_loss, admission, splitting (rules, no I/O) → planner (one query, with
client/offset_lookups.py) → micro_batches, group_commits → driver (what Spark's readers call).
"""
