"""A partition's log: segments in memory or files, and what keeps them small and whole."""
