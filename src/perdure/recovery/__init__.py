"""Ordered, idempotent restore."""
