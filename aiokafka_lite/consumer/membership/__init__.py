"""Group memberships: joining, leases, assignments and revocations."""
