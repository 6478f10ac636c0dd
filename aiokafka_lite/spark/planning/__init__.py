"""What the driver's processes do: look offsets up, decide what is read, divide it among tasks.

subscribed, resolution, losses, admission, splitting (rules, nobody is asked) → lookups (questions)
→ planner (one query) → micro_batches, group_commits → driver (what Spark's readers call).
"""
