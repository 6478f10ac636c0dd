"""Messages, named as in Kafka's definitions. Import them from the modules of this package."""
