"""Who reads which partition: a group, or nobody but this consumer."""
