"""Tiers: where checkpoints are kept besides the run directory, in the same format."""
