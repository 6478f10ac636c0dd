"""Programs that show aiokafka_lite on real input, run in a checkout: `python -m demos`."""
