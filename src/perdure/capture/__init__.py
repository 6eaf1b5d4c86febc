"""What to copy and how: components, arenas, the background writer."""
