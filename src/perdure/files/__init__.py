"""The one door to the file system."""
