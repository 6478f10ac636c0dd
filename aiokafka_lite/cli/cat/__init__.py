"""`cat` and `tail`: a topic's records on the screen, in a pipe, or in a file.

command (options) → reading (records, up to where they were to end) → filters → formats (bytes)
→ sinks (where these go).
"""
