"""The main job on real input: flights through a topic and a consumer group, checked at the end.

dataset → expectation (what must come out) → topic, loader (what must be there) → workers,
scoreboard (what was counted) → statistics.differences (is it the same?) → report, plot.
"""
