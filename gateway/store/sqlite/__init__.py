"""The embedded store: one SQLite file, shared by the workers of one node."""
