"""One partition's log: segments in memory or in files, compaction and retention."""
