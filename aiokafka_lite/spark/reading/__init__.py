"""The tasks' side: fetches ranges of offsets, and returns their records to Spark as Arrow batches.

progress (one range) → failures, fetching (requests and responses) → batches (called by a task).
"""
