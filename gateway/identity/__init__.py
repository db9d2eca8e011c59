"""The principal of a request of the admin API, and its reach."""
