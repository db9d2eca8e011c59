"""Processes: the supervisor, its workers, and the channel between them."""
