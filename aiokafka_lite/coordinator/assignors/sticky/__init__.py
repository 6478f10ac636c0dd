"""aiokafka's module path for the sticky assignor."""
