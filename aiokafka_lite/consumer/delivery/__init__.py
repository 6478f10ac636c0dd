"""The way of a record from an answer to the application."""
