"""Keys, teams and their quotas: the cache of each worker, and the changes that operators make."""
