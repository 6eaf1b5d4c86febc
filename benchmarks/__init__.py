"""Measurements against peers and limits, both sides in the same run on the same work."""
