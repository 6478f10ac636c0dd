"""aiokafka's module path for assignors; the code is in ``aiokafka_lite.consumer.assignors``."""
