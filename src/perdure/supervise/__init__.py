"""Processes started, watched, killed and restarted."""
