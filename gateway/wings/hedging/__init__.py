"""A second route for a call whose first byte is late: the one that answers first serves, the other is stopped."""
