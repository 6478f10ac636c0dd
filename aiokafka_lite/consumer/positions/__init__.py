"""Where reading starts and goes on: offsets looked up, reset, checked."""
