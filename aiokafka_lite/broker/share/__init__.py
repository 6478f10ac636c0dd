"""Share groups at the leaders of partitions: locks on records, and sessions (KIP-932)."""
