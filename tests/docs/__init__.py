"""Documentation: that it runs, resolves, and says what the source says."""
