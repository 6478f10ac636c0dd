"""Share groups, whose members may have the same partitions (KIP-932)."""
