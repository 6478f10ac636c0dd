"""The common part of KIP-848 groups and share groups, whose members have epochs."""
