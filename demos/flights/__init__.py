"""The main job on real input: flights through a topic and a consumer group, checked at the end.

dataset, statistics (the expected result) → topic, loader (the topic) → workers, scoreboard (the
counted result) → statistics.differences → report, plot.
"""
