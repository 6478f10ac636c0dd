"""Kafka to Parquet with Spark, and the same with real flights, checked at the end.

command (options) → session (Spark) → job (run), flights_job (broker, load, check) → report, plot.
"""
