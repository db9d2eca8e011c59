"""Minutes of everything at once, and whether anything grows or does not add up: `make soak`."""
