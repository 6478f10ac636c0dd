"""What is fetched from which broker, and when: one task and one session for each."""
