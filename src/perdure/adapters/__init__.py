"""Frameworks that bring their own training loop: each in its own idiom, importing only what it needs."""
