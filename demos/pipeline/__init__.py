"""Kafka to Parquet with Spark, and the same on real flights, checked at the end.

command (what is asked for) → session (Spark) → job (broker, load, run) → check (is it what the
data set says?) → report, plot.
"""
