"""What the driver's processes do: look offsets up, decide what is read, divide it among tasks.

subscribed, resolution, data_loss, admission, splitting (rules, no I/O) → lookups (requests)
→ planner (one query) → micro_batches, group_commits → driver (what Spark's readers call).
"""
