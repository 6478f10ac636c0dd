"""Transactions of producers, as their coordinator has them."""
