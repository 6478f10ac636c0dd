"""Defines what a consumer tells while it runs: the events, and the streams to read them from."""
