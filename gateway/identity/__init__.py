"""Who makes a request of the admin API, and what it may reach."""
