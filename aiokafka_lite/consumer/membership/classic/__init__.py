"""The classic group protocol, imported only by consumers that use it."""
