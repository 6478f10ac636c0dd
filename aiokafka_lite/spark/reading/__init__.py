"""What tasks do: fetch ranges of offsets, and hand Spark their records as Arrow batches.

progress (one range) → failures, fetching (requests and answers) → prefetch (a thread, where it
pays) → batches (what a task calls).
"""
