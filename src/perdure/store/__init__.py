"""The run directory: commit, read, verify, retention."""
