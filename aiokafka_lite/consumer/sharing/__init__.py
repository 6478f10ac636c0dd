"""Share groups (KIP-932): records that many members lease, instead of partitions that one owns."""
