"""The reactor: connections, the bounded request queue, and what takes requests from it."""
