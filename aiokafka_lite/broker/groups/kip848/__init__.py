"""Groups of KIP-848, which may also have members that use the classic protocol."""
