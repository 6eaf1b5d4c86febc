"""The frameworks, a module each; see `matrix.row`."""
