"""A replay ring as immutable segments."""
