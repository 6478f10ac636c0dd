"""`consumer.run`: gives records to handlers, many at a time, each finished for itself."""
